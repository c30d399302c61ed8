"""One try of one handler: claim, handler, commit, in one transaction on the slot's connection.

The claim writes *done* into the ledger before the handler runs, so that row, the handler's writes and the events it
emits commit together or not at all. Nothing here settles, retries or stores: it says what happened.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias, cast
from uuid import UUID

import psycopg
import structlog
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from consumer.context import Context
from consumer.decide.delivery import Body, Refused, read_payload, trail_of
from consumer.decide.order import Turn
from consumer.outcome import DeadLetter, Done, Drop, Outcome, Retry, Snooze, Throttled
from consumer.registry import Handler, Role
from consumer.store import gate, work
from consumer.store.connection import SlotConnection, finish_session
from consumer.store.ledger import Claim, Ledger, State, is_marked, mark_of
from consumer.store.stored import Connection
from outbox.errors import LeaseLost, PermanentError, StoreUnavailable
from outbox.event import Event
from outbox.tenancy import tenant_scope
from outbox.trail import trail_scope

_CLAIM_S: Final = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is to be tried. *is_last*: with this handler done, every handler of the event is.

    *owner* holds the work row that the event comes from, if it comes from one: the ledger may then say retry, and
    dead where *is_replay*.
    """

    event: Event
    body: Body
    handler: Handler
    owner: UUID | None = None
    is_replay: bool = False
    is_last: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Handled:
    """Committed."""

    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Nothing ran: the ledger says *state* already."""

    state: State


@dataclass(frozen=True, slots=True, kw_only=True)
class Early:
    """Nothing ran: it is not this event's turn among those with its ordering key."""

    turn: Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Returned:
    """Rolled back: the handler, or what checked before it, asked for *outcome*."""

    attempt: int
    outcome: Retry | Snooze | Throttled | DeadLetter | Drop


@dataclass(frozen=True, slots=True, kw_only=True)
class Raised:
    """Rolled back: the handler, or the commit, failed with *error*."""

    attempt: int
    error: BaseException


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupted:
    """The connection was lost while the handler ran. Whose fault that was is not known."""

    attempt: int


Result: TypeAlias = Handled | Known | Early | Returned | Raised | Interrupted


class LostTransaction(PermanentError):
    """A handler ended the attempt's transaction, or went on after an error in it: what it did cannot be kept."""


class _Abandoned(Exception):
    """The attempt's own statements failed with *error* after the handler had returned."""

    def __init__(self, error: StoreUnavailable | LeaseLost) -> None:
        super().__init__(str(error))
        self.error = error


class Attempts:
    """Runs attempts for one group."""

    def __init__(self, *, group: str, ledger: Ledger, horizon: timedelta, skips_dead: bool = False) -> None:
        self._group = group
        self._skips_dead = skips_dead
        self._ledger = ledger
        self._horizon = horizon
        self._log = structlog.get_logger("consumer.handler")

    async def run(self, slot: SlotConnection, job: Job) -> Result:
        """Try *job* once on *slot*, whose loop this runs on. The slot's connection is in no transaction afterwards.

        Raises:
            StoreUnavailable: nothing is known to have happened, or whether the commit did is unknown. Run it again:
                the ledger decides.
            LeaseLost: nothing is kept, for the work row is another process's by now.
        """
        payload = read_payload(job.handler, job.event, job.body)
        if isinstance(payload, Refused):
            return Returned(attempt=1, outcome=DeadLetter(reason=payload.reason, category=payload.category))
        connection = await slot.open()
        try:
            return await self._in_transaction(slot, connection, job, payload)
        except psycopg.Error as error:  # of our own statements; what the handler raised is a result
            raise StoreUnavailable(f"database: want a claim, got {type(error).__name__}") from error
        except _Abandoned as abandoned:
            raise abandoned.error from abandoned.__cause__
        finally:
            await slot.reset()

    async def _in_transaction(self, slot: SlotConnection, connection: Connection, job: Job, payload: object) -> Result:
        if job.event.ordering is not None:
            turn = await gate.enter(connection, self._group, job.event, horizon=self._horizon)
            if not turn.may_run:
                return Early(turn=turn)
        mark = mark_of(self._group, job.handler.name) if job.handler.wants_session else None
        claim = Claim(
            event=job.event,
            handler=job.handler.name,
            mark=mark,
            is_stored=job.owner is not None,
            is_replay=job.is_replay,
        )
        taken = await self._claim(connection, claim)
        if isinstance(taken, State):
            return Known(state=taken)
        arguments = self._arguments(job, payload, attempt=taken)
        finish = _Finish(self._group, connection, job, mark=mark, attempt=taken, skips_dead=self._skips_dead)
        result = await _guarded(lambda: _call(slot, job, arguments, finish), attempt=taken)
        # A statement that a deadline cut short takes its connection with it: that is the handler's doing.
        if isinstance(result, Raised) and slot.is_lost and not isinstance(result.error, TimeoutError):
            return Interrupted(attempt=taken)
        return result

    async def _claim(self, connection: Connection, claim: Claim) -> int | State:
        """Claim, but wait for a twin only so long: a frozen process would take one of our slots for each of its own."""
        try:
            async with asyncio.timeout(_CLAIM_S):
                return await self._ledger.claim(connection, claim)
        except TimeoutError:
            return State.RUNNING

    def _arguments(self, job: Job, payload: object, *, attempt: int) -> dict[str, object]:
        arguments: dict[str, object] = {}
        for name, role in job.handler.parameters:
            if role is Role.CONTEXT:
                arguments[name] = self._context(job, attempt)
            elif role is not Role.SESSION:
                arguments[name] = payload
        return arguments

    def _context(self, job: Job, attempt: int) -> Context:
        event, handler = job.event, job.handler.name
        return Context(
            event=event,
            attempt=attempt,
            deadline=datetime.now(UTC) + timedelta(seconds=job.handler.deadline_s),
            idempotency_key=f"{self._group}:{event.id}:{handler}",
            log=self._log.bind(
                event_id=str(event.id), event_type=event.type, tenant=event.tenant, handler=handler, attempt=attempt
            ),
        )


