"""What each lane has in hand, and which lanes could run more than they were given."""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from outbox.event import Tier


@dataclass(slots=True, eq=False, kw_only=True)
class Lane:
    """Counts of one lane. *ready* waits for nothing but a slot. *tenant* is None once the lane held several."""

    name: str
    tier: Tier
    tenant: str | None
    unsettled: int = 0
    ready: int = 0


class Lanes:
    """Lanes with anything unsettled, and no others."""

    def __init__(self) -> None:
        self._lanes: dict[str, Lane] = {}
        # Both indexed by tier.
        self._hungry: list[OrderedDict[Lane, None]] = [OrderedDict() for _ in Tier]
        self._waiting = [0 for _ in Tier]

    def __len__(self) -> int:
        return len(self._lanes)

    def came(self, name: str, *, tier: Tier, tenant: str) -> None:
        """One more of the lane is unsettled."""
        lane = self._lanes.get(name)
        if lane is None:
            lane = self._lanes[name] = Lane(name=name, tier=tier, tenant=tenant)
        if lane.tenant != tenant:
            lane.tenant = None
        lane.unsettled += 1
        self._note(lane)

    def settled(self, name: str) -> None:
        """One less of the lane is unsettled."""
        lane = self._lanes[name]
        lane.unsettled -= 1
        self._note(lane)
        if lane.unsettled == 0:
            del self._lanes[name]

    def ready(self, name: str, change: int) -> None:
        """*change* more of the lane wait for nothing but a slot."""
        lane = self._lanes[name]
        lane.ready += change
        self._waiting[lane.tier] += change
        self._note(lane)

    def unsettled(self, name: str) -> int:
        """Return how many items of the lane are unsettled."""
        return self._lanes[name].unsettled if name in self._lanes else 0

    def waiting(self, tier: Tier) -> int:
        """Return how many of the tier's lanes' items wait for nothing but a slot."""
        return self._waiting[tier]

    def hungry(self, tier: Tier) -> Iterator[Lane]:
        """Yield lanes that would have nothing for a free slot, the one for which this holds longest first."""
        return iter(self._hungry[tier])

    def _note(self, lane: Lane) -> None:
        hungry = self._hungry[lane.tier]
        if lane.unsettled > 0 and lane.ready == 0:
            hungry[lane] = None
        else:
            hungry.pop(lane, None)
