"""How the slots are split among tiers.

At least *reserved_percent* of the slots, rounded up and never none, run interactive work only. What is left is
shared by cost, 8:4:1, among the tiers that want it; interactive work takes part once the reserved slots are
full. Bulk work holds at most all but one of the shared slots (or the only one), so that a long bulk item never
stands between a standard one and its start. Slots have no identity: a slot is reserved by count.

Where not every tier is served, nothing is kept for those that are not: without interactive work no slot is reserved,
with interactive work alone every slot is its own, and without standard work bulk may hold every shared slot.

Sharing is start-time fair queueing over three flows. Source: Goyal, Vin and Cheng, "Start-Time Fair Queuing",
IEEE/ACM Transactions on Networking 5(5), 1997. A tier that did not want slots for a while gets no credit for it.
"""

from collections.abc import Collection
from typing import Final

from outbox.errors import ConfigError
from outbox.event import Tier

_SLOTS_MIN: Final = 2
_TIERS: Final = tuple(Tier)
_COST_SCALE: Final = (1, 2, 8)  # by tier: 8 / weight, weights being 8:4:1


class Slots:
    """Counts of what runs, per tier, and whose turn it is at the shared slots."""

    def __init__(self, total: int, *, reserved_percent: int, tiers: Collection[Tier] = _TIERS) -> None:
        if total < _SLOTS_MIN:
            raise ConfigError(f"slots: want at least {_SLOTS_MIN}, got {total}")
        if not tiers:
            raise ConfigError("tiers: want one or more, got none")
        self.total = total
        self.tiers = frozenset(tiers)
        self.reserved = max(1, -(-total * reserved_percent // 100))
        if not 0 < reserved_percent < 100 or self.reserved == total:  # noqa: PLR2004  # a percentage
            raise ConfigError(
                f"reserved_percent: want a part of {total} slots that leaves one shared, got {reserved_percent}"
            )
        if Tier.INTERACTIVE not in self.tiers:
            self.reserved = 0
        elif len(self.tiers) == 1:
            self.reserved = total
        self.shared = total - self.reserved
        self.bulk_most = max(1, self.shared - 1) if Tier.STANDARD in self.tiers else self.shared
        self._running = [0 for _ in Tier]  # indexed by tier, as the next
        self._finish = [0 for _ in Tier]  # virtual times: when the tier's latest shared item ends
        self._clock = 0  # virtual time: when the latest shared item started

    def running(self, tier: Tier) -> int:
        """Return how many items of *tier* run."""
        return self._running[tier]

    def has_free(self) -> bool:
        """Whether any slot is free."""
        return sum(self._running) < self.total

    def has_reserved(self) -> bool:
        """Whether a reserved slot is free."""
        return self._running[Tier.INTERACTIVE] < self.reserved

    def room(self, tier: Tier) -> int:
        """Return how many more items of *tier* could start now; none of a tier that is not served."""
        if tier not in self.tiers:
            return 0
        running = self._running
        lendable = running[Tier.STANDARD] + running[Tier.BULK]
        free = self.total - running[Tier.INTERACTIVE] - lendable
        if tier is Tier.INTERACTIVE:
            return free
        free = min(free, self.shared - lendable)
        return min(free, self.bulk_most - running[Tier.BULK]) if tier is Tier.BULK else free

    def turns(self) -> list[Tier]:
        """Return the tiers that may start something, the one whose turn it is at the shared slots first."""
        tiers = [tier for tier in _TIERS if self.room(tier) > 0]
        tiers.sort(key=self._start)  # stable: among equals the more urgent first
        return tiers

    def start(self, tier: Tier, cost: int) -> bool:
        """Count one more running; return whether it took a shared slot, which the tier pays for."""
        is_shared = tier is not Tier.INTERACTIVE or not self.has_reserved()
        self._running[tier] += 1
        if is_shared:
            self._clock = self._start(tier)
            self._finish[tier] = self._clock
            self.charge(tier, cost)
        return is_shared

    def charge(self, tier: Tier, cost: int) -> None:
        """Let *tier* pay *cost* more (or less, where negative) for what it started in a shared slot."""
        self._finish[tier] += cost * _COST_SCALE[tier]

    def finish(self, tier: Tier) -> None:
        """Count one less running."""
        self._running[tier] -= 1

    def _start(self, tier: Tier) -> int:
        return max(self._clock, self._finish[tier])
