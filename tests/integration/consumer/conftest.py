"""Connections to a migrated database, as the consumer's SQL side is given them."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import psycopg
import pytest

from consumer.store.stored import Connection

Connect = Callable[[], Awaitable[Connection]]


@pytest.fixture
async def connect(migrated_database: str) -> AsyncIterator[Connect]:
    """Opens connections with autocommit; each stands for a process."""
    async with AsyncExitStack() as opened:

        async def open_one() -> Connection:
            connection = await psycopg.AsyncConnection.connect(migrated_database, autocommit=True)
            return await opened.enter_async_context(connection)

        yield open_one


@pytest.fixture
async def connection(connect: Connect) -> Connection:
    """One connection with autocommit."""
    return await connect()
