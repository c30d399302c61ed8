"""Tables and words as Markdown has them."""

from collections.abc import Iterable, Sequence
from typing import Final

NOTE: Final = "*Made from the code by `python -m reference`.*\n"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; a cell is one line, and a ``|`` in it is escaped."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(_cell(cell) for cell in line)} |\n" for line in lines)


def code(text: str) -> str:
    """*text* as code, nothing for nothing."""
    return f"`{text}`" if text else ""


def page(title: str, *blocks: str) -> str:
    """A page of *blocks*, a blank line between each."""
    return "\n".join([f"# {title}\n", NOTE, *(f"{block.strip()}\n" for block in blocks)])


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
