"""Looks from time to time at what waits, for whoever watches the metrics. Nothing depends on it."""

import asyncio
import contextlib
from typing import Final

import structlog

from outbox.errors import OutboxError
from relay.gauges import Gauges
from relay.log import standing, store

log = structlog.get_logger(__name__)

_CONNECT_S: Final = 5.0
_STATEMENT_S: Final = 5.0


async def run_lookout(url: str, *, stop: asyncio.Event, every_s: float, gauges: Gauges) -> None:
    """Write what waits to *gauges* every *every_s* seconds, until *stop*; nothing where it cannot be known.

    It never fails: it tries again.
    """
    connection: store.Connection | None = None
    try:
        while not stop.is_set():
            try:
                if connection is None:
                    connection = await store.connect(
                        url, store.ANY_PLAN, connect_s=_CONNECT_S, statement_s=_STATEMENT_S
                    )
                found = await standing.read(connection, within_s=_STATEMENT_S)
                gauges.oldest_unpublished_s, gauges.deferred_rows = found.oldest_unpublished_s, found.deferred
            except OutboxError as error:
                log.info("could not look at what waits", reason=str(error))
                gauges.oldest_unpublished_s, gauges.deferred_rows = None, {}
                closing, connection = connection, None
                await store.close(closing)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(every_s):
                    await stop.wait()
    finally:
        await store.close(connection)
