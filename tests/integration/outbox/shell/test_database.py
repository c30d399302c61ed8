"""Connections and errors of a real server."""

import asyncio
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import errors as pg

from outbox.errors import ConfigError, SchemaMissing, StoreRefused, StoreUnavailable
from outbox.shell.database import connect, store_errors
from outbox_admin.embedded import PostgresNode
from tests.support.proxy import Proxy


async def test_a_session_says_whose_it_is(database: str) -> None:
    async with await connect(database, application_name="outbox-relay") as connection:
        row = await (await connection.execute("select current_setting('application_name')")).fetchone()
    assert row == ("outbox-relay",)


async def test_an_unreachable_server_is_unavailable_and_a_missing_database_is_a_setting(database: str) -> None:
    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        await connect("postgresql://postgres@127.0.0.1:1/d", application_name="x")
    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        await connect("postgresql://postgres@nowhere.invalid/d", application_name="x")
    missing = urlsplit(database)._replace(path="/nobody_made_this").geturl()
    with pytest.raises(StoreRefused, match="nobody_made_this"):
        await connect(missing, application_name="x")


async def test_a_wrong_password_is_a_setting(faulty_postgres: PostgresNode) -> None:
    with pytest.raises(StoreRefused, match="password"):
        await connect(f"postgresql://postgres:wrong@127.0.0.1:{faulty_postgres.port}/d", application_name="x")


async def test_a_server_that_accepts_and_says_nothing_is_given_up(database: str) -> None:
    parts = urlsplit(database)
    async with Proxy(host=parts.hostname or "", port=parts.port or 5432, speaks="postgres") as proxy:
        proxy.freeze()
        login = parts.netloc.rpartition("@")[0]
        frozen = parts._replace(netloc=f"{login}@127.0.0.1:{proxy.port}").geturl()
        with pytest.raises(StoreUnavailable):
            await asyncio.wait_for(connect(frozen, application_name="x", connect_timeout_s=2.0), 10)


async def test_a_killed_server_is_unavailable(faulty_postgres: PostgresNode) -> None:
    async with await connect(faulty_postgres.dsn(), application_name="x") as connection:
        faulty_postgres.kill()
        with pytest.raises(StoreUnavailable), store_errors():
            await connection.execute("select 1")
    with pytest.raises(StoreUnavailable):
        await connect(faulty_postgres.dsn(), application_name="x")


async def test_a_missing_table_says_to_migrate_and_a_broken_rule_stays_what_it_is(database: str) -> None:
    async with await connect(database, application_name="x") as connection:
        with pytest.raises(SchemaMissing, match="outbox migrate"), store_errors():
            await connection.execute("select * from nothing_here")
        await connection.execute("create table t (a int primary key)")
        await connection.execute("insert into t values (1)")
        with pytest.raises(pg.UniqueViolation), store_errors():
            await connection.execute("insert into t values (1)")


async def test_a_missing_privilege_is_a_setting(database: str) -> None:
    async with await connect(database, application_name="x") as connection:
        await connection.execute("create table closed (a int)")
        await connection.execute("set session authorization pg_monitor")
        with pytest.raises(ConfigError, match="closed"), store_errors():
            await connection.execute("select * from closed")


async def test_a_connection_that_was_closed_is_unavailable(database: str) -> None:
    connection = await connect(database, application_name="x")
    await connection.close()
    with pytest.raises(StoreUnavailable) as caught, store_errors():
        await connection.execute("select 1")
    assert isinstance(caught.value.__cause__, psycopg.OperationalError)