class _Finish:
    """Ends an attempt whose handler has returned, while its session, if it had one, is still there."""

    def __init__(
        self, group: str, connection: Connection, job: Job, *, mark: str | None, attempt: int, skips_dead: bool
    ) -> None:
        self._group = group
        self._connection = connection
        self._job = job
        self._mark = mark
        self._attempt = attempt
        self._skips_dead = skips_dead

    async def __call__(self, returned: object, session: AsyncSession | None) -> Result:
        """Commit if the handler says it is done and the transaction is still the one that was claimed in."""
        outcome = _outcome(returned, self._job.handler)
        if not isinstance(outcome, Done):
            return Returned(attempt=self._attempt, outcome=outcome)
        is_kept = session is None or await finish_session(session)
        if not (is_kept and is_marked(self._connection, self._mark)):
            # COMMIT would become ROLLBACK without a word, or the ledger row is gone: the event would be lost.
            raise LostTransaction(
                f"handler {self._job.handler.name}: want the transaction left open and whole,"
                " got one that was ended, or went on after a database error"
            )
        if self._job.is_last:
            await self._close_books()
        try:
            await self._connection.commit()
        except psycopg.Error as error:
            if self._connection.closed:  # whether it was committed is unknown: the next claim will tell
                raise _Abandoned(StoreUnavailable("database: want the answer to a commit, got none")) from error
            raise
        return Handled(attempt=self._attempt)

    async def _close_books(self) -> None:
        """Move the key on and remove the work row, in the order in which every transaction writes tables."""
        event, owner = self._job.event, self._job.owner
        try:
            if event.ordering is not None:
                passed = [(gate.key_of(self._group, event), event.ordering.number)]
                await gate.advance(self._connection, passed, unless_dead=not self._skips_dead)
            if owner is not None:
                await work.finish(self._connection, self._group, [event.id], owner=owner)
        except LeaseLost as error:
            raise _Abandoned(error) from error
        except psycopg.Error as error:
            raise _Abandoned(StoreUnavailable(f"database: want a commit, got {type(error).__name__}")) from error


async def _guarded(call: Callable[[], Awaitable[Result]], *, attempt: int) -> Result:
    """Await *call*; whatever it raises is a result, but our own cancellation and an unknown commit."""
    try:
        return await call()
    except _Abandoned:
        raise
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        return Raised(attempt=attempt, error=error)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a handler may raise anything, and must not end the process
        return Raised(attempt=attempt, error=error)


async def _call(slot: SlotConnection, job: Job, arguments: dict[str, object], finish: _Finish) -> Result:
    if not job.handler.wants_session:
        return await finish(await _invoke(job, arguments), None)
    async with slot.session(tenant=job.event.tenant) as session:
        return await finish(await _invoke_with(job, arguments, session), session)


async def _invoke(job: Job, arguments: dict[str, object]) -> object:
    handler = job.handler
    if not handler.is_async:
        with _scopes(job.event):
            return handler.function(**arguments)

    async def run() -> object:
        try:
            with _scopes(job.event):
                return await cast("Awaitable[object]", handler.function(**arguments))
        except SystemExit as error:  # it would leave a task by way of the event loop, and end that
            return error

    async with asyncio.timeout(handler.deadline_s):
        # A task of its own: context variables that a handler sets must not reach the next event.
        returned = await asyncio.create_task(run(), name=handler.name)
    if isinstance(returned, SystemExit):
        raise returned
    return returned


async def _invoke_with(job: Job, arguments: dict[str, object], session: AsyncSession) -> object:
    handler = job.handler
    name = next(name for name, role in handler.parameters if role is Role.SESSION)
    if handler.is_async:
        return await _invoke(job, {**arguments, name: session})

    def run(sync_session: Session) -> object:
        with _scopes(job.event):
            return handler.function(**arguments, **{name: sync_session})

    return await session.run_sync(run)


@contextmanager
def _scopes(event: Event) -> Iterator[None]:
    """Let what is emitted inside belong to the event's tenant and name the event as its cause."""
    with tenant_scope(event.tenant), trail_scope(trail_of(event)):
        yield


def _outcome(returned: object, handler: Handler) -> Outcome:
    match returned:
        case None:
            return Done()
        case Done() | Retry() | Snooze() | Throttled() | DeadLetter() | Drop():
            return returned
        case _:
            raise PermanentError(f"handler {handler.name}: want an Outcome or None, got {type(returned).__name__}")
