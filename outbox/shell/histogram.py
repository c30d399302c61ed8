"""A histogram that one event loop observes: no lock, no label to look up, so next to no cost on the hot path."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

#: Seconds from an event's commit on: from what is quick, by what a person waits for, to what somebody is called for.
DELAY_S: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
#: Seconds that one thing takes.
DURATION_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class Histogram:
    """How many of what was observed were at most as large as each of its bounds. Not thread-safe."""

    __slots__ = ("_bounds", "_counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        """*bounds* rise; one more, infinity, is added."""
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count *value*; one below zero, as two machines' clocks may make it, counts as zero."""
        value = value if value > 0.0 else 0.0  # a call of max costs as much as the rest
        self._counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        """How many were observed."""
        return sum(self._counts)

    def buckets(self) -> list[tuple[float, int]]:
        """Each bound, infinity last, and how many were at most as large."""
        return list(zip((*self._bounds, float("inf")), accumulate(self._counts), strict=True))
