"""Whose turn it is to publish: tiers by weight, then lanes in a round, a chunk each. Nothing else.

No clock, no I/O. Across tiers it is weighted fair queueing with one number per tier, its virtual time: rows
published over weight; the tier whose time is least goes next. A tier that was idle starts where the
others are, so idleness earns nothing and a busy tier is never starved, whatever the weights.

Source: Goyal, Vin and Cheng, "Start-time Fair Queuing", IEEE/ACM Transactions on Networking 5(5), 1997.
Ours charges a turn when it has ended, since its size is known then.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Final, Generic, TypeVar

from outbox.event import Tier

WEIGHTS: Final = {Tier.INTERACTIVE: 8, Tier.STANDARD: 4, Tier.BULK: 1}

T = TypeVar("T")


class Turns(Generic[T]):
    """Items of each tier that wait for a turn. An item waits at most once."""

    def __init__(self, weights: Mapping[Tier, int] = WEIGHTS) -> None:
        self._weights = weights
        self._waiting: dict[Tier, deque[T]] = {tier: deque() for tier in Tier}
        self._known: set[T] = set()
        self._time: dict[Tier, float] = dict.fromkeys(Tier, 0.0)
        self._now = 0.0

    def __len__(self) -> int:
        return len(self._known)

    def offer(self, item: T, tier: Tier) -> None:
        """Let *item* wait behind all of its tier, unless it waits already."""
        if item in self._known:
            return
        if not self._waiting[tier]:
            self._time[tier] = max(self._time[tier], self._now)
        self._known.add(item)
        self._waiting[tier].append(item)

    def take(self) -> T | None:
        """Return the item whose turn it is, which waits no more, or None."""
        busy = [tier for tier in Tier if self._waiting[tier]]
        if not busy:
            return None
        tier = min(busy, key=lambda one: (self._time[one], one))
        self._now = self._time[tier]
        item = self._waiting[tier].popleft()
        self._known.remove(item)
        return item

    def next_in(self, tier: Tier) -> Iterator[T]:
        """Those of *tier* that wait, in the order of their turns."""
        return iter(self._waiting[tier])

    def charge(self, tier: Tier, rows: int) -> None:
        """Say what a turn of *tier* has cost."""
        self._time[tier] += rows / self._weights[tier]

    def clear(self) -> None:
        """Nobody waits."""
        for waiting in self._waiting.values():
            waiting.clear()
        self._known.clear()
