"""Marks of what was begun, on a real database: who may begin, who is suspect, and what is forgotten."""

import asyncio
import contextlib
from datetime import timedelta
from types import SimpleNamespace
from typing import cast
from uuid import UUID, uuid4

from sqlalchemy import make_url
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from consumer.engine.guard import Guard
from consumer.engine.item import Item
from consumer.engine.path import Path
from consumer.engine.slot import Slot
from consumer.engine.telling import Settled
from consumer.store import incarnation, start, work
from consumer.store.connection import SlotConnection
from consumer.store.desk import Desk
from consumer.store.start import Begun
from consumer.store.stored import Connection
from tests.support.waiting_events import GROUP, an_event, new_work

EVENT = UUID("01890a5d-ac96-774b-bcce-b302099a8057")


class Walks:
    """A path whose events are handled once they may be."""

    def __init__(self) -> None:
        self.has_begun, self.may_end = asyncio.Event(), asyncio.Event()

    async def walk(self, slot: Slot, item: Item) -> Settled:
        self.has_begun.set()
        await self.may_end.wait()
        return Settled(outcome="done")


async def live(connection: Connection) -> UUID:
    return await incarnation.begin(connection, GROUP, host="h", pid=1, lease_s=30)


async def begin(connection: Connection, one: UUID, event: UUID = EVENT) -> Begun:
    return await start.begin(connection, GROUP, event, incarnation=one)


async def test_only_what_a_process_began_and_died_of_is_unended(connection: Connection) -> None:
    one, other = await live(connection), await live(connection)
    assert await begin(connection, one) is Begun.HERE
    assert await begin(connection, one) is Begun.HERE
    assert await begin(connection, other) is Begun.ELSEWHERE
    await incarnation.expire(connection, one)
    assert await begin(connection, other) is Begun.UNENDED
    await incarnation.reap(connection, GROUP)
    assert await begin(connection, other) is Begun.UNENDED
    await start.forget(connection, GROUP, EVENT)
    assert await begin(connection, other) is Begun.HERE


async def test_what_has_ended_and_what_a_process_left_behind_in_good_order_suspects_nobody(
    connection: Connection,
) -> None:
    one, other = await live(connection), await live(connection)
    ended, left = uuid4(), uuid4()
    for event in (ended, left):
        await begin(connection, one, event)
    await start.end(connection, GROUP, [ended], incarnations=[one])
    assert await begin(connection, other, ended) is Begun.HERE
    await incarnation.end(connection, one)
    assert await begin(connection, other, left) is Begun.HERE


async def test_a_row_that_a_dead_process_had_in_hand_is_marked_and_not_suspect(connection: Connection) -> None:
    dead, alive = await live(connection), await live(connection)
    event = an_event()
    await work.put(connection, [new_work(event)])
    (row,) = await work.take_due(connection, GROUP, owner=dead, per_lane_limit=1, total=1)
    assert not row.is_marked
    await incarnation.expire(connection, dead)
    assert (await incarnation.reap(connection, GROUP)).released == 1
    (row,) = await work.take_due(connection, GROUP, owner=alive, per_lane_limit=1, total=1)
    assert row.is_marked
    assert await begin(connection, alive, event.id) is Begun.HERE


async def test_starts_alone_are_counted_and_those_ended_from_outside_are_not(connection: Connection) -> None:
    counted = []
    for is_forgiven in (False, True, False, False):
        one = await live(connection)
        counted.append(await start.begin_alone(connection, GROUP, EVENT, incarnation=one))
        if is_forgiven:
            await start.forgive(connection, one)
    assert counted == [0, 1, 1, 2]


async def test_a_convict_stays_suspect_for_ever_and_is_counted_anew(connection: Connection) -> None:
    one = await live(connection)
    for _ in range(3):
        await start.begin_alone(connection, GROUP, EVENT, incarnation=one)
    await start.convict(connection, GROUP, EVENT)
    await incarnation.end(connection, one)
    other = await live(connection)
    assert await begin(connection, other) is Begun.UNENDED
    assert await start.begin_alone(connection, GROUP, EVENT, incarnation=other) == 0


async def test_marks_are_pruned_when_they_are_old_and_nothing_waits_under_them(connection: Connection) -> None:
    one, event = await live(connection), an_event()
    await begin(connection, one)
    await work.put(connection, [new_work(event)])
    await begin(connection, one, event.id)
    assert await start.prune(connection, GROUP, older_than=timedelta(days=14)) == 0
    await connection.execute("UPDATE consumer.start SET started_at = started_at - interval '15 days'")
    assert await start.prune(connection, GROUP, older_than=timedelta(days=14)) == 1
    assert await begin(connection, one, event.id) is Begun.HERE


async def test_a_mark_that_is_set_while_the_one_before_it_is_being_removed_stays(
    connection: Connection, migrated_database: str
) -> None:
    one, event = await live(connection), an_event()
    await work.put(connection, [new_work(event)])
    await begin(connection, one, event.id)
    (row,) = await work.take_due(connection, GROUP, owner=one, per_lane_limit=1, total=1)
    item = Item.of_row(row, ident=1, payload_bytes_max=1000, now=0.0)
    path, desk = Walks(), Desk(migrated_database, name="test")
    guard = Guard(group=GROUP, path=cast("Path", path), desk=desk, incarnation=lambda: one)
    engine = create_async_engine(make_url(migrated_database).set(drivername="postgresql+psycopg"), poolclass=NullPool)
    slot = cast("Slot", SimpleNamespace(connection=SlotConnection(engine)))
    path.may_end.set()
    await guard.walk(slot, item)
    path.may_end.clear()
    path.has_begun.clear()

    async with desk.use():  # it is busy, so marks are not removed yet
        ending = asyncio.create_task(guard.end_marks())
        await asyncio.sleep(0)
        walking = asyncio.ensure_future(guard.walk(slot, item))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(path.has_begun.wait(), 0.3)
    await asyncio.wait_for(asyncio.gather(ending, path.has_begun.wait()), 10)
    assert await begin(connection, await live(connection), event.id) is Begun.ELSEWHERE
    path.may_end.set()
    await walking
    await desk.close()
    await slot.connection.close()
