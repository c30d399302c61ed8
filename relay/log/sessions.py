"""The database connections of one tenure."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from outbox.errors import StoreUnavailable
from relay.limits import Limits
from relay.log import guard, store


@dataclass(frozen=True, slots=True, kw_only=True)
class Sessions:
    """*hot* polls and reads rows, one statement at a time, by the engine alone."""

    url: str
    limits: Limits
    hot: store.Connection
    _write: store.Connection
    _origin: guard.Origin
    _is_writing: asyncio.Lock = field(default_factory=asyncio.Lock)
    _beside: set[store.Connection] = field(default_factory=set)

    @contextlib.asynccontextmanager
    async def writing(self) -> AsyncIterator[store.Connection]:
        """The connection that moves leases and positions; one transaction at a time has it."""
        async with self._is_writing:
            yield self._write

    @contextlib.asynccontextmanager
    async def aside(self) -> AsyncIterator[store.Connection]:
        """One more, for what may take long and must not keep the others waiting."""
        connection = await _connect(self.url, self.limits, statement_s=self.limits.survey_s)
        self._beside.add(connection)
        try:
            _check_same(await guard.check(connection, within_s=self.limits.wait_s), self._origin)
            yield connection
        finally:
            self._beside.discard(connection)
            await store.close(connection)

    def sever(self) -> None:
        """End what runs beside the engine, with StoreUnavailable and at once, whether or not the server answers."""
        for connection in (self._write, *self._beside):
            store.sever(connection)


@contextlib.asynccontextmanager
async def opened(url: str, limits: Limits) -> AsyncIterator[Sessions]:
    """Connect to *url* and check that it is the database that the stored positions belong to.

    Every connection is checked, those opened later too: an address may lead to another server from one
    connection to the next, and a snapshot read on one must never be stored on the other.

    Raises:
        StoreUnavailable: it cannot be reached, or it was two servers.
        WrongDatabase, SchemaMissing, ConfigError: it is not ours to use.
    """
    async with contextlib.AsyncExitStack() as stack:
        connections: list[store.Connection] = []
        for _ in range(2):
            connections.append(await _connect(url, limits, statement_s=limits.wait_s))
            stack.push_async_callback(store.close, connections[-1])
        hot, write = connections
        origin = await guard.check(hot, within_s=limits.wait_s)
        _check_same(await guard.check(write, within_s=limits.wait_s), origin)
        yield Sessions(url=url, limits=limits, hot=hot, _write=write, _origin=origin)


async def _connect(url: str, limits: Limits, *, statement_s: float) -> store.Connection:
    return await store.connect(url, store.FIXED_PLANS, connect_s=limits.wait_s, statement_s=statement_s)


def _check_same(found: guard.Origin, origin: guard.Origin) -> None:
    if found != origin:
        raise StoreUnavailable(f"the database is unavailable: want one server, got two, {origin} and {found}")
