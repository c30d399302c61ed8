"""Whose turn it is to publish: tiers by weight, then lanes in a round, a chunk each. Nothing else.

No clock, no I/O. It is weighted fair queueing twice over, with virtual times: a tier's is what it published over
its weight, a lane's is what it published. Whose time is least goes next; who was idle starts where the others are.
So idleness earns nothing, a busy tier is never starved, whatever the weights, and a lane with little to publish
goes before one that had its chunk already.

Source: Goyal, Vin and Cheng, "Start-time Fair Queuing", IEEE/ACM Transactions on Networking 5(5), 1997. Ours
charges a turn when it has ended, since its size is known then; and where idle lanes start moves on with all that is
published, so that lanes which come anew time after time cannot keep the others waiting for ever.
"""

from collections.abc import Collection, Mapping
from heapq import heappop, heappush
from itertools import count
from typing import Final, Generic, TypeVar

from outbox.event import Tier

WEIGHTS: Final = {Tier.INTERACTIVE: 8, Tier.STANDARD: 4, Tier.BULK: 1}

_FORGET_FROM: Final = 64

T = TypeVar("T")


class _Round(Generic[T]):
    """The lanes of one tier."""

    def __init__(self) -> None:
        self.waiting: list[tuple[float, int, T]] = []
        self._arrivals = count()
        self._now = 0.0
        self._time: dict[T, float] = {}
        self._forget_at = _FORGET_FROM

    def enter(self, item: T) -> None:
        heappush(self.waiting, (max(self._time.get(item, 0.0), self._now), next(self._arrivals), item))

    def leave(self) -> T:
        start, _, item = heappop(self.waiting)
        self._now = max(self._now, start)
        self._time[item] = start
        return item

    def charge(self, item: T, rows: int) -> None:
        self._time[item] += rows
        # Half of what each of them would have had meanwhile: one that had a chunk comes after one that had none.
        self._now += rows / (2 * (len(self.waiting) + 1))
        if len(self._time) >= self._forget_at:
            self._time = {one: time for one, time in self._time.items() if time > self._now}
            self._forget_at = _FORGET_FROM + 2 * len(self._time)


class Turns(Generic[T]):
    """Items of each tier that wait for a turn. An item waits at most once."""

    def __init__(self, weights: Mapping[Tier, int] = WEIGHTS) -> None:
        self._weights = weights
        self._rounds: dict[Tier, _Round[T]] = {tier: _Round() for tier in Tier}
        self._known: set[T] = set()
        self._time: dict[Tier, float] = dict.fromkeys(Tier, 0.0)
        self._now = 0.0

    def __len__(self) -> int:
        return len(self._known)

    def offer(self, item: T, tier: Tier) -> None:
        """Let *item* wait behind those of its tier who were served no more than it was, unless it waits already."""
        if item in self._known:
            return
        if not self._rounds[tier].waiting:
            self._time[tier] = max(self._time[tier], self._now)
        self._known.add(item)
        self._rounds[tier].enter(item)

    def take(self, *, but: Collection[T] = ()) -> T | None:
        """Return the item whose turn it is, which waits no more; None if nobody waits, or it is one of *but*."""
        tier = self._tier()
        if tier is None or self._rounds[tier].waiting[0][2] in but:
            return None
        self._now = self._time[tier]
        item = self._rounds[tier].leave()
        self._known.remove(item)
        return item

    def charge(self, item: T, tier: Tier, rows: int) -> None:
        """Say what the turn of *item*, which was taken, has cost."""
        self._time[tier] += rows / self._weights[tier]
        self._rounds[tier].charge(item, rows)

    def clear(self) -> None:
        """Nobody waits."""
        for one in self._rounds.values():
            one.waiting.clear()
        self._known.clear()

    def _tier(self) -> Tier | None:
        first: Tier | None = None
        for tier, lanes in self._rounds.items():
            if lanes.waiting and (first is None or self._time[tier] < self._time[first]):
                first = tier
        return first
