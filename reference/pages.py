"""Which page is made by what."""

from collections.abc import Callable
from typing import Final

from reference import cli, errors, log_messages, metrics, settings, tables, wire

PAGES: Final[dict[str, Callable[[], str]]] = {
    "settings.md": settings.render,
    "cli.md": cli.render,
    "errors.md": errors.render,
    "log-messages.md": log_messages.render,
    "wire.md": wire.render,
    "metrics.md": metrics.render,
}
"""Those that need the code alone."""

ON_A_DATABASE: Final[dict[str, Callable[[], str]]] = {
    "tables.md": tables.render,
}
"""Those that a PostgreSQL is started for."""
