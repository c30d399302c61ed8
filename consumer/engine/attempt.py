"""One try of one handler: claim, handler, commit, in one transaction on the slot's connection.

The claim writes *done* into the ledger before the handler runs, so that row, the handler's writes and the events it
emits commit together or not at all. Nothing here settles, retries or stores: it says what happened.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Final, TypeAlias, TypeVar
from uuid import UUID

import psycopg
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.decide.delivery import Body, Refused, read_payload
from consumer.decide.order import Turn
from consumer.decide.result import result_text
from consumer.engine.abandoned import WATCH, Abandoned, Unstoppable
from consumer.engine.authorisation import refusal
from consumer.engine.calling import arguments_of, invoke, invoke_with, outcome_of
from consumer.limits import Limits
from consumer.outcome import DeadLetter, Done, Drop, Retry, Snooze, Throttled
from consumer.registry import Handler, LedgerMode
from consumer.store import gate, results, work
from consumer.store.connection import SlotConnection, finish_session
from consumer.store.ledger import Claim, Entry, Ledger, State, is_marked, mark_of
from consumer.store.stored import Connection
from outbox.errors import LeaseLost, PermanentError, StoreUnavailable
from outbox.event import Event
from outbox.records import record

T = TypeVar("T")
_CLAIM_S: Final = 3.0


@record
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


@record
class Handled:
    """Done. *result* is what the handler returned to be kept, as JSON text.

    *is_written*: it is committed, with its result and, after an event's last handler, with what closes the books.
    """

    attempt: int
    result: str | None = None
    is_written: bool = True


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
    """Rolled back: the handler, or what checked before it, asked for *outcome*.

    *token* is that of the claim that writing this down ends, if it was a leased one.
    """

    attempt: int
    outcome: Retry | Snooze | Throttled | DeadLetter | Drop
    token: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Raised:
    """Rolled back: the handler, or the commit, failed with *error*. *token* as in ``Returned``."""

    attempt: int
    error: BaseException
    token: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupted:
    """The connection was lost while the handler ran. Whose fault that was is not known."""

    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fenced:
    """The handler ran, and nothing was kept: its claim is another's by now, or the lease that covered it ran out."""

    attempt: int


Result: TypeAlias = Handled | Known | Early | Returned | Raised | Interrupted | Fenced


class LostTransaction(PermanentError):
    """A handler ended the attempt's transaction, or went on after an error in it: what it did cannot be kept."""


class _Abandoned(Exception):
    """The attempt's own statements failed with *error* after the handler had returned."""

    def __init__(self, error: StoreUnavailable | LeaseLost) -> None:
        super().__init__(str(error))
        self.error = error


class Attempts:
    """Runs attempts for one group."""

    def __init__(
        self,
        *,
        group: str,
        ledger: Ledger,
        horizon: timedelta,
        skips_dead: bool = False,
        result_bytes_max: int = Limits().result_bytes_max,
        abandoned: Abandoned | None = None,
    ) -> None:
        self.group = group
        self.result_bytes_max = result_bytes_max
        self.skips_dead = skips_dead
        self.ledger = ledger
        self._horizon = horizon
        self._abandoned = abandoned

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
            turn = await gate.enter(connection, self.group, job.event, horizon=self._horizon)
            if not turn.may_run:
                return Early(turn=turn)
        mark = mark_of(self.group, job.handler.name) if job.handler.wants_session else None
        claim = Claim(
            event=job.event,
            handler=job.handler.name,
            mark=mark,
            is_stored=job.owner is not None,
            is_replay=job.is_replay,
        )
        if job.handler.ledger is LedgerMode.NONE:
            taken: int | State = await self.ledger.begin(connection, claim)
        else:
            taken = await self._claim(connection, claim)
        if isinstance(taken, State):
            return Known(state=taken)
        if (watch := WATCH.get()) is not None:
            watch.attempt = taken
        arguments = arguments_of(self.group, job.handler, job.event, payload, attempt=taken)
        finish = _Finish(self, connection, job, mark=mark, attempt=taken)
        result = await guarded(lambda: self._call(slot, job, arguments, finish), attempt=taken)
        # A statement that a deadline cut short takes its connection with it: that is the handler's doing.
        if isinstance(result, Raised) and slot.is_lost and not isinstance(result.error, TimeoutError):
            return Interrupted(attempt=taken)
        return result

    async def _call(self, slot: SlotConnection, job: Job, arguments: dict[str, object], finish: "_Finish") -> Result:
        if (refused := await refusal(job.handler, job.event)) is not None:
            return Returned(attempt=finish.attempt, outcome=refused)
        if not job.handler.wants_session:
            return await finish(await invoke(job.handler, job.event, arguments, abandoned=self._abandoned), None)
        async with slot.session(tenant=job.event.tenant) as session:
            try:
                returned = await invoke_with(job.handler, job.event, arguments, session, abandoned=self._abandoned)
            except (Unstoppable, asyncio.CancelledError):
                slot.sever()  # it may use the session still: nothing of that may be kept, or waited for
                raise
            return await finish(returned, session)

    async def _claim(self, connection: Connection, claim: Claim) -> int | State:
        """Claim, but wait for a twin only so long: a frozen process would take one of our slots for each of its own."""
        try:
            async with asyncio.timeout(_CLAIM_S):
                return await self.ledger.claim(connection, claim)
        except TimeoutError:
            return State.RUNNING


