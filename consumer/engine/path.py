"""The path of one delivery: verify, gate, each handler in turn, and what is stored before the broker hears of it."""

import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Final, TypeAlias
from uuid import UUID

from consumer.api import Consumer
from consumer.decide.delivery import Body, Refused, read_body
from consumer.decide.horizon import is_within
from consumer.decide.order import Turn
from consumer.engine.attempt import Early, Fenced, Handled, Interrupted, Job, Known, Raised, Returned
from consumer.engine.books import Books, Unwritten
from consumer.engine.item import Item
from consumer.engine.leased import insist
from consumer.engine.modes import Modes
from consumer.engine.restraint import Restraint
from consumer.engine.slot import Slot
from consumer.engine.tally import Tally
from consumer.engine.telling import Settled, Telling, details_of, name_of
from consumer.engine.verdict import Buried, Elsewhere, Fate, Finished, Pending, entries_of, fate_of, lets_key_pass
from consumer.outcome import DeadCategory, DeadLetter
from consumer.registry import Handler
from consumer.store import gate
from consumer.store.connection import SlotConnection
from consumer.store.gate import Key
from consumer.store.ledger import State
from outbox.errors import StoreUnavailable
from outbox.event import Event

_INTERRUPTIONS_MAX: Final = 3
_HELD_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Nothing happened: its turn among the events of its ordering key has not come."""

    turn: Turn


Walked: TypeAlias = Settled | Held
_DONE: Final = Settled(outcome="done")


class Path:
    """Walks the deliveries of one group, one at a time per slot."""

    def __init__(
        self,
        *,
        consumer: Consumer,
        modes: Modes,
        books: Books,
        horizon: timedelta,
        now: Callable[[], datetime],
        rng: random.Random,
        restraint: Restraint,
        tally: Tally,
    ) -> None:
        """*now* is the database's clock, as well as this process knows it."""
        self._group = consumer.group
        self._registry = consumer.registry
        self._skips_dead = consumer.skips_dead
        self._modes = modes
        self._books = books
        self._horizon = horizon
        self._now = now
        self._rng = rng
        self._restraint = restraint
        self._tally = tally
        self._telling = Telling(restraint, skips_dead=consumer.skips_dead)

    async def walk(self, slot: Slot, item: Item) -> Walked:
        """Take *item* as far as it goes now.

        Raises:
            StoreUnavailable: nothing may be settled; walk it again.
            LeaseLost: its work row is another process's by now; forget it.
        """
        event = item.envelope
        if isinstance(event, Refused):
            return await self._refuse(slot.connection, item, event)
        if item.handlers == ():
            return await self._pass_void(slot, item, event)
        wanted = self._wanted(item, event)
        now = self._now()
        body = self._verified(item, event, wanted, now=now)
        if isinstance(body, Refused):
            return await self._refuse(slot.connection, item, body)
        walked = await self._handle(slot, item, event, body, wanted)
        # What comes from a row waited on purpose, and a replay's or a duplicate's time is long past.
        if item.row is None and event.replay is None and isinstance(walked, Settled) and walked.outcome != "duplicate":
            self._tally.start_delay[item.lane.tier].observe((now - event.ledger_time).total_seconds())
        return walked

    async def park(self, connection: SlotConnection, item: Item) -> Settled:
        """Keep *item*, which was held long enough, as a work row. Raises as ``walk``."""
        event = item.envelope
        if isinstance(event, Refused):
            return await self._refuse(connection, item, event)
        handlers = [one.name for one in self._wanted(item, event)]
        await self._books.park(connection, item, event, handlers=handlers, delay_s=_HELD_S)
        return self._telling.settled(item, Settled(outcome="held", due_in_s=_HELD_S))

    async def put_off(self, connection: SlotConnection, items: Sequence[Item], *, owner: UUID) -> Settled:
        """Keep *items*, which are paused, as work rows until the pause has ended. Raises StoreUnavailable."""
        await self._books.put_off(connection, items, owner=owner)
        settled = Settled(outcome="paused")
        for item in items:
            self._telling.settled(item, settled)
        return settled

    async def suspect(self, connection: SlotConnection, item: Item, event: Event) -> Settled:
        """Keep *item*, which a process has begun and died, for a process of its own. Raises as ``walk``."""
        handlers = [one.name for one in self._wanted(item, event)]
        if not await self._books.suspect(connection, item, event, handlers=handlers):
            return self._telling.settled(item, Settled(outcome="duplicate"))
        return self._telling.settled(item, Settled(outcome="suspect"))

    async def bury(self, connection: SlotConnection, item: Item, refused: Refused) -> Settled:
        """Bury *item*, unseen by its handlers. Raises as ``walk``."""
        return await self._refuse(connection, item, refused)

    async def _refuse(self, connection: SlotConnection, item: Item, refused: Refused) -> Settled:
        await self._books.refuse(connection, item, refused)
        self._telling.buried(item, refused.category)
        details = {"category": refused.category.value, "reason": refused.reason}
        return self._telling.settled(item, Settled(outcome="dead", due_in_s=0.0), lambda: details)

    def _wanted(self, item: Item, event: Event) -> tuple[Handler, ...]:
        """The handlers that are still to have *event*."""
        known = self._registry.handlers_of(event.type)
        return known if item.handlers is None else tuple(one for one in known if one.name in item.handlers)

    async def _pass_void(self, slot: Slot, item: Item, event: Event) -> Walked:
        skipped: list[str] = []
        if event.is_void and self._is_remembered(event, self._now()):
            # It may come once more as it was, from a relay that had it in hand when it was discarded.
            skipped = [handler.name for handler in self._registry.handlers_of(event.type)]
        turn = await self._books.pass_void(slot.connection, item, event, skipped=skipped)
        if not turn.may_run:
            return Held(turn=turn)
        return self._telling.settled(item, Settled(outcome="passed over", passed=self._number(event)))

    def _verified(self, item: Item, event: Event, wanted: Sequence[Handler], *, now: datetime) -> Body | Refused:
        """Return the payload of *event* if its handlers may see it."""
        if not wanted:
            return Refused(
                category=DeadCategory.UNKNOWN_TYPE, reason=f"event type: want one with a handler here, got {event.type}"
            )
        # A work row has been in our hands all along, so the ledger knows all there is to know of it.
        if item.owner is None and not self._is_remembered(event, now):
            return Refused(
                category=DeadCategory.OUTSIDE_HORIZON,
                reason=f"ledger time: want at most {self._horizon} ago and 5 minutes ahead,"
                f" got {event.ledger_time.isoformat()}",
            )
        return read_body(event)

    def _is_remembered(self, event: Event, now: datetime) -> bool:
        """Whether the ledger can tell a duplicate of *event*."""
        return is_within(event.ledger_time, now=now, horizon=self._horizon)

    async def _handle(self, slot: Slot, item: Item, event: Event, body: Body, wanted: Sequence[Handler]) -> Walked:
        fates: Sequence[Fate] = []
        unwritten = Unwritten()
        is_closed = False
        for handler in wanted:
            job = Job(
                event=event,
                body=body,
                handler=handler,
                owner=item.owner,
                is_replay=item.is_replay,
                # Then its transaction closes the books too, unless there is more to write than it knows of.
                is_last=handler is wanted[-1] and (not fates or _are_written(fates)),
            )
            result = await self._try(slot, item, job)
            if isinstance(result, Early) and not fates:
                return Held(turn=result.turn)
            fates = [*fates, self._fate(item, handler, result)]
            unwritten.add(handler, result)
            is_closed = isinstance(result, Handled) and result.is_written and job.is_last
        if not (is_closed or _says_nothing_new(item, event, fates)):
            fates = await self._close(slot, item, event, fates, unwritten)
            for fate in fates:
                if isinstance(fate, Buried):
                    self._telling.buried(item, fate.category, handler=fate.handler)
                elif isinstance(fate, Pending) and fate.pause is not None:
                    self._telling.paused(item, event, fate, fate.pause)
        return self._told(item, event, fates)

    async def _try(self, slot: Slot, item: Item, job: Job) -> Handled | Known | Early | Returned | Raised | Fenced:
        began = time.monotonic()
        result = await self._modes.run(slot, job)
        self._tally.attempted(job.handler.name, result, time.monotonic() - began)
        if isinstance(result, Interrupted):
            return self._judge_interruption(item, result)
        if (
            isinstance(result, Returned)
            and isinstance(result.outcome, DeadLetter)
            and result.outcome.category is DeadCategory.UNKNOWN_VERSION
            and await self._books.is_waiting(slot.connection, item)
        ):
            return Known(state=State.RETRY)  # a duplicate of what waits for other code is nobody's loss
        return result

    async def _close(
        self, slot: Slot, item: Item, event: Event, fates: Sequence[Fate], unwritten: Unwritten
    ) -> Sequence[Fate]:
        def close() -> Awaitable[Sequence[Fate]]:
            return self._books.close(slot.connection, item, event, fates, unwritten=unwritten)

        # What a leased handler did cannot be rolled back: how it went is written down, however long that takes.
        return await (insist(close) if unwritten.tokens else close())

    def _fate(self, item: Item, handler: Handler, result: Handled | Known | Early | Returned | Raised | Fenced) -> Fate:
        if item.is_alone and isinstance(result, Raised) and isinstance(result.error, MemoryError):
            raise result.error  # it took all that it may have: where others run beside it, they would have died
        now = self._now() if isinstance(result, Raised) else None  # the hot path has no use for it
        fate = fate_of(handler, result, elapsed_s=self._elapsed_s(item), now=now, rng=self._rng)
        return self._restraint.judge(handler, item, result, fate)

    def _judge_interruption(self, item: Item, result: Interrupted) -> Raised:
        """Blame the handler once its connection was lost too often; until then nobody is charged."""
        item.interruptions += 1
        if item.interruptions <= _INTERRUPTIONS_MAX:
            raise StoreUnavailable("database: want the connection to last, got one lost while a handler ran")
        return Raised(
            attempt=result.attempt, error=ConnectionError("the connection was lost each time the handler ran")
        )

    def _elapsed_s(self, item: Item) -> float:
        """Since the first failure; before one, that is now."""
        if item.row is None or item.is_replay or item.row.failing_since is None:
            return 0.0
        return (self._now() - item.row.failing_since).total_seconds()

    def _told(self, item: Item, event: Event, fates: Sequence[Fate]) -> Settled:
        if event.ordering is None and all(map(_is_done, fates)):
            return self._telling.settled(item, _DONE)  # what nearly every event comes to
        passes = event.ordering is not None and lets_key_pass(fates, skips_dead=self._skips_dead)
        waits = [fate.wait_s for fate in fates if isinstance(fate, Pending)]
        settled = Settled(
            outcome=name_of(fates),
            passed=self._number(event) if passes else None,
            due_in_s=max(waits) if waits else None,
            has_paused=any(isinstance(fate, Pending) and fate.pause is not None for fate in fates),
        )
        return self._telling.settled(item, settled, partial(details_of, item, fates))

    def _number(self, event: Event) -> tuple[Key, int] | None:
        return None if event.ordering is None else (gate.key_of(self._group, event), event.ordering.number)


def _is_done(fate: Fate) -> bool:
    """Whether its handler ran now, and did what it is for."""
    return isinstance(fate, Finished) and fate.is_new and fate.why is None


def _are_written(fates: Sequence[Fate]) -> bool:
    """Whether every one of *fates* is an end that the ledger knows of."""
    return lets_key_pass(fates, skips_dead=False) and not entries_of(fates)


def _says_nothing_new(item: Item, event: Event, fates: Sequence[Fate]) -> bool:
    """Whether *event* is a duplicate of which everything is written already."""
    is_known = all(isinstance(fate, Elsewhere) or (isinstance(fate, Finished) and not fate.is_new) for fate in fates)
    is_key_known = event.ordering is None or any(isinstance(fate, Elsewhere) for fate in fates)
    return item.owner is None and is_known and is_key_known
