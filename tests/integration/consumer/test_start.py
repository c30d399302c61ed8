"""Marks of what was begun, on a real database: who may begin, who is suspect, and what is forgotten."""

from datetime import timedelta
from uuid import UUID, uuid4

from consumer.store import incarnation, start, work
from consumer.store.start import Begun
from consumer.store.stored import Connection
from tests.support.waiting_events import GROUP, an_event, new_work

EVENT = UUID("01890a5d-ac96-774b-bcce-b302099a8057")


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