class _Finish:
    """Ends an attempt whose handler has returned, while its session, if it had one, is still there."""

    def __init__(self, attempts: Attempts, connection: Connection, job: Job, *, mark: str | None, attempt: int) -> None:
        self._attempts = attempts
        self._connection = connection
        self._job = job
        self._mark = mark
        self.attempt = attempt

    async def __call__(self, returned: object, session: AsyncSession | None) -> Result:
        """Commit if the handler says it is done and the transaction is still the one that was claimed in."""
        outcome = outcome_of(returned, self._job.handler)
        if not isinstance(outcome, Done):
            return Returned(attempt=self.attempt, outcome=outcome)
        result = result_text(outcome.result, bytes_max=self._attempts.result_bytes_max)
        is_kept = session is None or await finish_session(session)
        if not (is_kept and is_marked(self._connection, self._mark)):
            # COMMIT would become ROLLBACK without a word, or the ledger row is gone: the event would be lost.
            raise LostTransaction(
                f"handler {self._job.handler.name}: want the transaction left open and whole,"
                " got one that was ended, or went on after a database error"
            )
        if self._job.handler.ledger is LedgerMode.NONE and self._job.owner is not None:
            await self._write(self._note_done)
        if self._job.is_last:
            await self._write(self._close_books)
        if result is not None:
            await self._write(partial(self._keep, result))
        try:
            await self._connection.commit()
        except psycopg.Error as error:
            if self._connection.closed:  # whether it was committed is unknown: the next claim will tell
                raise _Abandoned(StoreUnavailable("database: want the answer to a commit, got none")) from error
            raise
        return Handled(attempt=self.attempt, result=result)

    async def _close_books(self) -> None:
        """Move the key on and remove the work row, in the order in which every transaction writes tables."""
        event, owner = self._job.event, self._job.owner
        if event.ordering is not None:
            passed = [(gate.key_of(self._attempts.group, event), event.ordering.number)]
            await gate.advance(self._connection, passed, unless_dead=not self._attempts.skips_dead)
        if owner is not None:
            await work.finish(self._connection, self._attempts.group, [event.id], owner=owner)

    async def _note_done(self) -> None:
        """Of a handler that claims nothing the ledger only says something once it failed: that is over."""
        job = self._job
        done = Entry(handler=job.handler.name, state=State.DONE, attempts=self.attempt)
        await self._attempts.ledger.record(self._connection, job.event, [done])

    async def _keep(self, result: str) -> None:
        handler = self._job.handler.name
        await results.put(self._connection, self._attempts.group, self._job.event, handler=handler, result=result)

    async def _write(self, statements: Callable[[], Awaitable[None]]) -> None:
        """Run *statements* of ours, whose failure is not the handler's."""
        try:
            await statements()
        except LeaseLost as error:
            raise _Abandoned(error) from error
        except psycopg.Error as error:
            raise _Abandoned(StoreUnavailable(f"database: want a commit, got {type(error).__name__}")) from error


async def guarded(call: Callable[[], Awaitable[T]], *, attempt: int) -> T | Raised:
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
