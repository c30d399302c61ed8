"""Everything unsettled in this process's hands, and which of it may start: in its turn, and one at a time.

No I/O and no clock. Two deliveries of one event never run at once here, nor two events of one ordering key: the
database would find out too, but only with a slot taken up by waiting for the answer.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final
from uuid import UUID

from consumer.decide.costs import Costs, cost_of
from consumer.decide.fairness import Item as Work
from consumer.decide.fairness import Scheduler
from consumer.decide.heartbeat import Running
from consumer.engine.item import FromWork, Item
from consumer.engine.key_lines import KeyLines
from consumer.store.gate import Key, key_of
from outbox.event import Event, Tier

#: How long an event may be held for its predecessor, and how long for anything else, before it becomes a work row.
ORDER_S: Final = 1.0
BUFFER_S: Final = 300.0


class Place(Enum):
    """Where an item stands."""

    WAITING = auto()  # for a slot
    RUNNING = auto()
    BEHIND = auto()  # another delivery of its event, or an event of its key that comes first
    TROUBLED = auto()  # the database failed it, or a breaker has no room for it; it is to come back
    PARKING = auto()  # on its way into a work row


# Tuples: they are looked through by identity, where a set would ask for hashes.
_IN_USE: Final = (Place.RUNNING, Place.PARKING)
_AT_REST: Final = (Place.WAITING, Place.BEHIND)


@dataclass(slots=True, eq=False, kw_only=True)
class _Held:
    """*behind_since* is when it was first found to come too early; *is_gone*: it can be settled no more.

    *started_at* is when it last got a slot, *charged* what that has cost already, or was expected to.
    """

    item: Item
    event: Event | None
    lane: str
    key: Key | None
    type: str
    started_at: float = 0.0
    charged: int = 1
    place: Place = Place.WAITING
    behind_since: float | None = None
    is_gone: bool = False


class Hands:
    """The items of one group in one process."""

    def __init__(self, scheduler: Scheduler, *, group: str, costs: Costs | None = None) -> None:
        """Without *costs* every item costs one."""
        self._scheduler = scheduler
        self._costs = costs
        self._group = group
        self._held: dict[int, _Held] = {}
        self._by_epoch: dict[int, set[int]] = {}
        self._running: dict[int, _Held] = {}
        # By the ids' numbers, here and there: a UUID's own hash is Python code.
        self._running_events: set[int] = set()
        self._twins: dict[int, list[int]] = {}
        self._lines = KeyLines(self._is_behind)
        self._waiting: list[dict[str, int]] = [{} for _ in Tier]  # indexed by tier
        self._waiting_total = 0

    def __len__(self) -> int:
        return len(self._held)

    @property
    def running(self) -> int:
        """How many run."""
        return len(self._running)

    def running_by_type(self) -> tuple[Running, ...]:
        """What runs, by tenant, tier and type."""
        lanes = Counter((held.item.lane.tenant, held.item.lane.tier, held.type) for held in self._running.values())
        return tuple(
            Running(tenant=tenant, tier=tier, type=event_type, events=events)
            for (tenant, tier, event_type), events in lanes.items()
        )

    def has_of(self, lane: str) -> bool:
        """Whether anything that counts in the buffer *lane* is unsettled."""
        return any(held.lane == lane for held in self._held.values())

    def waiting_in(self, tier: Tier) -> Mapping[str, int]:
        """How many wait for a slot, by lane; to be read only."""
        return self._waiting[tier]

    def from_work(self) -> list[UUID]:
        """The events that come from work rows."""
        return [held.item.row.event_id for held in self._held.values() if held.item.row is not None]

    # ---------------------------------------------------------------- coming, starting, ending

    def add(self, item: Item, *, lane: str) -> None:
        """*item* waits for a slot from now on; *lane* is the buffer that it counts in."""
        event = item.envelope if isinstance(item.envelope, Event) else None
        key = None if event is None or event.ordering is None else key_of(self._group, event)
        event_type = "" if event is None else event.type
        self._held[item.ident] = held = _Held(item=item, event=event, lane=lane, key=key, type=event_type)
        if not isinstance(item.source, FromWork):
            self._by_epoch.setdefault(item.source.epoch, set()).add(item.ident)
        cost = 1 if self._costs is None else self._costs.expected(event_type)
        tier, tenant = item.lane.tier, item.lane.tenant
        self._scheduler.offer(Work(ident=item.ident, tier=tier, tenant=tenant, type=event_type, lane=lane, cost=cost))
        self._count_in(held)

    def next(self, now: float) -> Item | None:
        """Start and return the item whose turn it is, if a slot is free for one."""
        while self._waiting_total and (grant := self._scheduler.take(now)) is not None:
            ident = grant.item.ident
            assert isinstance(ident, int)  # noqa: S101 - it is what we offered
            held = self._held[ident]
            self._count_out(held)
            if self._may_start(held, now):
                held.place = Place.RUNNING
                held.started_at, held.charged = now, grant.item.cost
                self._running[ident] = held
                return held.item
            held.place = Place.BEHIND
            self._scheduler.hold(ident, cost=0)
        return None

    def charge(self, now: float) -> None:
        """Let the tenants pay for what runs longer than was expected while it does."""
        for ident, held in self._running.items() if self._costs is not None else ():
            cost = cost_of(now - held.started_at)
            if cost > held.charged:
                held.charged = cost
                self._scheduler.charge(ident, cost=cost)

    def done(self, item: Item, now: float) -> bool:
        """*item*, which ran, is settled. Whether others, that it held back, wait for a slot now."""
        held = self._stop(item)
        cost = None if self._costs is None else self._costs.learn(held.type, now - held.started_at)
        self._scheduler.done(item.ident, cost=cost)
        self._forget(held)
        waiting = self._waiting_total
        self._wake(held)
        return self._waiting_total > waiting

    def hold(self, item: Item, now: float) -> None:
        """*item*, which ran, came too early: it waits for another of its key, without a slot."""
        held = self._stop(item)
        self._scheduler.hold(item.ident, cost=0)
        if held.is_gone:
            self._withdraw(held)
            self._wake(held)
        else:
            held.place = Place.BEHIND
            self._get_behind(held, now)
            self._wake_twins(held)

    def trouble(self, item: Item) -> bool:
        """The database failed *item*, which ran. Whether it is kept: then ``recover`` it later."""
        held = self._stop(item)
        self._scheduler.hold(item.ident, cost=0)
        is_kept = not (held.is_gone or isinstance(item.source, FromWork))
        if is_kept:
            held.place = Place.TROUBLED
        else:
            self._withdraw(held)
        self._wake(held)
        return is_kept

    def set_back(self, item: Item) -> None:
        """*item*, which was about to run, may not yet: ``recover`` it later."""
        held = self._stop(item)
        self._scheduler.hold(item.ident, cost=0)
        held.place = Place.TROUBLED
        self._wake(held)

    def recover(self, item: Item) -> None:
        """*item* may try again, if it is still here."""
        held = self._held.get(item.ident)
        if held is not None and held.place is Place.TROUBLED:
            self._wait_again(held)

    # ---------------------------------------------------------------- loss

    def lose(self, epoch: int) -> None:
        """What came by *epoch* is gone. What runs goes on, and will be settled in vain."""
        for ident in self._by_epoch.pop(epoch, ()):
            held = self._held[ident]
            held.is_gone = True
            if held.place not in _IN_USE:
                self._withdraw(held)

    def withdraw(self) -> list[Item]:
        """Forget all that does not run; return it, for whoever has to hand it back."""
        found = [held for held in self._held.values() if held.place not in _IN_USE]
        for held in found:
            self._withdraw(held)
        return [held.item for held in found]

    def withdraw_work(self) -> None:
        """Forget what comes from work rows and does not run: the rows may be another's."""
        for held in list(self._held.values()):
            if isinstance(held.item.source, FromWork) and held.place not in _IN_USE:
                self._withdraw(held)

    # ---------------------------------------------------------------- held too long

    def stir(self) -> None:
        """Let the first of each key try again: another process may have handled its predecessor."""
        for key in self._lines.known():
            self._wake_line(key)

    def overdue(self, now: float) -> list[Item]:
        """What was held too long; each is to be ``parked`` or ``unparked``."""
        return self._set_aside([held for held in self._held.values() if self._is_overdue(held, now)])

    def paused(self, now: float) -> list[Item]:
        """What is paused and stands in others' way, or was held too long; each is to be ``parked`` or ``unparked``.

        A paused work row takes the room of another. A delivery of a paused type stands before others of its queue,
        unless the queue is paused as a whole: then what is behind it can wait with it, in the broker.
        """
        if not self._scheduler.has_pauses():  # most often, and this is asked for all that is in hand
            return []
        return self._set_aside([held for held in self._held.values() if self._is_in_the_way(held, now)])

    def _set_aside(self, found: Sequence[_Held]) -> list[Item]:
        for held in found:
            if held.place is Place.WAITING:
                self._count_out(held)
                self._scheduler.hold(held.item.ident, cost=0)
            held.place = Place.PARKING
        return [held.item for held in found]

    def parked(self, item: Item) -> None:
        """*item* is a work row now."""
        self._withdraw(self._held[item.ident])

    def unparked(self, item: Item) -> None:
        """*item* could not be made a work row: it waits again, if it is still ours."""
        held = self._held[item.ident]
        if held.is_gone:
            self._withdraw(held)
        else:
            self._wait_again(held)

    # ---------------------------------------------------------------- inside

    def _may_start(self, held: _Held, now: float) -> bool:
        event = held.event
        if event is None:
            return True
        if event.id.int in self._running_events:
            self._twins.setdefault(event.id.int, []).append(held.item.ident)
            return False
        if not self._is_first_of_key(held, event):
            self._get_behind(held, now)
            return False
        self._running_events.add(event.id.int)
        return True

    def _is_first_of_key(self, held: _Held, event: Event) -> bool:
        if held.key is None or event.ordering is None:
            return True
        return self._lines.enter(held.key, held.item.ident, event.ordering)

    def _get_behind(self, held: _Held, now: float) -> None:
        event = held.event
        if held.key is None or event is None or event.ordering is None:
            return
        if held.behind_since is None:
            held.behind_since = now
        self._lines.wait(held.key, held.item.ident, event.ordering.number)

    def _stop(self, item: Item) -> _Held:
        held = self._running.pop(item.ident)
        if held.event is not None:
            self._running_events.discard(held.event.id.int)
        if held.key is not None:
            self._lines.leave(held.key)
        return held

    def _wake(self, held: _Held) -> None:
        self._wake_twins(held)
        if held.key is not None:
            self._wake_line(held.key)

    def _wake_twins(self, held: _Held) -> None:
        for ident in self._twins.pop(held.event.id.int, ()) if self._twins and held.event is not None else ():
            if self._is_behind(ident):
                self._wait_again(self._held[ident])

    def _wake_line(self, key: Key) -> None:
        ident = self._lines.next(key)
        if ident is not None:
            self._wait_again(self._held[ident])

    def _is_behind(self, ident: int) -> bool:
        held = self._held.get(ident)
        return held is not None and held.place is Place.BEHIND

    def _wait_again(self, held: _Held) -> None:
        held.place = Place.WAITING
        self._scheduler.release(held.item.ident)
        self._count_in(held)

    def _is_overdue(self, held: _Held, now: float) -> bool:
        if held.place not in _AT_REST:
            return False
        if held.behind_since is not None and now - held.behind_since > ORDER_S and held.place is Place.BEHIND:
            return True
        return now - held.item.arrived_at > BUFFER_S

    def _is_in_the_way(self, held: _Held, now: float) -> bool:
        event, lane = held.event, held.item.lane
        if held.place not in _AT_REST or event is None:
            return False
        if not self._scheduler.is_paused(tier=lane.tier, tenant=lane.tenant, type=event.type):
            return False
        return (
            isinstance(held.item.source, FromWork)
            or not self._scheduler.is_paused(tier=lane.tier, tenant=lane.tenant)
            or self._is_overdue(held, now)
        )

    def _withdraw(self, held: _Held) -> None:
        """Settle or forget what does not run."""
        if held.place is Place.WAITING:
            self._count_out(held)
        self._scheduler.withdraw(held.item.ident)
        self._forget(held)

    def _forget(self, held: _Held) -> None:
        del self._held[held.item.ident]
        if not isinstance(held.item.source, FromWork):
            idents = self._by_epoch.get(held.item.source.epoch)
            if idents is not None:
                idents.discard(held.item.ident)

    def _count_in(self, held: _Held) -> None:
        self._waiting_total += 1
        waiting = self._waiting[held.item.lane.tier]
        waiting[held.lane] = waiting.get(held.lane, 0) + 1

    def _count_out(self, held: _Held) -> None:
        self._waiting_total -= 1
        waiting = self._waiting[held.item.lane.tier]
        waiting[held.lane] -= 1
        if waiting[held.lane] == 0:
            del waiting[held.lane]
