"""Suspects are run one at a time per host, by a process that runs nothing else and ends with the one that ends it.

This is the side that starts those processes, sees how they end, and says so in the database.
"""

import asyncio
import fcntl
import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final
from uuid import UUID, uuid4

import structlog

from consumer.api import Consumer
from consumer.limits import Limits
from consumer.store import incarnation, start, work
from consumer.store.desk import Desk
from outbox.errors import StoreUnavailable
from outbox.shell.child import Child

_LOOK_S: Final = 5.0
_NEXT_S: Final = 0.2
_AGAIN_S: Final = 5.0
_AGAIN_MAX_S: Final = 60.0
_END_S: Final = 5.0
#: How long such a process goes on with one suspect after the other, where they end well.
GO_ON_S: Final = 10.0
#: What starting it and ending it may take beside the handler's own time.
MARGIN_S: Final = 30.0


def alone_s(consumer: Consumer, limits: Limits) -> float:
    """How long a process may take that runs suspects.

    The last one may take as long as all handlers of its type may, or the limit, whichever is longer.
    """
    types = (consumer.registry.handlers_of(event_type) for event_type in consumer.registry.types)
    longest_s = max([limits.suspect_s, *(sum(handler.deadline_s for handler in handlers) for handlers in types)])
    return GO_ON_S + longest_s


class Suspects:
    """One group's, in this process. *command* is the line that runs one suspect by an incarnation of a given id."""

    def __init__(
        self, *, group: str, desk: Desk, command: Callable[[UUID], Sequence[str]] | None, within_s: float
    ) -> None:
        """*within_s*: a process that takes longer is killed. Without a *command* this process runs none."""
        self._group = group
        self._desk = desk
        self._command = command
        self._within_s = within_s
        self._failures = 0
        self._log = structlog.get_logger("consumer.engine.suspects")

    async def look(self) -> float:
        """Have suspects run, if one is due and no other process of this host runs any; says when to do it again."""
        if self._command is None:
            return _LOOK_S
        async with self._desk.use() as connection:
            is_due = await work.has_suspects(connection, self._group)
        lock = _lock() if is_due else None
        if lock is None:
            return _LOOK_S
        try:
            return await self._run(self._command, lock)
        finally:
            os.close(lock)

    async def _run(self, command: Callable[[UUID], Sequence[str]], lock: int) -> float:
        id_ = uuid4()
        # The lock is its own: held for as long as it lives, whoever ends first.
        child = await Child.start(command(id_), keeps=[lock])
        try:
            async with asyncio.timeout(self._within_s):
                code = await child.ended()
        except TimeoutError:
            child.kill()
            code = await child.ended()
        except asyncio.CancelledError:
            await self._call_off(child, id_)
            raise
        if code == 0:
            self._failures = 0
            return _NEXT_S
        return await self._bury(id_, code)

    async def _bury(self, id_: UUID, code: int) -> float:
        """The process has died: what it had is free at once. The start that it has counted stays."""
        async with self._desk.use() as connection:
            await incarnation.expire(connection, id_)
            reaped = await incarnation.reap(connection, self._group)
        self._log.warning("suspect's process died", exit_code=code, released=reaped.released)
        if reaped.released:
            self._failures = 0
            return _NEXT_S
        self._failures += 1  # it has not come as far as an event: that will not change at once
        return min(_AGAIN_MAX_S, _AGAIN_S * 2.0 ** min(self._failures, 10))

    async def _call_off(self, child: Child, id_: UUID) -> None:
        """This process ends: the other ends too, and its event is charged nothing for that."""
        child.link.close()
        try:
            async with asyncio.timeout(_END_S):
                await child.ended()
        except TimeoutError:
            child.kill()
            await child.ended()
            with suppress(StoreUnavailable):
                async with self._desk.use() as connection:
                    await start.forgive(connection, id_)
                    await incarnation.end(connection, id_)


def _lock() -> int | None:
    """A lock of this host and user, for as long as the descriptor is open in any process; None if it is taken."""
    path = os.path.join(tempfile.gettempdir(), f"fairpost-suspects-{os.getuid()}.lock")
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor
