"""One try of a leased handler: claimed before, completed after, and nothing of the database held in between.

Claims and completions of all slots are written together (``engine.group_commit``). What a claim is, and when it is
abandoned or fenced, stands in ``store.claims``. An abandoned claim needs nobody who looks for it: its event is an
unsettled delivery or a work row, so it comes to another process, whose claim takes it over (``Taken.unended`` counts
those starts) as soon as the lease of the first has run out.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Final, Protocol, TypeVar
from uuid import UUID

import structlog

from consumer.decide.delivery import Refused, read_payload
from consumer.decide.order import Turn
from consumer.decide.result import result_text
from consumer.engine.attempt import Early, Fenced, Handled, Job, Known, Result, Returned, guarded
from consumer.engine.authorisation import refusal
from consumer.engine.calling import arguments_of, outcome_of
from consumer.engine.group_commit import GroupCommit
from consumer.outcome import DeadLetter, Done
from consumer.registry import Handler
from consumer.store.claims import Answer, Ask, Claims, Completion, Taken
from consumer.store.desk import Desk
from consumer.store.ledger import State
from outbox.errors import PermanentError, StoreUnavailable
from outbox.event import Event

T = TypeVar("T")
_AGAIN_S: Final = 0.05
_AGAIN_MAX_S: Final = 5.0
_BATCH_S: Final = 1.0
_PATIENCE_S: Final = 0.1
_log = structlog.get_logger("consumer.engine.leased")


class Invoke(Protocol):
    """Calls *handler* for *event*, where it may block if it does; raises what it raises."""

    def __call__(self, handler: Handler, event: Event, arguments: dict[str, object]) -> Awaitable[object]:
        """Once."""
        ...


class Leased:
    """Runs attempts of leased handlers for one group, on the engine's loop."""

    def __init__(
        self,
        *,
        group: str,
        claims: Claims,
        incarnation: Callable[[], UUID],
        desks: tuple[Desk, Desk],
        skips_dead: bool,
        result_bytes_max: int,
    ) -> None:
        """*incarnation* is this process's at the moment; *desks* are the connections to claim and to complete on."""
        self._group = group
        self._claims = claims
        self._incarnation = incarnation
        self._take_desk, self._complete_desk = desks
        self._skips_dead = skips_dead
        self._result_bytes_max = result_bytes_max
        self._takes: GroupCommit[Ask, Answer] = GroupCommit(self._take)
        self._completes: GroupCommit[Completion, bool] = GroupCommit(self._complete)

    async def run(self, job: Job, *, invoke: Invoke) -> Result:
        """Try *job* once. What is returned with a token is the caller's to write down, and that ends the claim.

        Raises:
            StoreUnavailable: it did not begin, as far as is known. Run it again: a claim of one's own is taken again.
            LeaseLost: it is done, but that could not be kept, for its work row is another process's by now.
        """
        payload = read_payload(job.handler, job.event, job.body)
        if isinstance(payload, Refused):
            return Returned(attempt=1, outcome=DeadLetter(reason=payload.reason, category=payload.category))
        claim = await self._takes.ask(
            Ask(event=job.event, handler=job.handler.name, is_stored=job.owner is not None, is_replay=job.is_replay)
        )
        if isinstance(claim, Turn):
            return Early(turn=claim)
        if isinstance(claim, State):
            return Known(state=claim)
        if claim.unended:
            self._tell("claim taken over", job, claim)
        result = await guarded(lambda: self._call(job, payload, claim, invoke), attempt=claim.attempt)
        if isinstance(result, Handled):
            return await self._end(job, claim, result)
        return replace(result, token=claim.token)

    async def _call(self, job: Job, payload: object, claim: Taken, invoke: Invoke) -> Handled | Returned:
        handler, attempt = job.handler, claim.attempt
        if handler.checks.authorise is not None and (refused := await refusal(handler, job.event)) is not None:
            return Returned(attempt=attempt, outcome=refused)
        # Only an earlier start may have had the effect.
        hook = handler.already_done if attempt > 1 or claim.unended or job.is_replay else None
        if hook is not None and await self._is_already_done(hook, job, payload, claim, invoke):
            self._tell("found already done", job, claim)
            return Handled(attempt=attempt)
        outcome = outcome_of(await self._ask(handler, job.event, payload, claim, invoke), handler)
        if not isinstance(outcome, Done):
            return Returned(attempt=attempt, outcome=outcome)
        return Handled(attempt=attempt, result=result_text(outcome.result, bytes_max=self._result_bytes_max))

    async def _is_already_done(self, hook: Handler, job: Job, payload: object, claim: Taken, invoke: Invoke) -> bool:
        answer = await self._ask(hook, job.event, payload, claim, invoke)
        if not isinstance(answer, bool):
            raise PermanentError(f"{hook.name}: want True or False, got {type(answer).__name__}")
        return answer

    def _ask(self, handler: Handler, event: Event, payload: object, claim: Taken, invoke: Invoke) -> Awaitable[object]:
        arguments = arguments_of(self._group, handler, event, payload, attempt=claim.attempt, fencing_token=claim.token)
        return invoke(handler, event, arguments)

    async def _end(self, job: Job, claim: Taken, handled: Handled) -> Handled | Fenced:
        completion = Completion(
            event=job.event,
            handler=job.handler.name,
            claim=claim,
            result=handled.result,
            is_last=job.is_last,
            unless_dead=not self._skips_dead,
            owner=job.owner,
        )
        # The effect is out in the world: an outage is waited for rather than have it happen again.
        if await insist(lambda: self._completes.ask(completion)):
            return handled
        self._tell("claim lost", job, claim)
        return Fenced(attempt=claim.attempt)

    async def close(self) -> None:
        """End what is being written."""
        await self._takes.close()
        await self._completes.close()

    async def _take(self, asks: Sequence[Ask]) -> Sequence[Answer]:
        try:
            async with asyncio.timeout(_BATCH_S), self._take_desk.use() as connection:
                return await self._claims.take(connection, asks, incarnation=self._incarnation())
        except TimeoutError:
            # One row is kept by a transaction that stands still: nobody else is to wait for it.
            return [await self._take_alone(ask) for ask in asks]

    async def _take_alone(self, ask: Ask) -> Answer:
        async with self._take_desk.use() as connection:
            return await self._claims.take_patiently(
                connection, ask, incarnation=self._incarnation(), patience_s=_PATIENCE_S
            )

    async def _complete(self, completions: Sequence[Completion]) -> Sequence[bool]:
        try:
            async with asyncio.timeout(_BATCH_S), self._complete_desk.use() as connection:
                tokens = await self._claims.complete(connection, completions)
        except TimeoutError as error:
            if len(completions) > 1:
                raise  # and they are tried one by one
            raise StoreUnavailable("database: want a completion, got none in time") from error
        return [one.claim.token in tokens for one in completions]

    def _tell(self, what: str, job: Job, claim: Taken) -> None:
        """Every change of a claim's owner, and what follows from it, is told."""
        _log.warning(
            what,
            event_id=str(job.event.id),
            event_type=job.event.type,
            tenant=job.event.tenant,
            handler=job.handler.name,
            attempt=claim.attempt,
            unended=claim.unended,
            token=claim.token,
            incarnation=str(claim.incarnation),
        )


async def insist(write: Callable[[], Awaitable[T]]) -> T:
    """Do *write* until the database has answered, with growing pauses of up to 5 s; for what must not be lost.

    It is for whoever holds a claim: should its lease run out meanwhile, the write itself is refused.
    """
    pause_s = _AGAIN_S
    while True:
        try:
            return await write()
        except StoreUnavailable as error:
            _log.warning("not written down yet", reason=str(error), pause_s=pause_s)
        await asyncio.sleep(pause_s)
        pause_s = min(_AGAIN_MAX_S, pause_s * 2)
