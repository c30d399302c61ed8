"""Positions mean something in one database, on one timeline, and on a primary: elsewhere the relay refuses to start."""

from collections.abc import Iterator

import psycopg
import pytest

from outbox.errors import SchemaMissing, WrongDatabase
from outbox.inprocess import InProcessBroker
from outbox.shell.database import connect
from outbox_admin import migrate
from outbox_admin.embedded import PostgresNode
from outbox_admin.rebase import rebase
from relay.limits import Limits
from relay.log.sessions import opened
from tests.integration.relay.copies import copied, same
from tests.integration.relay.running import App, running
from tests.support.databases import fresh_database
from tests.support.services import Postgres


async def check(url: str) -> None:
    async with opened(url, Limits()):
        pass


async def test_the_database_that_the_positions_belong_to_is_accepted(url: str) -> None:
    await check(url)


async def test_a_copy_of_the_database_is_refused_with_one_sentence(
    url: str, postgres_node: Postgres, broker: InProcessBroker
) -> None:
    """ThreeDotsLabs/watermill#576: a restored dump has the stored positions, and other transaction numbers."""
    name = url.rpartition("/")[2].partition("?")[0]
    refused = (
        r"^database: want database oid \d+ as in the stored positions, got \d+; stop the apps and run .outbox rebase"
    )
    with (
        fresh_database(postgres_node, "restored", template=name) as restored,
        pytest.raises(WrongDatabase, match=refused),
    ):
        async with running(restored, broker):
            pass


async def test_a_dump_from_another_cluster_is_refused(url: str, app: App) -> None:
    app.execute("update outbox.origin set system_identifier = system_identifier + 1")
    app.commit()
    with pytest.raises(WrongDatabase, match="want system identifier"):
        await check(url)


async def test_another_timeline_is_refused(url: str, app: App) -> None:
    """After an asynchronous promotion the last transactions may be missing, and their numbers are given again."""
    app.execute("update outbox.origin set timeline = '000000FF'")
    app.commit()
    with pytest.raises(WrongDatabase, match="want timeline 000000FF"):
        await check(url)


async def test_positions_ahead_of_the_cluster_are_refused(url: str, app: App) -> None:
    app.execute("update outbox.bucket set lo = '9000000000:9000000000:' where bucket = 7")
    app.commit()
    with pytest.raises(WrongDatabase, match="want transactions up to 9000000000"):
        await check(url)


async def test_a_database_that_is_not_migrated_is_named_as_such(database: str) -> None:
    with pytest.raises(SchemaMissing, match="outbox migrate"):
        await check(database)


@pytest.fixture
def standby(faulty_postgres: PostgresNode) -> Iterator[str]:
    """The URL of a migrated database on a standby of a private node."""
    with psycopg.connect(faulty_postgres.dsn(), autocommit=True) as connection:
        connection.execute("drop database if exists relay_guard")
        connection.execute("create database relay_guard")
    url = faulty_postgres.dsn("relay_guard")
    migrate.upgrade(url, chains=("outbox",))
    with copied(faulty_postgres, signal="standby") as node:
        yield same(url, node, here=faulty_postgres)


async def test_a_standby_is_refused_and_so_is_the_one_it_becomes(standby: str) -> None:
    """PostgreSQL 17 and before show commits on a standby in another order than on the primary."""
    with pytest.raises(WrongDatabase, match="want a primary, got a standby"):
        await check(standby)
    async with await connect(standby, application_name="test") as connection:
        with pytest.raises(WrongDatabase, match="want a primary, got a standby"):
            await rebase(connection, actor="ops")
    with psycopg.connect(standby, autocommit=True) as connection:
        connection.execute("select pg_promote(true, 60)")
    with pytest.raises(WrongDatabase, match="want timeline 00000001 as in the stored positions, got 00000002"):
        await check(standby)
