"""The proxy's cuts, on a real PostgreSQL link."""

import asyncio
from collections.abc import AsyncIterator
from typing import LiteralString
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from tests.support.proxy import Moment, Proxy


def _through(proxy: Proxy, dsn: str) -> str:
    parts = urlsplit(dsn)
    login = parts.netloc.rpartition("@")[0]
    return urlunsplit(parts._replace(netloc=f"{login}@127.0.0.1:{proxy.port}"))


@pytest.fixture
async def proxy(database: str) -> AsyncIterator[Proxy]:
    parts = urlsplit(database)
    async with Proxy(host=parts.hostname or "", port=parts.port or 5432, speaks="postgres") as opened:
        yield opened


async def _execute(dsn: str, *statements: LiteralString) -> None:
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        for statement in statements:
            await connection.execute(statement)


async def _rows(dsn: str) -> int:
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        return len(await (await connection.execute("select a from t")).fetchall())


@pytest.mark.parametrize(
    ("moment", "is_committed", "client_knows"),
    [
        ("before_request", False, False),
        ("after_request", True, False),
        ("before_answer", True, False),
        ("after_answer", True, True),
    ],
)
async def test_a_commit_is_cut_at_the_moment_asked_for(
    proxy: Proxy, database: str, moment: Moment, *, is_committed: bool, client_knows: bool
) -> None:
    await _execute(database, "create table t (a int)")
    dsn = _through(proxy, database)
    proxy.cut_at_commit(moment, nth=2)
    await _execute(dsn, "insert into t values (1)")
    assert not proxy.fired.is_set()
    connection = await psycopg.AsyncConnection.connect(dsn)
    await connection.execute("insert into t values (2)")
    if client_knows:
        await connection.commit()
    else:
        with pytest.raises(psycopg.OperationalError):
            await connection.commit()
    await asyncio.wait_for(proxy.fired.wait(), 5)
    await connection.close()
    # The server may still be at the commit whose asker is gone: the lock waits for it.
    await _execute(database, "lock table t in access exclusive mode")
    assert await _rows(database) == (2 if is_committed else 1)


async def test_a_frozen_link_answers_nothing_and_loses_nothing(proxy: Proxy, database: str) -> None:
    async with await psycopg.AsyncConnection.connect(_through(proxy, database)) as connection:
        proxy.freeze()
        asked = asyncio.create_task(connection.execute("select 1"))
        done, _ = await asyncio.wait([asked], timeout=0.3)
        assert not done
        proxy.thaw()
        assert await (await asyncio.wait_for(asked, 5)).fetchone() == (1,)


async def test_a_cut_ends_links_and_takes_new_ones(proxy: Proxy, database: str) -> None:
    dsn = _through(proxy, database)
    connection = await psycopg.AsyncConnection.connect(dsn)
    proxy.cut()
    with pytest.raises(psycopg.OperationalError):
        await connection.execute("select 1")
    await connection.close()
    await _execute(dsn, "select 1")


async def test_a_refusing_proxy_opens_again_on_its_port(proxy: Proxy, database: str) -> None:
    dsn = _through(proxy, database)
    await proxy.refuse()
    with pytest.raises(psycopg.OperationalError):
        await _execute(dsn, "select 1")
    await proxy.open()
    await _execute(dsn, "select 1")
