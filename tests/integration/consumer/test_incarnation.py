"""Leases of process incarnations on a real database: who died is found, what it held comes free."""

import asyncio
from uuid import UUID, uuid4

import pytest

from consumer.store import incarnation, work
from consumer.store.stored import Connection
from outbox.errors import LeaseLost
from tests.integration.consumer.conftest import Connect
from tests.support.waiting_events import GROUP, an_event, new_work


async def begin(connection: Connection, *, lease_s: float = 30.0) -> UUID:
    return await incarnation.begin(connection, GROUP, host="h", pid=1, lease_s=lease_s)


async def expire(connection: Connection, one: UUID) -> None:
    """What time would do: *one* has not renewed for longer than its lease."""
    await connection.execute(
        "UPDATE consumer.incarnation SET expires_at = clock_timestamp() - interval '1 s' WHERE id = %s", (one,)
    )


async def take(connection: Connection, owner: UUID) -> list[UUID]:
    rows = await work.take_due(connection, GROUP, owner=owner, per_lane_limit=10, total=10)
    return [row.event_id for row in rows]


async def test_an_incarnation_lives_as_long_as_it_renews(connection: Connection) -> None:
    one = await begin(connection)
    await incarnation.renew(connection, one, lease_s=30)
    assert await incarnation.is_alive(connection, one)
    await expire(connection, one)
    assert not await incarnation.is_alive(connection, one)
    with pytest.raises(LeaseLost):  # others may have acted on its end by now
        await incarnation.renew(connection, one, lease_s=30)
    assert not await incarnation.is_alive(connection, uuid4())


async def test_a_process_that_died_leaves_its_events_to_others_uncharged(connection: Connection) -> None:
    """celery/celery#1628"""
    dead, alive = await begin(connection), await begin(connection)
    event = an_event()
    await work.put(connection, [new_work(event, attempts=2)])
    assert await take(connection, dead) == [event.id]
    assert (await incarnation.reap(connection, GROUP)).released == 0
    await expire(connection, dead)
    reaped = await incarnation.reap(connection, GROUP)
    assert (reaped.incarnations, reaped.released) == ((dead,), 1)
    (row,) = await work.take_due(connection, GROUP, owner=alive, per_lane_limit=10, total=10)
    assert (row.event_id, row.attempts) == (event.id, 2)
    assert [one.id for one in await incarnation.every(connection, GROUP)] == [alive]


async def test_who_wakes_after_being_reaped_is_told_and_finishes_nothing(connection: Connection) -> None:
    """riverqueue/river#1302"""
    frozen, alive = await begin(connection), await begin(connection)
    event = an_event()
    await work.put(connection, [new_work(event)])
    await take(connection, frozen)
    await expire(connection, frozen)
    await incarnation.reap(connection, GROUP)
    await take(connection, alive)
    with pytest.raises(LeaseLost):
        await incarnation.renew(connection, frozen, lease_s=30)
    with pytest.raises(LeaseLost):
        await work.finish(connection, GROUP, [event.id], owner=frozen)
    await work.finish(connection, GROUP, [event.id], owner=alive)


async def test_rows_whose_owner_has_no_lease_at_all_come_free(connection: Connection) -> None:
    event = an_event()
    await work.put(connection, [new_work(event)])
    await take(connection, uuid4())
    assert (await incarnation.reap(connection, GROUP)).released == 1


async def test_reaping_passes_over_a_row_that_is_being_finished(connect: Connect) -> None:
    one, other = await connect(), await connect()
    slow = await begin(one)
    event = an_event()
    await work.put(one, [new_work(event)])
    await take(one, slow)
    await expire(one, slow)
    async with one.transaction():
        await work.finish(one, GROUP, [event.id], owner=slow)
        reaped = await asyncio.wait_for(incarnation.reap(other, GROUP), 5)
        assert (reaped.incarnations, reaped.released) == ((slow,), 0)
    assert await work.exists(one, GROUP, [event.id]) == frozenset()


async def test_processes_that_reap_and_renew_at_once_agree(connect: Connect) -> None:
    one, other, third = await connect(), await connect(), await connect()
    late = await begin(one)
    await expire(one, late)
    outcomes = await asyncio.gather(
        incarnation.renew(one, late, lease_s=30),
        incarnation.reap(other, GROUP),
        incarnation.reap(third, GROUP),
        return_exceptions=True,
    )
    was_reaped = any(isinstance(one, incarnation.Reaped) and one.incarnations for one in outcomes)
    assert isinstance(outcomes[0], LeaseLost) == was_reaped
    assert await incarnation.is_alive(one, late) != was_reaped


async def test_a_process_that_ends_releases_what_it_held(connection: Connection) -> None:
    ending, other = await begin(connection), await begin(connection)
    event = an_event()
    await work.put(connection, [new_work(event)])
    await take(connection, ending)
    assert await incarnation.end(connection, ending) == 1
    assert await take(connection, other) == [event.id]
    assert not await incarnation.is_alive(connection, ending)


async def test_reaping_one_group_leaves_another_alone(connection: Connection) -> None:
    other = await incarnation.begin(connection, "shipping", host="h", pid=1, lease_s=30)
    await expire(connection, other)
    assert (await incarnation.reap(connection, GROUP)).incarnations == ()
    (found,) = await incarnation.every(connection, "shipping")
    assert (found.id, found.is_alive, found.owned) == (other, False, 0)
