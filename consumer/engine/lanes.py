"""Which queues are attached: a base consumer per lane, and an extra one where a lane could use idle slots.

A base consumer's small prefetch is what keeps a tenant's backlog in the broker; alone it would leave slots idle
while one lane has thousands waiting, hence the extra one. Decisions only: the engine does what is returned.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from consumer.decide.fairness import Scheduler
from consumer.engine.hands import Hands
from outbox.event import Tier
from outbox.naming import Lane

_TIERS: Final = tuple(Tier)
_AGAIN_S: Final = 5.0
_AGAIN_MAX_S: Final = 60.0


@dataclass(slots=True, kw_only=True)
class _Known:
    lane: Lane
    is_attached: bool = False
    is_leaving: bool = False
    losses: int = 0
    again_at: float = 0.0


class Lanes:
    """The lanes of one group that this process knows, by queue."""

    def __init__(self, *, prefetch: int, scheduler: Scheduler) -> None:
        """*prefetch* is a base consumer's; *scheduler*, still empty, tells how many slots each tier may have."""
        self.prefetch = prefetch
        self._scheduler = scheduler
        self._slots = {tier: scheduler.room(tier) for tier in Tier}
        self._known: dict[str, _Known] = {}
        # Few of thousands: nothing here looks at all of them each time that it is asked.
        self._unattached: dict[str, _Known] = {}
        self._leaving: dict[str, _Known] = {}
        self._extras: dict[str, Tier] = {}
        self._favoured: frozenset[Lane] = frozenset()

    def __len__(self) -> int:
        return len(self._known)

    @property
    def attached(self) -> int:
        """How many lanes have a consumer."""
        return sum(known.is_attached for known in self._known.values())

    def consumers(self) -> list[tuple[str, bool]]:
        """Every consumer there is: its queue, and whether it is the extra one."""
        bases = [(queue, False) for queue, known in self._known.items() if known.is_attached]
        return bases + [(queue, True) for queue in self._extras]

    def let_go(self) -> list[tuple[str, bool]]:
        """As ``consumers``, each to be detached; ``learn`` returns the queues again."""
        found = self.consumers()
        for queue, known in self._known.items():
            self._detach(queue, known)
        self._extras.clear()
        return found

    def of(self, queue: str) -> Lane | None:
        """The lane of *queue*, if it is one of ours."""
        known = self._known.get(queue)
        return None if known is None else known.lane

    def standing(self) -> set[Lane]:
        """The lanes that are not leaving."""
        return {known.lane for known in self._known.values() if not known.is_leaving}

    def learn(self, lanes: Iterable[Lane], now: float) -> list[str]:
        """Take *lanes* in; return the queues to attach, those included that were lost a while ago.

        Lanes of a tier that this process does not serve are another's.
        """
        for lane in lanes:
            if not self._slots[lane.tier]:
                continue
            known = self._known.get(lane.queue)
            if known is None:
                self._known[lane.queue] = self._unattached[lane.queue] = _Known(lane=lane)
            elif known.is_leaving:
                # Declared anew: how often it was lost says nothing any more.
                known.is_leaving, known.losses, known.again_at = False, 0, 0.0
                del self._leaving[lane.queue]
                if not known.is_attached:
                    self._unattached[lane.queue] = known
        found = [queue for queue, known in self._unattached.items() if known.again_at <= now]
        for queue in found:
            self._unattached.pop(queue).is_attached = True
        return found

    def leave(self, lanes: Iterable[Lane], hands: Hands) -> list[str]:
        """*lanes* are about to be deleted; return the queues to detach: those of which nothing is in hand any more.

        A queue that has no consumer left has nothing unsettled, then: that is how its deleter knows. What still
        comes from one is known by its lane as before.
        """
        for lane in lanes:
            queue = lane.queue
            if queue in self._known:
                self._leaving[queue] = self._known[queue]
                self._leaving[queue].is_leaving = True
                self._unattached.pop(queue, None)
        found = [queue for queue, known in self._leaving.items() if known.is_attached and not hands.has_of(queue)]
        for queue in found:
            self._detach(queue, self._leaving[queue])
            self._extras.pop(queue, None)
        return found

    def lose(self, queue: str, now: float) -> None:
        """*queue* is attached no more; ``learn`` returns it again after a while, longer each time."""
        self._extras.pop(queue, None)
        known = self._known.get(queue)
        if known is not None:
            self._detach(queue, known)
            known.again_at = now + min(_AGAIN_MAX_S, _AGAIN_S * 2.0 ** min(known.losses, 10))
            known.losses += 1

    def _detach(self, queue: str, known: _Known) -> None:
        known.is_attached = False
        if not known.is_leaving:
            self._unattached[queue] = known

    def delivered(self, queue: str) -> None:
        """*queue* delivers, so its losses are history."""
        self._known[queue].losses = 0

    def hungry(self) -> list[tuple[str, int]]:
        """The queues that deserve an extra consumer now, each with its prefetch. Ask when no slot found work."""
        found = []
        for tier in _TIERS:
            room = self._scheduler.room(tier)
            for queue in self._scheduler.hungry(tier, most=room, unsettled_min=self.prefetch) if room else ():
                if queue not in self._extras and queue in self._known:
                    self._extras[queue] = tier
                    found.append((queue, self._slots[tier]))
        return found

    def favour(self, lanes: Iterable[Lane]) -> None:
        """*lanes*, and no others, are of tenants with a larger share, which would end at what a base consumer holds."""
        self._favoured = frozenset(lanes)

    def favoured(self) -> list[tuple[str, int]]:
        """As ``hungry``, of favoured lanes that may have more waiting, whether a slot idles or not."""
        found = []
        for lane in self._favoured:
            queue = lane.queue
            is_known = queue in self._known and self._known[queue].is_attached
            if is_known and queue not in self._extras and self._scheduler.unsettled(queue) >= self.prefetch:
                self._extras[queue] = lane.tier
                found.append((queue, self._slots[lane.tier]))
        return found

    def contended(self, hands: Hands) -> list[str]:
        """The queues whose extra consumer stands in others' way: their tier is full, and another lane waits.

        That of a favoured lane stays: it is to have more than others while they wait.
        """
        found = []
        for queue, tier in list(self._extras.items()):
            if self._known[queue].lane in self._favoured:
                continue
            if self._scheduler.room(tier) == 0 and self._others(hands.waiting_in(tier), queue):
                del self._extras[queue]
                found.append(queue)
        return found

    def _others(self, waiting: Collection[str], queue: str) -> bool:
        """Whether another of the lanes that have something *waiting* could use a slot: one that is paused could not."""
        for other in waiting:
            lane = self.of(other)
            if other != queue and not (
                lane is not None and self._scheduler.is_paused(tier=lane.tier, tenant=lane.tenant)
            ):
                return True
        return False
