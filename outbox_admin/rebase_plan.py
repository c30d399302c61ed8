"""Positions of one cluster, said again in the transaction numbers of another. No I/O.

What a position means is which rows of the log it shows. The stored snapshots of one cluster stand in a row: each
shows what the one before shows, and more. So a row of the log is told apart from others by one number, its *class*:
0 where every snapshot shows it, and one more for each that does not. Rows of one class get one transaction number of
this cluster, later classes later ones, and each snapshot becomes one that shows the numbers up to its own class and
no transaction that runs now or begins later. Every base and every stream then stands where it stood, row for row.
A snapshot that shows nothing, where a group begins in the past, shows nothing anywhere, and stays.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

from outbox.errors import TransientError

_FIRST_NORMAL_XID: Final = 3


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Shows every transaction below *xmax* that is not among those *running*."""

    xmax: int
    running: frozenset[int]

    @classmethod
    def parsed(cls, text: str) -> Self:
        """What PostgreSQL prints: ``xmin:xmax:running``."""
        _, xmax, running = text.split(":")
        return cls(int(xmax), frozenset(map(int, running.split(","))) if running else frozenset())

    def __str__(self) -> str:
        running = sorted(self.running)
        return f"{running[0] if running else self.xmax}:{self.xmax}:{','.join(map(str, running))}"

    def shows(self, xid: int) -> bool:
        """Whether what transaction *xid* wrote is visible."""
        return xid < self.xmax and xid not in self.running

    @property
    def is_empty(self) -> bool:
        """Whether it shows no row of any cluster."""
        return self.xmax <= _FIRST_NORMAL_XID

    def up_to(self, xid: int) -> "Snapshot":
        """The same, but nothing of transactions after *xid*."""
        return Snapshot(xid + 1, frozenset(one for one in self.running if one <= xid))


@dataclass(frozen=True, slots=True, kw_only=True)
class Classes:
    """The stored snapshots in order, and the class of every transaction number.

    Were they not of one cluster, a row would be of a later class than some snapshots that show it: it would be
    published again, and never be lost.
    """

    texts: Sequence[str]
    """The snapshots as stored, but for empty ones. The one at index i shows the classes up to i."""
    bounds: Sequence[int]
    """A number's class is how many of these are not above it, save for the *odd* ones."""
    odd: dict[int, int]
    """The class of each number that was running in a snapshot."""

    @classmethod
    def of(cls, texts: Sequence[str]) -> Self:
        """Put *texts*, the snapshots of all bases and streams, in order."""
        by_text = {text: snapshot for text in texts if not (snapshot := Snapshot.parsed(text)).is_empty}
        # Between two with one xmax, transactions can only have ended.
        ordered = sorted(by_text, key=lambda text: (by_text[text].xmax, -len(by_text[text].running), text))
        bounds = [by_text[text].xmax for text in ordered]
        odd: dict[int, int] = {}
        for index, text in enumerate(ordered):
            for xid in by_text[text].running:
                odd[xid] = max(index + 1, bisect_right(bounds, xid))
        return cls(texts=ordered, bounds=bounds, odd=odd)

    def class_of(self, xid: int) -> int:
        """How many snapshots there are up to the last that does not show *xid*."""
        return self.odd[xid] if xid in self.odd else bisect_right(self.bounds, xid)

    def rebased(self, now: Snapshot) -> "Rebased":
        """Say them again, in numbers of transactions that ended before *now* was taken.

        Raises:
            TransientError: *now* shows fewer transactions than there are snapshots.
        """
        stamps: list[int] = []
        xid = now.xmax
        while len(stamps) < len(self.texts):
            xid -= 1
            if xid < _FIRST_NORMAL_XID:
                raise TransientError(f"rebase: want {len(self.texts)} ended transactions, got {len(stamps)}; try again")
            if now.shows(xid):
                stamps.append(xid)
        stamps.reverse()
        return Rebased(stamps=stamps, texts=[str(now.up_to(stamp)) for stamp in stamps])


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebased:
    """What the classes and the snapshots of ``Classes`` are here, in the same order."""

    stamps: Sequence[int]
    """The transaction number of each class but the last, which no snapshot shows."""
    texts: Sequence[str]
