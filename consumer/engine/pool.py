"""Processes for the handlers that ask for one of their own: they may hold the GIL, and can be killed.

Each handles one call at a time and is killed at the deadline. One that dies is replaced, and it is known of what.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, cast

import structlog

from consumer.context import Context
from consumer.decide.crossing import error_from_json, outcome_from_json
from consumer.engine.abandoned import UNWIND_S
from consumer.registry import Handler
from outbox.errors import TransientError
from outbox.event import Event
from outbox.shell.child import Child, Note
from outbox.wire import encode

_AGAIN_S: Final = 0.5
_AGAIN_MAX_S: Final = 10.0


class ProcessDied(TransientError):
    """The process that ran a handler ended before the handler did."""


class Pool:
    """At most *size* processes, started when they are first needed by *command*. Belongs to the engine's loop."""

    def __init__(self, command: Callable[[], Sequence[str]], *, size: int) -> None:
        self._command = command
        self._free = asyncio.Semaphore(size)
        self._idle: list[Child] = []
        self._all: set[Child] = set()
        self._log = structlog.get_logger("consumer.engine.pool")

    @property
    def alive(self) -> int:
        """How many there are."""
        return len(self._all)

    async def call(self, handler: Handler, event: Event, arguments: dict[str, object]) -> object:
        """Call *handler* in a process of its own and return what it returned; waits while all are busy.

        Raises what it raises, TimeoutError at its deadline, which runs from the call's beginning there, and
        ProcessDied.
        """
        async with self._free:
            child = self._idle.pop() if self._idle else await self._start()
            try:
                answer = await self._ask(child, handler, event, arguments)
            except BaseException:
                await self._end(child)
                raise
            if answer is None:
                code = await self._end(child)
                raise ProcessDied(f"handler {handler.name}: want its process to outlive it, got its end with {code}")
            self._idle.append(child)
        return _read(answer)

    async def close(self) -> None:
        """Kill them all."""
        for child in list(self._all):
            await self._end(child)

    async def _start(self) -> Child:
        """Start one, again and again until it has loaded the app: nothing that happens before is a handler's doing."""
        pause_s = _AGAIN_S
        while True:
            child = await Child.start(self._command())
            self._all.add(child)
            try:
                if await child.link.receive() is not None:
                    return child
            except BaseException:
                await self._end(child)
                raise
            self._log.error("isolated process not started", exit_code=await self._end(child), again_s=pause_s)
            await asyncio.sleep(pause_s)
            pause_s = min(_AGAIN_MAX_S, pause_s * 2)

    async def _ask(self, child: Child, handler: Handler, event: Event, arguments: dict[str, object]) -> Note | None:
        context = next((value for value in arguments.values() if isinstance(value, Context)), None)
        message = encode(event)
        content: dict[str, object] = {
            "handler": handler.name,
            "tenant": event.tenant,
            "tier": int(event.tier),
            "message": {
                "message_id": message.message_id,
                "type": message.type,
                "app_id": message.app_id,
                "content_type": message.content_type,
                "headers": dict(message.headers),
            },
            "attempt": 1 if context is None else context.attempt,
            "fencing_token": None if context is None else context.fencing_token,
        }
        child.link.send(content, message.body)
        # One that is async is cancelled there, and has its time to unwind.
        grace_s = UNWIND_S + 1.0 if handler.is_async else 0.0
        async with asyncio.timeout(handler.deadline_s + grace_s):
            return await child.link.receive()

    async def _end(self, child: Child) -> int:
        child.kill()
        self._all.discard(child)
        return await child.ended()


def _read(answer: Note) -> object:
    error = answer.content.get("error")
    if error is not None:
        raise error_from_json(cast("dict[str, object]", error))
    return outcome_from_json(answer.content)
