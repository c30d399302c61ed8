"""Which page is made by what."""

from collections.abc import Callable, Mapping
from typing import Final

from reference import cli, errors, settings, wire

PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "settings.md": settings.render,
    "cli.md": cli.render,
    "errors.md": errors.render,
    "wire.md": wire.render,
}
