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
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import measure_renderables
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

# Wider than any row of ours: where no terminal sets a width, a row stays one line that can be searched, and whole.
_WIDE: Final = 100_000
#: Between two columns.
_GAP: Final = 2


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


class _Wide(Table):
    """A table that folds its last column alone; where the others do not fit, it has a line per column instead."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        sizes = [measure_renderables(console, options, [one.header, *one.cells]) for one in self.columns]
        gaps = _GAP * (len(sizes) - 1)
        if sum(size.maximum for size in sizes[:-1]) + sizes[-1].minimum + gaps <= options.max_width:
            yield from super().__rich_console__(console, options)
            return
        for number, row in enumerate(zip(*(column.cells for column in self.columns), strict=True)):
            record = Table.grid(padding=(0, _GAP))
            record.add_column(style="table.header", no_wrap=True)
            record.add_column(overflow="fold")
            for column, cell in zip(self.columns, row, strict=True):
                record.add_row(column.header, cell)
            if number:
                yield Text()
            yield record


def table(*names: str, title: str = "", right: Collection[str] = (), unbroken: Collection[str] = ()) -> Table:
    """A table with these columns; those *right* are aligned so, those *unbroken* keep to one line.

    What does not fit a terminal is folded and never cut.
    """
    made = Table(title=title or None, title_justify="left", box=None, pad_edge=False)
    for name in names:
        made.add_column(name, justify="right" if name in right else "left", overflow="fold", no_wrap=name in unbroken)
    return made


def wide_table(*names: str, right: Collection[str] = ()) -> Table:
    """A table of many columns, the last of which is text; those *right* are aligned so.

    The last is folded where the terminal is narrow. Where that is not enough, each row is a line per column.
    """
    made = _Wide(box=None, pad_edge=False)
    for name in names:
        made.add_column(name, justify="right" if name in right else "left", overflow="fold", no_wrap=name != names[-1])
    return made


def print_json(content: object, *, indent: int | None = None) -> None:
    """Print *content* as one JSON document: times as ISO 8601, tiers and states by name.

    With an *indent* it is for people, who read characters better than their escapes.
    """
    is_ascii = indent is None or "utf" not in (sys.stdout.encoding or "").lower()
    typer.echo(json.dumps(content, default=_plain, indent=indent, ensure_ascii=is_ascii))


def note(text: str) -> None:
    """Print *text* on standard error: it tells how something goes, and is no part of the result."""
    typer.echo(text, err=True)


@contextmanager
def progress(what: str, *, total: int | None = None) -> Iterator[Tell]:
    """Show on standard error, if that is a terminal, that *what* goes on, and how far it is, if *total* is known.

    Of nothing at all there is nothing to show.
    """
    if total == 0 or not sys.stderr.isatty():
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
