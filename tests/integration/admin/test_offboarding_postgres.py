"""``outbox tenant offboard`` on queues in PostgreSQL: nothing is lost that is published or in hand meanwhile."""

import asyncio
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from uuid import UUID

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from outbox.errors import TransientError
from outbox.event import Event
from outbox.shell.database import connect
from outbox_admin.offboarding import Desk, find, offboard
from outbox_admin.offboarding_postgres import PostgresDesk
from relay.postgres.publisher import PostgresPublisher
from tests.integration.relay.running import App, emit, start
from tests.support.postgres_queues import postgres_rig

INSERT = text("INSERT INTO effect (note) VALUES (:note)")
QUEUE = "outbox.lane.billing.standard.acme"


@pytest.fixture
def app(migrated_database: str) -> Iterator[App]:
    with psycopg.connect(migrated_database) as connection:
        yield connection
        connection.rollback()


async def remove(url: str, *, within_s: float = 40.0) -> list[str]:
    """Off-board the tenant of one group; return what was told."""
    told: list[str] = []

    def opened() -> AbstractAsyncContextManager[Desk]:
        return PostgresDesk.opened(url)

    async with await connect(url, application_name="test") as connection:
        lanes = await find(connection, "acme", groups=["billing"])
        await offboard(connection, opened, lanes, actor="tester", within_s=within_s, tell=told.append)
    return told


async def test_a_queue_goes_when_what_is_in_hand_is_done_and_is_made_again_for_what_comes(
    migrated_database: str, app: App
) -> None:
    app.execute("select outbox.add_group('billing')")
    app.commit()
    begun, may_end = list[UUID](), asyncio.Event()
    relay = start(migrated_database, PostgresPublisher(url=migrated_database))

    def emitted(count: int) -> list[UUID]:
        events = emit(app, "acme", count=count)
        app.commit()
        return events

    async with postgres_rig(migrated_database) as rig:

        @rig.consumer.on("order.placed")
        async def bill(event: Event, session: AsyncSession) -> None:
            begun.append(event.id)
            await may_end.wait()
            await session.execute(INSERT, {"note": str(event.id)})

        for _ in range(2):
            await rig.start()
        await relay.owns(128)
        events = emitted(5)
        await rig.until(lambda: begun, what="an attempt to begin")
        with pytest.raises(TransientError, match=r"billing.standard.acme: want it empty and left"):
            await remove(migrated_database, within_s=4)
        events += emitted(3)  # it is marked: they wait in the log
        may_end.set()
        told = await remove(migrated_database)
        assert told[-1] == f"{QUEUE}: deleted"
        events += emitted(3)
        await rig.until(lambda: len(rig.effects()) == len(events), deadline_s=30, what="every effect")
        assert sorted(rig.effects()) == sorted(map(str, events))
    await relay.crash()
