"""A connection of the pump's own, and a job that is done again and again."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final, cast

import psycopg
import structlog
from psycopg.pq import TransactionStatus

from consumer.decide.report import report_of
from consumer.store.stored import Connection
from outbox.errors import BrokerUnavailable, StoreUnavailable
from outbox.shell.database import connect, store_errors

_AFTER_FAILURE_S: Final = 1.0
_GATHER_S: Final = 0.02
_log = structlog.get_logger("consumer.engine.pump")


class Desk:
    """One autocommit connection, opened when needed, used by one job at a time."""

    def __init__(self, url: str, *, name: str) -> None:
        self._url = url
        self._name = name
        self._connection: Connection | None = None
        self._lock = asyncio.Lock()

    @asynccontextmanager
    async def use(self) -> AsyncIterator[Connection]:
        """The connection, in no transaction.

        Raises:
            StoreUnavailable: the database cannot be reached, or what ran inside met that.
            SchemaMissing, ConfigError: what ran inside met that.
        """
        async with self._lock:
            connection = await self._open()
            try:
                with store_errors():
                    yield connection
            finally:
                if connection.closed or connection.pgconn.transaction_status != TransactionStatus.IDLE:
                    await self._close()

    async def close(self) -> None:
        """Close. Safe to repeat."""
        async with self._lock:
            await self._close()

    async def _open(self) -> Connection:
        if self._connection is None:
            self._connection = cast("Connection", await connect(self._url, application_name=self._name))
        return self._connection

    async def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()


async def forever(
    job: Callable[[], Awaitable[float]],
    *,
    store_ok: asyncio.Event,
    lose_store: Callable[[], None],
    wake: asyncio.Event | None = None,
) -> None:
    """Do *job*, which says after how many seconds to do it again, until cancelled; *wake* makes it sooner.

    Waits while the database is away. An outage of database or broker spends nothing, and a bug is logged: neither
    ends the loop. A missing schema or privilege does.
    """
    while True:
        await store_ok.wait()
        if wake is not None:
            wake.clear()
        try:
            pause_s = await job()
        except StoreUnavailable:
            lose_store()
            pause_s = 0.0
        except BrokerUnavailable as error:
            _log.info("broker did not take it", job=getattr(job, "__qualname__", ""), error=str(error))
            pause_s = _AFTER_FAILURE_S
        except psycopg.Error as error:
            _log.error("job failed", job=getattr(job, "__qualname__", ""), error=report_of(error).message)
            pause_s = _AFTER_FAILURE_S
        await _pause(pause_s, wake)


async def _pause(seconds: float, wake: asyncio.Event | None) -> None:
    if wake is None:
        await asyncio.sleep(seconds)
        return
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await wake.wait()
            # What wakes it may come thousands of times a second; the database is asked for some of them at once.
            await asyncio.sleep(_GATHER_S)
