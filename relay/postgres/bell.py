"""Wakes consumers beside what is published. Nothing depends on it: while it cannot, they look by themselves."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

import structlog

from outbox.backoff import Jitter, backoff_s
from outbox.errors import OutboxError
from outbox.queues.session import deadline
from outbox.queues.wakes import Wake, wake
from outbox.shell import severed
from outbox.shell.severed import Connection

log = structlog.get_logger(__name__)

# However many batches are committed, consumers are woken once in this time.
_EVERY_S: Final = 0.005
_AGAIN_MAX_S: Final = 30.0


class Bell:
    """Wakes that are wanted, from one connection to the next."""

    def __init__(self, connect: Callable[[], Awaitable[Connection]], *, within_s: float) -> None:
        """Args:
        within_s: how long the server may take for one call.
        """
        self._connect = connect
        self._within_s = within_s
        self._rng = random.Random()  # noqa: S311 - it spreads reconnects, and hides nothing
        self._wanted: dict[Wake, None] = {}
        self._is_wanted = asyncio.Event()

    def ring(self, wakes: Iterable[Wake]) -> None:
        """Have consumers woken, soon."""
        self._wanted.update(dict.fromkeys(wakes))
        self._is_wanted.set()

    async def toll(self) -> None:
        """Wake whoever is to be woken, until cancelled."""
        failures = 0
        while True:
            try:
                connection = await self._connect()
                failures = 0
                await self._toll(connection)
            except OutboxError as error:
                failures += 1
                if failures == 1:
                    log.warning("consumers are not woken, they look by themselves", reason=str(error))
                await asyncio.sleep(backoff_s(failures, cap_s=_AGAIN_MAX_S, jitter=Jitter.EQUAL, rng=self._rng))

    async def _toll(self, connection: Connection) -> None:
        try:
            while True:
                await self._is_wanted.wait()
                self._is_wanted.clear()
                wanted, self._wanted = self._wanted, {}
                async with deadline(connection, self._within_s):
                    await wake(connection, wanted)
                await asyncio.sleep(_EVERY_S)
        finally:
            severed.sever(connection)
            await severed.close(connection)
