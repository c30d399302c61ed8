"""Which page is made by what."""

from collections.abc import Callable, Mapping
from typing import Final

from reference import settings

PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "settings.md": settings.render,
}
