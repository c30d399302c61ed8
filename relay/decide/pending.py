"""Whose base stays where it is stored while a large window is published: buckets whose lanes are not done with it.

To move a base past a window takes a stream row for each lane that is not, to be deleted soon after. Where thousands
of lanes have a few events each, that would be most of the work. So a bucket's base waits for its lanes instead. What
they publish meanwhile comes again after a crash, and counts among the rows that may. Lanes take their first turns
bucket by bucket, so few buckets are begun and not done. No clock, no I/O.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

#: So many looks in a row found no news: lanes wait for something else than their turn, and get their stream rows.
PATIENCE: Final = 60
# Rows of a lane, on average: with more of them a stream row costs each next to nothing.
_FEW: Final = 20

Place = tuple[str, int]
"""A group and a bucket: what a lease is of."""


@dataclass(slots=True, eq=False)
class _Wait:
    """What one bucket waits for: *rows*, as they were counted; and what the last look found."""

    rows: int = 0
    published: int = 0
    outstanding: int = 0
    looks: int = 0
    """How many before that found the same."""


@dataclass(slots=True, eq=False)
class Pending:
    """The buckets that wait."""

    _waits: dict[Place, _Wait] = field(default_factory=dict)
    _idle_looks: int = 0
    """How many in a row found some that wait, and none that has begun."""
    settled: int = 0
    """How many rows of those that wait come again though they are settled."""

    @property
    def places(self) -> Collection[Place]:
        """Those that wait."""
        return self._waits.keys()

    def expect(self, counts: Mapping[Place, Sequence[int]]) -> None:
        """Let places wait until so many more rows of their lanes are published and settled, if it is few of each."""
        for place, rows in counts.items():
            if place in self._waits or sum(rows) <= _FEW * len(rows):
                self._waits.setdefault(place, _Wait()).rows += sum(rows)

    def forget(self, places: Collection[Place]) -> None:
        """These wait no more."""
        for place in places:
            self._waits.pop(place, None)

    def look(self, published: Mapping[Place, int], outstanding: Callable[[Place], int], *, rows_max: int) -> None:
        """End the waits that are over: of places that are done or stand still; of all when none begins.

        While what would come again though it is settled is more than *rows_max* in all, who has most of it waits no
        more.

        Args:
            published: how many rows of each place were published past its stored positions.
            outstanding: how many rows of a place are with the broker; asked of those that have begun.
        """
        begun = [place for place in self._waits if published.get(place)]
        self._idle_looks = 0 if begun or not self._waits else self._idle_looks + 1
        if self._idle_looks > PATIENCE:
            self._waits.clear()
        settled: dict[Place, int] = {}
        for place in begun:
            wait = self._waits[place]
            found = published[place], outstanding(place)
            wait.looks = wait.looks + 1 if found == (wait.published, wait.outstanding) else 0
            wait.published, wait.outstanding = found
            is_done = wait.published >= wait.rows and not wait.outstanding
            if is_done or wait.looks >= PATIENCE:
                del self._waits[place]
            else:
                settled[place] = wait.published - wait.outstanding
        total = sum(settled.values())
        for place in sorted(settled, key=settled.__getitem__, reverse=True):
            if total <= rows_max:
                break
            total -= settled[place]
            del self._waits[place]
        self.settled = total
