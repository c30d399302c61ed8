"""Where commands print what people read."""

from typing import Final

from rich.console import Console

# Enough for every table of ours: where no terminal sets a width, a row stays one line that can be searched.
_WIDE: Final = 240


def console() -> Console:
    """A console on standard output, as wide as the terminal, if it is one."""
    found = Console()
    return found if found.is_terminal else Console(width=_WIDE)
