"""Calling a handler: what it is given, where its deadline holds, and what it meant by what it returned."""

from collections.abc import Awaitable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final, cast

import structlog
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from consumer.context import Context
from consumer.decide.delivery import trail_of
from consumer.engine.abandoned import WATCH, Abandoned, within
from consumer.outcome import DeadLetter, Done, Drop, Outcome, Retry, Snooze, Throttled
from consumer.registry import Handler, Role
from outbox.errors import PermanentError
from outbox.event import Event
from outbox.tenancy import enter_tenant, tenant_scope
from outbox.trail import enter_trail, trail_scope

_log: Final = structlog.get_logger("consumer.handler")
_DONE: Final = Done()


def arguments_of(
    group: str, handler: Handler, event: Event, payload: object, *, attempt: int, fencing_token: int | None = None
) -> dict[str, object]:
    """What *handler* is called with for *event*, but for a session."""
    arguments: dict[str, object] = {}
    for name, role in handler.parameters:
        if role is Role.CONTEXT:
            arguments[name] = _context(group, handler, event, attempt, fencing_token)
        elif role is not Role.SESSION:
            arguments[name] = payload
    return arguments


def _context(group: str, handler: Handler, event: Event, attempt: int, fencing_token: int | None) -> Context:
    return Context(
        event=event,
        attempt=attempt,
        deadline=datetime.now(UTC) + timedelta(seconds=handler.deadline_s),
        # A hook asks other systems for what its handler told them.
        idempotency_key=f"{group}:{event.id}:{handler.asks_for or handler.name}",
        log=_log.bind(
            event_id=str(event.id), event_type=event.type, tenant=event.tenant, handler=handler.name, attempt=attempt
        ),
        fencing_token=fencing_token,
    )


def invoke(
    handler: Handler, event: Event, arguments: dict[str, object], *, abandoned: Abandoned | None = None
) -> Awaitable[object]:
    """Call *handler* within its deadline and return what it returns; a sync one blocks this loop.

    Raises what it raises, and Unstoppable for an async one that went on past its deadline: *abandoned* counts it.
    """
    if not handler.is_async:
        return _block(handler, event, arguments)

    def begin() -> Awaitable[object]:
        enter_tenant(event.tenant)
        enter_trail(partial(trail_of, event))
        return cast("Awaitable[object]", handler.function(**arguments))

    # A task of its own: context variables that a handler sets must not reach the next event.
    return within(begin, handler.deadline_s, name=handler.name, abandoned=abandoned)


async def _block(handler: Handler, event: Event, arguments: dict[str, object]) -> object:
    with _scopes(event), _watched():
        return handler.function(**arguments)


async def invoke_with(
    handler: Handler,
    event: Event,
    arguments: dict[str, object],
    session: AsyncSession,
    *,
    abandoned: Abandoned | None = None,
) -> object:
    """As ``invoke``, with *session* for the parameter that wants one."""
    name = next(name for name, role in handler.parameters if role is Role.SESSION)
    if handler.is_async:
        return await invoke(handler, event, {**arguments, name: session}, abandoned=abandoned)

    def run(sync_session: Session) -> object:
        with _scopes(event), _watched():
            return handler.function(**arguments, **{name: sync_session})

    return await session.run_sync(run)


def _watched() -> AbstractContextManager[None]:
    watch = WATCH.get()
    return nullcontext() if watch is None else watch.running()


@contextmanager
def _scopes(event: Event) -> Iterator[None]:
    """Let what is emitted inside belong to the event's tenant and name the event as its cause."""
    with tenant_scope(event.tenant), trail_scope(trail_of(event)):
        yield


def outcome_of(returned: object, handler: Handler) -> Outcome:
    """What a handler meant that returned *returned*."""
    match returned:
        case None:
            return _DONE
        case Done() | Retry() | Snooze() | Throttled() | DeadLetter() | Drop():
            return returned
        case _:
            raise PermanentError(f"handler {handler.name}: want an Outcome or None, got {type(returned).__name__}")
