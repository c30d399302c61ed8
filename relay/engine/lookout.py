"""Looks from time to time at what waits, for whoever watches the metrics. Nothing depends on it."""

import asyncio
import contextlib
import math
import time
from dataclasses import dataclass
from typing import Final

import structlog

from outbox.errors import OutboxError
from relay.gauges import Gauges
from relay.log import standing, store

log = structlog.get_logger(__name__)

_CONNECT_S: Final = 5.0
_STATEMENT_S: Final = 5.0
# What lasts, as a missing permission does, is said anew so often.
_SAY_AGAIN_S: Final = 3600.0


async def run_lookout(url: str, *, stop: asyncio.Event, every_s: float, gauges: Gauges) -> None:
    """Write what waits to *gauges* every *every_s* seconds, until *stop*; nothing where it cannot be known.

    It never fails: it tries again.
    """
    lookout = Lookout(url=url, gauges=gauges)
    try:
        while not stop.is_set():
            await lookout.look()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(every_s):
                    await stop.wait()
    finally:
        await lookout.close()


@dataclass(slots=True, eq=False, kw_only=True)
class Lookout:
    """On one session. Why nothing is known is logged once, and again after *say_again_s*."""

    url: str
    gauges: Gauges
    say_again_s: float = _SAY_AGAIN_S
    _connection: store.Connection | None = None
    _reason: str | None = None
    _said_at: float = -math.inf

    async def look(self) -> None:
        """Write what waits, or that it is not known."""
        gauges = self.gauges
        try:
            if self._connection is None:
                self._connection = await store.connect(
                    self.url, store.ANY_PLAN, connect_s=_CONNECT_S, statement_s=_STATEMENT_S
                )
            found = await standing.read(self._connection, within_s=_STATEMENT_S)
            gauges.oldest_unpublished_s, gauges.deferred_rows = found.oldest_unpublished_s, found.deferred
            self._reason = None
        except OutboxError as error:
            gauges.oldest_unpublished_s, gauges.deferred_rows = None, {}
            self._say(str(error), time.monotonic())
            await self.close()

    async def close(self) -> None:
        """Let the session go; the next look opens another."""
        connection, self._connection = self._connection, None
        await store.close(connection)

    def _say(self, reason: str, now: float) -> None:
        if reason != self._reason or now - self._said_at >= self.say_again_s:
            self._reason, self._said_at = reason, now
            log.info("could not look at what waits", reason=reason)
