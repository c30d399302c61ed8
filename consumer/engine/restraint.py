"""What keeps failures from spreading: each handler's retry budgets and breakers, as this process knows them.

Everything runs on the engine's loop. A breaker is of a handler, or of a handler and one tenant; what it pauses is the
handler's event type, of everybody or of that tenant.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from consumer.decide.circuit import Circuit, Phase
from consumer.decide.fairness import PauseScope
from consumer.decide.heartbeat import OpenBreaker
from consumer.decide.recent import MINUTE_S, Recent, Tally
from consumer.engine.alarm import Alarm
from consumer.engine.attempt import Handled, Raised, Returned
from consumer.engine.item import Item
from consumer.engine.verdict import Buried, Fate, Finished, Pending
from consumer.outcome import DeadCategory
from consumer.ports import AlertKind
from consumer.registry import Handler
from consumer.store.work import Reason
from outbox.event import Event

_CALM_S: Final = 1.0
_TICK_S: Final = 0.01
_DEAD_PER_MINUTE_MAX: Final = 30
_Name: TypeAlias = tuple[str, str]


@dataclass(slots=True, kw_only=True)
class _Open:
    """A breaker that is not closed."""

    handler: Handler
    tenant: str | None
    circuit: Circuit

    @property
    def name(self) -> tuple[str, str, str | None]:
        """What there is one breaker of."""
        return self.handler.event_type, self.handler.name, self.tenant


class Restraint:
    """Budgets and breakers of one group in one process.

    *changed* is set when a breaker opens or a probe ends, so that ``follow`` is called at once. *alarm* is where alerts
    are raised.
    """

    def __init__(self, alarm: Alarm) -> None:
        self.changed = asyncio.Event()
        self.alarm = alarm
        self._recent: dict[_Name, Recent] = {}
        self._open: dict[tuple[str, str, str | None], _Open] = {}
        self._by_type: defaultdict[str, list[_Open]] = defaultdict(list)
        self._kept: list[Item] = []
        self._dead = Tally(MINUTE_S, time.monotonic())
        self._paused: frozenset[PauseScope] = frozenset()

    def __len__(self) -> int:
        """How many breakers are not closed."""
        return len(self._open)

    @property
    def paused(self) -> frozenset[PauseScope]:
        """What breakers keep from starting at all, for now."""
        return self._paused

    @property
    def breakers(self) -> tuple[OpenBreaker, ...]:
        """Those that are not closed."""
        return tuple(OpenBreaker(type=type_, handler=name, tenant=tenant) for type_, name, tenant in self._open)

    def buried(self, count: int = 1) -> None:
        """Take in that *count* more events became dead letters."""
        now = time.monotonic()
        self._dead.add(now, all=count)
        lately, _ = self._dead.read(now)
        if lately > _DEAD_PER_MINUTE_MAX:
            self.alarm.sound(AlertKind.DEAD_GROWTH, "dead letters grow quickly; see outbox dead groups")

    # ---------------------------------------------------------------- what may start

    def admits(self, item: Item) -> bool:
        """Whether *item*, whose turn it is, may start: then it counts as started. Else it comes back by ``follow``."""
        if not self._open or not isinstance(item.envelope, Event):
            return True
        found = list(self._of(item.envelope.type, item.lane.tenant))
        now = time.monotonic()
        if not all(one.circuit.has_room(now) for one in found):
            self._kept.append(item)
            return False
        for one in found:
            one.circuit.started(item.ident)
            if one.circuit.is_paused():  # that was the last probe
                self.changed.set()
        return True

    def left(self, item: Item) -> None:
        """*item* has ended, in whatever way."""
        if self._open and isinstance(item.envelope, Event):
            for one in self._of(item.envelope.type, item.lane.tenant):
                one.circuit.left(item.ident)
                self.changed.set()

    def follow(self) -> tuple[list[Item], bool, float]:
        """Move on with time.

        Returns what was kept from starting and may try again, whether ``paused`` has changed, and after how many
        seconds to ask again.
        """
        now = time.monotonic()
        for name, one in list(self._open.items()):
            one.circuit.advance(now)
            if one.circuit.phase is Phase.CLOSED:
                del self._open[name]
                self._by_type[one.handler.event_type].remove(one)
                self._alert(AlertKind.BREAKER_CLOSED, "a handler works again and runs without limit", one)
        paused = frozenset(
            (None, one.tenant, one.handler.event_type) for one in self._open.values() if one.circuit.is_paused()
        )
        has_changed, self._paused = paused != self._paused, paused
        waits = [wait_s for one in self._open.values() if (wait_s := one.circuit.next_s(now)) is not None]
        return self._released(now), has_changed, min([_CALM_S, *(max(_TICK_S, wait_s) for wait_s in waits)])

    def _released(self, now: float) -> list[Item]:
        """What was kept from starting, as far as there is room; all of what is paused, for that is put off."""
        room = {name: one.circuit.room(now) for name, one in self._open.items() if not one.circuit.is_paused()}
        released, kept = [], []
        for item in self._kept:
            event_type = item.envelope.type if isinstance(item.envelope, Event) else ""
            names = [one.name for one in self._of(event_type, item.lane.tenant)]
            if all(room.get(name, 1) > 0 for name in names):
                released.append(item)
                room.update((name, room[name] - 1) for name in names if name in room)
            else:
                kept.append(item)
        self._kept = kept
        return released

    # ---------------------------------------------------------------- what follows from an attempt

    def judge(self, handler: Handler, item: Item, result: object, fate: Fate) -> Fate:
        """Return what is to follow from *result*: *fate*, or what budget and breaker make of it."""
        if not isinstance(result, Handled | Returned | Raised):
            return fate  # nothing ran
        now = time.monotonic()
        tenant = item.lane.tenant
        has_failed = _has_failed(fate)
        recent = self._recent_of(handler)
        recent.count(tenant, now, is_new=result.attempt == 1, has_failed=has_failed)
        if not has_failed:
            if self._open and has_failed is False:
                self._pass(handler, item, now)
            return fate
        if self._fail(handler, item, now) or self._trip(handler, recent, tenant, now):
            return self._excused(handler, item, result.attempt, fate, now)
        is_charged = isinstance(fate, Pending) and fate.attempts == result.attempt
        if is_charged and not recent.spend_retry(tenant, now):
            return self._beyond_budget(handler, item, result.attempt, fate)
        return fate

    def _recent_of(self, handler: Handler) -> Recent:
        name = (handler.event_type, handler.name)
        recent = self._recent.get(name)
        if recent is None:
            recent = self._recent[name] = Recent(handler.policy.budget, handler.policy.breaker)
        return recent

    def _pass(self, handler: Handler, item: Item, now: float) -> None:
        for one in self._of_handler(handler, item.lane.tenant):
            one.circuit.succeeded(item.ident, now)
            self.changed.set()

    def _fail(self, handler: Handler, item: Item, now: float) -> bool:
        """Whether a breaker was not closed."""
        found = list(self._of_handler(handler, item.lane.tenant))
        for one in found:
            one.circuit.failed(item.ident, now)
            self.changed.set()
        return bool(found)

    def _trip(self, handler: Handler, recent: Recent, tenant: str, now: float) -> bool:
        """Whether a breaker has opened."""
        trip = recent.trip(tenant, now)
        if trip is None or handler.policy.breaker is None:
            return False
        recent.forget_failures(trip.tenant)
        one = _Open(handler=handler, tenant=trip.tenant, circuit=Circuit(handler.policy.breaker, now))
        self._open[one.name] = one
        self._by_type[handler.event_type].append(one)
        self.changed.set()
        self._alert(
            AlertKind.BREAKER_OPENED,
            "most attempts of a handler fail: its event type is paused here, and probed until it works",
            one,
        )
        return True

    def _excused(self, handler: Handler, item: Item, attempt: int, fate: Fate, now: float) -> Fate:
        """As *fate*, but the attempt is not charged: it is the handler that fails, not the event."""
        if not isinstance(fate, Pending | Buried):
            return fate
        pause_s = max((one.circuit.wait_s(now) for one in self._of_handler(handler, item.lane.tenant)), default=0.0)
        return Pending(
            handler=handler.name,
            reason=Reason.RETRY,
            wait_s=max(pause_s, fate.wait_s if isinstance(fate, Pending) else 0.0),
            attempts=attempt - 1,
            what=fate.what,
        )

    def _beyond_budget(self, handler: Handler, item: Item, attempt: int, fate: Fate) -> Fate:
        assert isinstance(fate, Pending)  # noqa: S101 - the caller asked
        is_keyed = isinstance(item.envelope, Event) and item.envelope.ordering is not None
        self.alarm.sound(
            AlertKind.BUDGET_EXHAUSTED,
            "too many of a tenant's events fail: those with an ordering key are postponed, the others are buried"
            " as over_budget; mend the cause, then run outbox dead replay",
            tenant=item.lane.tenant,
            event_type=handler.event_type,
            handler=handler.name,
        )
        if is_keyed:
            return replace(fate, wait_s=max(fate.wait_s, MINUTE_S))
        return Buried(
            handler=handler.name, category=DeadCategory.OVER_BUDGET, attempts=attempt, what=fate.what or "over budget"
        )

    def _of(self, event_type: str, tenant: str) -> Iterator[_Open]:
        return (one for one in self._by_type.get(event_type, ()) if one.tenant in {None, tenant})

    def _of_handler(self, handler: Handler, tenant: str) -> Iterator[_Open]:
        return (one for one in self._of(handler.event_type, tenant) if one.handler.name == handler.name)

    def _alert(self, kind: AlertKind, text: str, one: _Open) -> None:
        self.alarm.sound(kind, text, tenant=one.tenant, event_type=one.handler.event_type, handler=one.handler.name)


def _has_failed(fate: Fate) -> bool | None:
    """Whether *fate* says that its handler does not work. None: it says nothing of that, as where an event is wrong."""
    match fate:
        case Finished():
            return False
        case Pending(what=None):
            return False
        case Pending(pause=None, reason=Reason.RETRY):
            return True
        case Buried(category=DeadCategory.EXHAUSTED):
            return True
        case _:
            return None
