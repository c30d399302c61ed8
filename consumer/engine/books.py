"""What is written about an event that is not simply done: one transaction each, before the broker hears of it.

Tables are written in one order everywhere (ledger, key position, work row, dead letter), so that no two processes
wait for each other.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Final, assert_never
from uuid import UUID

import psycopg

from consumer.decide.control import Scope, Source
from consumer.decide.delivery import Body, Refused, read_body
from consumer.decide.order import Turn
from consumer.decide.redaction import payload_values
from consumer.decide.report import Report, report_of, sentence
from consumer.decide.rules import Pause, PauseHandler, PauseLane
from consumer.engine.attempt import Handled, Raised, Result, Returned
from consumer.engine.item import Item
from consumer.engine.pool import ProcessDied
from consumer.engine.verdict import Buried, Fate, Pending, entries_of, lets_key_pass, overtaken
from consumer.outcome import DeadCategory
from consumer.registry import Handler
from consumer.store import claims, control, dead, gate, results, start, work
from consumer.store.connection import SlotConnection
from consumer.store.dead import NewDead
from consumer.store.ledger import Entry, Ledger, State
from consumer.store.put_off import put_off
from consumer.store.stored import Connection, Stored
from consumer.store.work import NewWork, Reason
from outbox.errors import StoreUnavailable
from outbox.event import Event

_KEYED_S: Final = 1.0
_VOID: tuple[str, ...] = ()


@dataclass(slots=True)
class Unwritten:
    """What attempts leave to be written beside the fates: the tokens of claims, by handler, that end with that; what
    the ledger was not asked about; what handlers returned; and whether the event has ended the process of one.
    """

    tokens: dict[str, int] = field(default_factory=dict)
    done: list[Entry] = field(default_factory=list)
    results: dict[str, str] = field(default_factory=dict)
    has_killed: bool = False

    def add(self, handler: Handler, result: Result) -> None:
        """Take in how *handler* ended."""
        if isinstance(result, Raised) and isinstance(result.error, ProcessDied):
            self.has_killed = True
        match result:
            case Returned(token=int(token)) | Raised(token=int(token)):
                self.tokens[handler.name] = token
            case Handled(is_written=False):
                self.done.append(Entry(handler=handler.name, state=State.DONE, attempts=result.attempt))
                if result.result is not None:
                    self.results[handler.name] = result.result
            case _:
                pass  # all of it is written, or nothing happened


class Books:
    """Writes for one group. Every method raises StoreUnavailable (nothing may be settled) and LeaseLost (forget it)."""

    def __init__(
        self, *, group: str, ledger: Ledger, horizon: timedelta, skips_dead: bool, payload_bytes_max: int
    ) -> None:
        self._group = group
        self._ledger = ledger
        self._horizon = horizon
        self._skips_dead = skips_dead
        self._payload_bytes_max = payload_bytes_max

    async def close(
        self, slot: SlotConnection, item: Item, event: Event, fates: Sequence[Fate], *, unwritten: "Unwritten"
    ) -> Sequence[Fate]:
        """Write what follows from *fates*; returns them as they are now, if another process was quicker."""
        async with _transaction(slot) as connection:
            entries = [replace(entry, token=unwritten.tokens.get(entry.handler)) for entry in entries_of(fates)]
            left = await self._ledger.record(connection, event, [*entries, *unwritten.done])
            if unwritten.has_killed:
                await start.blame(connection, self._group, event.id)
            fates = [overtaken(fate, left[fate.handler]) if fate.handler in left else fate for fate in fates]
            await claims.release_keys(connection, self._group, dict.fromkeys(unwritten.tokens.values(), event))
            if event.ordering is not None and lets_key_pass(fates, skips_dead=self._skips_dead):
                passed = [(gate.key_of(self._group, event), event.ordering.number)]
                await gate.advance(connection, passed, unless_dead=not self._skips_dead)
            await self._keep(connection, item, event, [fate for fate in fates if isinstance(fate, Pending)])
            for fate in fates:
                if isinstance(fate, Buried):
                    await dead.put(connection, self._letter(item, fate))
            for fate in fates:
                if isinstance(fate, Pending) and fate.pause is not None:
                    await self._pause(connection, item, fate.handler, fate.pause)
            for handler, result in unwritten.results.items():
                await results.put(connection, self._group, event, handler=handler, result=result)
        return fates

    async def is_waiting(self, slot: SlotConnection, item: Item) -> bool:
        """Whether *item* came by its lane though its event has a work row, which is as good as done elsewhere."""
        if item.owner is not None or item.event_id is None:
            return False
        async with _transaction(slot) as connection:
            return bool(await work.exists(connection, self._group, [item.event_id]))

    async def refuse(self, slot: SlotConnection, item: Item, refused: Refused) -> None:
        """Bury *item*, which no handler may see."""
        event = item.envelope
        async with _transaction(slot) as connection:
            if isinstance(event, Event) and event.ordering is not None and self._skips_dead:
                # Its key may pass it, but only in its turn.
                await gate.park(
                    connection,
                    self._group,
                    event,
                    item.message,
                    horizon=self._horizon,
                    handlers=_VOID,
                    owner=item.owner,
                )
            elif item.owner is not None and item.event_id is not None:
                await work.finish(connection, self._group, [item.event_id], owner=item.owner)
            await dead.put(connection, self._refusal(item, refused))

    async def pass_void(self, slot: SlotConnection, item: Item, event: Event, *, skipped: Sequence[str]) -> Turn:
        """Let the key of *event*, which has no handler left, move on if it is its turn; says whether it was.

        The ledger will say of the handlers in *skipped* that they are not to have it.
        """
        async with _transaction(slot) as connection:
            turn = Turn.READY
            if event.ordering is not None:
                turn = await gate.enter(connection, self._group, event, horizon=self._horizon)
            if turn.may_run:
                entries = [Entry(handler=name, state=State.SKIPPED, attempts=0) for name in skipped]
                await self._ledger.record(connection, event, entries)
                if event.ordering is not None:
                    await gate.advance(connection, [(gate.key_of(self._group, event), event.ordering.number)])
                if item.owner is not None:
                    await work.finish(connection, self._group, [event.id], owner=item.owner)
        return turn

    async def park(
        self, slot: SlotConnection, item: Item, event: Event, *, handlers: Sequence[str], delay_s: float
    ) -> None:
        """Keep *item*, which *handlers* are to have, as a work row: until its turn comes, or else for *delay_s*."""
        attempts = 0 if item.row is None else item.row.attempts
        async with _transaction(slot) as connection:
            if item.is_replay:
                await self._record_replay(connection, event, handlers)
            if event.ordering is not None and await self._is_early(connection, event):
                await gate.park(
                    connection,
                    self._group,
                    event,
                    item.message,
                    horizon=self._horizon,
                    attempts=attempts,
                    handlers=item.handlers,
                    owner=item.owner,
                )
            else:
                row = NewWork(
                    group=self._group,
                    event_id=event.id,
                    stored=item.stored(),
                    reason=Reason.HELD,
                    # Its predecessor may have been handled this moment: no sweep looks for it then, so it looks again.
                    delay_s=delay_s if event.ordering is None else min(delay_s, _KEYED_S),
                    attempts=attempts,
                    handlers=item.handlers,
                )
                await work.park(connection, [row], owner=item.owner)

    async def put_off(self, slot: SlotConnection, items: Sequence[Item], *, owner: UUID) -> None:
        """Keep *items*, events that are paused, as work rows that come due when the pause has ended.

        Those that come from work rows are *owner*'s; one that is another's by now stays as it is.
        """
        new = {item.event_id: item for item in items if item.event_id is not None and item.row is None}
        rows = [
            NewWork(group=self._group, event_id=event_id, stored=item.stored(), reason=Reason.HELD)
            for event_id, item in new.items()
        ]
        async with _transaction(slot) as connection:
            written = await work.park(connection, rows)
            await put_off(connection, self._group, written, owner=None)
            claimed = [item.row.event_id for item in items if item.row is not None]
            await put_off(connection, self._group, claimed, owner=owner)

    async def suspect(self, slot: SlotConnection, item: Item, event: Event, *, handlers: Sequence[str]) -> bool:
        """Keep *item*, which *handlers* are to have, as a suspect; false if there is nothing left for it to do.

        The ledger then says of each of them that a row has it, so that a duplicate of it runs nowhere else.
        """
        async with _transaction(slot) as connection:
            left = handlers
            if item.owner is None:
                unknown = await self._ledger.reserve(connection, event, handlers)
                left = [name for name in handlers if name in unknown]
                if not left:
                    return False
            elif item.is_replay:
                await self._record_replay(connection, event, handlers)
            row = NewWork(
                group=self._group,
                event_id=event.id,
                stored=item.stored(),
                reason=Reason.SUSPECT,
                attempts=0 if item.row is None else item.row.attempts,
                handlers=tuple(left),
            )
            await work.park(connection, [row], owner=item.owner)
        return True

    async def _is_early(self, connection: Connection, event: Event) -> bool:
        """Whether *event* waits for its predecessor; if not, nothing but time would bring it back."""
        turn = await gate.look(connection, self._group, event, horizon=self._horizon)
        return turn is Turn.EARLY

    async def _record_replay(self, connection: Connection, event: Event, handlers: Sequence[str]) -> None:
        """The row will not say any more that it is a replay, and what is dead is not tried again."""
        again = [Entry(handler=name, state=State.RETRY, attempts=0) for name in handlers]
        await self._ledger.record(connection, event, again)

    async def _keep(self, connection: Connection, item: Item, event: Event, pending: Sequence[Pending]) -> None:
        """Write one work row for all of *pending*, or remove the one there is."""
        if pending:
            failed = next((fate for fate in pending if fate.what is not None), None)
            is_retry = any(fate.reason is Reason.RETRY for fate in pending)
            # The ledger has it as dead until it is tried: without being a replay it would never be.
            is_replay = item.is_replay and any(fate.reason is Reason.HELD for fate in pending)
            row = NewWork(
                group=self._group,
                event_id=event.id,
                stored=item.stored(),
                reason=Reason.REPLAY if is_replay else Reason.RETRY if is_retry else Reason.HELD,
                # The longest: a wait that another system asked for is never cut short.
                delay_s=max(fate.wait_s for fate in pending),
                attempts=max(fate.attempts for fate in pending),
                handlers=tuple(fate.handler for fate in pending),
                last_error=None if failed is None else report_for(item, failed.what or "").message,
                is_failing=any(fate.is_failing for fate in pending),
            )
            # What only has to wait must not undo the row that another delivery of it has written.
            await (work.put if is_retry else work.park)(connection, [row], owner=item.owner)
        elif item.owner is not None:
            await work.finish(connection, self._group, [event.id], owner=item.owner)

    async def _pause(self, connection: Connection, item: Item, handler: str, pause: Pause) -> None:
        """Let every process of the group pause what a rule wants paused."""
        match pause:
            case PauseLane():
                scope = Scope(tenant=item.lane.tenant, tier=item.lane.tier)
            case PauseHandler():
                scope = Scope(handler=handler)
            case _:
                assert_never(pause)
        await control.pause(
            connection,
            self._group,
            scope,
            actor=f"rule of {handler}",
            reason="an error that a rule pauses for",
            source=Source.POLICY,
            for_s=pause.for_s,
        )

    def _letter(self, item: Item, buried: Buried) -> NewDead:
        report = report_for(item, buried.what)
        return self._new_dead(
            item, item.stored(), buried.category, report, attempts=buried.attempts, handlers=(buried.handler,)
        )

    def _refusal(self, item: Item, refused: Refused) -> NewDead:
        stored = item.stored()
        if refused.category is DeadCategory.OVERSIZED:
            # Kept to be looked at, not to be replayed: its size is what is wrong with it.
            cut = replace(stored.message, body=stored.message.body[: self._payload_bytes_max])
            stored = replace(stored, message=cut)
        attempts = 0 if item.row is None else item.row.attempts
        return self._new_dead(item, stored, refused.category, sentence(refused.reason), attempts=attempts, handlers=())

    def _new_dead(
        self,
        item: Item,
        stored: Stored,
        category: DeadCategory,
        report: Report,
        *,
        attempts: int,
        handlers: tuple[str, ...],
    ) -> NewDead:
        return NewDead(
            group=self._group,
            event_id=item.event_id,
            stored=stored,
            category=category,
            message=report.message,
            fingerprint=report.fingerprint,
            error_class=report.error_class,
            trace=report.trace,
            attempts=attempts,
            handlers=handlers,
        )


def report_for(item: Item, what: BaseException | str) -> Report:
    """Return what may be told of *what* failed with *item*, without anything that stands in its payload."""
    body = read_body(item.envelope) if isinstance(item.envelope, Event) else None
    return report_of(what, values=payload_values(body.value) if isinstance(body, Body) else ())


@asynccontextmanager
async def _transaction(slot: SlotConnection) -> AsyncIterator[Connection]:
    connection = await slot.open()
    try:
        async with connection.transaction():
            yield connection
    except psycopg.Error as error:
        raise StoreUnavailable(f"database: want it written down, got {type(error).__name__}") from error
    finally:
        await slot.reset()
