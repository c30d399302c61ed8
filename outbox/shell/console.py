"""Where commands print: results on standard output, all else on standard error."""

import dataclasses
import json
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import datetime
from enum import Enum
from typing import Final, Protocol
from uuid import UUID

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

# Wider than any row of ours: where no terminal sets a width, a row stays one line that can be searched, and whole.
_WIDE: Final = 100_000


class Tell(Protocol):
    """What shows how far something is: *done* so far, and *total* if that has become known."""

    def __call__(self, done: int, total: int | None = None) -> None:
        """Show it."""
        ...


def console() -> Console:
    """A console on standard output, as wide as the terminal, if it is one.

    Colours are for terminals; NO_COLOR, FORCE_COLOR and TERM=dumb are obeyed.
    """
    return Console() if sys.stdout.isatty() else Console(width=_WIDE)


def table(*names: str, title: str = "", right: Collection[str] = (), unbroken: Collection[str] = ()) -> Table:
    """A table with these columns; those *right* are aligned so, those *unbroken* keep to one line.

    What does not fit a terminal is folded and never cut.
    """
    made = Table(title=title or None, title_justify="left", box=None, pad_edge=False)
    for name in names:
        made.add_column(name, justify="right" if name in right else "left", overflow="fold", no_wrap=name in unbroken)
    return made


def print_json(content: object, *, indent: int | None = None) -> None:
    """Print *content* as one JSON document: times as ISO 8601, tiers and states by name."""
    typer.echo(json.dumps(content, default=_plain, indent=indent))


def note(text: str) -> None:
    """Print *text* on standard error: it tells how something goes, and is no part of the result."""
    typer.echo(text, err=True)


@contextmanager
def progress(what: str, *, total: int | None = None) -> Iterator[Tell]:
    """Show on standard error, if that is a terminal, that *what* goes on, and how far it is, if *total* is known."""
    if not sys.stderr.isatty():
        yield lambda _done, _total=None: None
        return
    columns = (SpinnerColumn(), TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    shown = columns if total is not None else (columns[0], columns[1], columns[-1])
    with Progress(*shown, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done, total=None: bar.update(task, completed=done, total=total)


def _plain(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Enum):
        return getattr(value, "label", value.value)
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, set | frozenset | tuple):
        return list(value)
    raise TypeError(f"want what JSON has a form for, got {type(value).__name__}")
