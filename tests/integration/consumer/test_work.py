"""Work rows on a real database: written whole, claimed fairly, finished by their owner alone."""

import asyncio
import random
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import psycopg
import pytest

from consumer.store import work, work_counts
from consumer.store.stored import Connection
from consumer.store.work import Reason, WorkRow
from outbox import wire
from outbox.errors import LeaseLost
from outbox.event import Event, Tier, new_event_id
from tests.integration.consumer.conftest import Connect
from tests.support.waiting_events import GROUP, an_event, keyed, new_work, stored_of

ME, OTHER = uuid4(), uuid4()


async def take(
    connection: Connection, *, owner: object = ME, per_lane: int = 100, total: int = 100, suspects: bool = False
) -> list[WorkRow]:
    assert isinstance(owner, type(ME))
    return await work.take_due(connection, GROUP, owner=owner, per_lane_limit=per_lane, total=total, suspects=suspects)


async def fill(connection: Connection, *, tenant: str, rows: int, tier: Tier = Tier.STANDARD, due_s: int = 0) -> None:
    """Write *rows* due rows of *tenant*, the first of which was due *due_s* ago."""
    await connection.execute(
        """
        INSERT INTO consumer.work (group_name, event_id, reason, due_at, attempts, tier, tenant, type,
                                   message_id, app_id, content_type, headers, body)
        SELECT %s, gen_random_uuid(), 'retry', clock_timestamp() - make_interval(secs => %s) + n * interval '1 us', 1,
               %s, %s, 't', 'm', 'a', 'c', '{}', ''
        FROM generate_series(1, %s) n
        """,
        (GROUP, due_s, int(tier), tenant, rows),
    )


async def test_a_row_comes_back_as_it_was_written(connection: Connection) -> None:
    event = keyed(7)
    await work.put(connection, [new_work(event, attempts=3, handlers=("a", "b"))])
    (row,) = await take(connection)
    assert wire.decode(row.stored.message) == event
    assert row.stored == stored_of(event)
    assert (row.event_id, row.reason, row.attempts, row.handlers) == (event.id, Reason.RETRY, 3, ("a", "b"))
    assert row.owner == ME


async def test_rows_of_tiers_that_were_not_asked_for_stay_where_they_are_and_count_for_no_wait(
    connection: Connection,
) -> None:
    await fill(connection, tenant="a", rows=3, tier=Tier.BULK)
    await fill(connection, tenant="b", rows=2, tier=Tier.INTERACTIVE, due_s=-60)
    urgent = (Tier.INTERACTIVE, Tier.STANDARD)

    assert await work.take_due(connection, GROUP, owner=ME, per_lane_limit=9, total=9, tiers=urgent) == []
    assert await work.seconds_to_next(connection, GROUP, owner=uuid4(), tiers=urgent) == pytest.approx(60, abs=5)
    assert await work.seconds_to_next(connection, GROUP, owner=uuid4(), tiers=[Tier.STANDARD]) is None
    assert await work.seconds_to_next(connection, GROUP, owner=uuid4()) == 0.0
    assert len(await work.take_due(connection, GROUP, owner=ME, per_lane_limit=9, total=9, tiers=[Tier.BULK])) == 3


async def test_every_handler_is_told_apart_from_none(connection: Connection) -> None:
    everyone, nobody = an_event(), an_event()
    await work.put(connection, [new_work(everyone, handlers=None), new_work(nobody, handlers=())])
    found = {row.event_id: row.handlers for row in await take(connection)}
    assert found == {everyone.id: None, nobody.id: ()}


async def test_a_row_is_taken_when_it_is_due_on_the_databases_clock_and_not_before(connection: Connection) -> None:
    later, absolute = an_event(), an_event()
    await work.put(connection, [new_work(later, delay_s=0.3)])
    not_before = work.NewWork(
        group=GROUP,
        event_id=absolute.id,
        stored=stored_of(absolute),
        reason=Reason.WAITING,
        not_before=datetime.now(UTC) + timedelta(days=1),
    )
    await work.put(connection, [not_before])
    assert await take(connection) == []
    wait_s = await work.seconds_to_next(connection, GROUP, owner=uuid4())
    assert wait_s is not None
    assert 0 < wait_s <= 0.3
    await connection.execute("SELECT pg_sleep(0.3)")  # the database's clock is the one that counts
    assert [row.event_id for row in await take(connection)] == [later.id]


async def test_a_failed_write_leaves_neither_the_verdict_nor_the_row(connection: Connection) -> None:
    """procrastinate-org/procrastinate#1446"""
    event = an_event()
    unstorable = new_work(an_event(), handlers=("NUL: \0",))

    async def record_verdict() -> None:
        async with connection.transaction():
            await connection.execute(
                "INSERT INTO consumer.ledger (slot, group_name, event_id, handler, tenant, state, attempts)"
                " VALUES (0, %s, %s, 'h', 'acme', 'retry', 1)",
                (GROUP, event.id),
            )
            await work.put(connection, [new_work(event), unstorable])

    with pytest.raises(psycopg.DataError):
        await record_verdict()
    assert await take(connection) == []
    cursor = await connection.execute("SELECT count(*) FROM consumer.ledger")
    assert await cursor.fetchone() == (0,)


async def test_an_events_own_retry_replaces_its_row(connection: Connection) -> None:
    """JasperFx/wolverine#782, MassTransit#3998"""
    event = an_event()
    await work.put(connection, [new_work(event, attempts=1)])
    (row,) = await take(connection)
    stored = await work.put(connection, [new_work(event, attempts=2, handlers=("slow",))], owner=ME)
    assert stored == {event.id}
    (again,) = await take(connection)
    assert (again.attempts, again.handlers, again.waiting_since) == (2, ("slow",), row.waiting_since)


async def test_a_row_that_another_process_has_is_left_to_it(connection: Connection) -> None:
    """riverqueue/river#1302"""
    event = an_event()
    await work.put(connection, [new_work(event)])
    await take(connection, owner=OTHER)
    assert await work.put(connection, [new_work(event, attempts=9)], owner=ME) == frozenset()
    assert await work.put(connection, [new_work(event, attempts=9)]) == frozenset()
    cursor = await connection.execute("SELECT attempts, owner FROM consumer.work")
    assert await cursor.fetchone() == (1, OTHER)


async def test_parking_a_duplicate_does_not_undo_a_retry(connection: Connection) -> None:
    event = an_event()
    await work.put(connection, [new_work(event, delay_s=60, attempts=4)])
    assert await work.park(connection, [new_work(event, reason=Reason.WAITING, attempts=0)]) == frozenset()
    (count,) = await work_counts.read(connection, GROUP)
    assert (count.reason, count.due) == (Reason.RETRY, 0)


async def test_a_duplicate_of_what_waits_is_recognised(connection: Connection) -> None:
    event = an_event()
    await work.put(connection, [new_work(event, delay_s=60)])
    assert await work.exists(connection, GROUP, [event.id, new_event_id()]) == {event.id}
    assert await work.exists(connection, "shipping", [event.id]) == frozenset()


async def test_a_finished_row_is_gone_and_another_owners_cannot_be_finished(connection: Connection) -> None:
    mine, stolen = an_event(), an_event()
    await work.put(connection, [new_work(mine), new_work(stolen)])
    await take(connection)
    await connection.execute("UPDATE consumer.work SET owner = %s WHERE event_id = %s", (OTHER, stolen.id))
    await work.finish(connection, GROUP, [mine.id], owner=ME)
    with pytest.raises(LeaseLost):
        await work.finish(connection, GROUP, [stolen.id], owner=ME)
    assert await work.exists(connection, GROUP, [mine.id, stolen.id]) == {stolen.id}


async def test_what_is_given_back_is_due_for_others_at_once_and_uncharged(connection: Connection) -> None:
    events = [an_event() for _ in range(3)]
    await work.put(connection, [new_work(event, attempts=2) for event in events])
    await take(connection)
    assert await work.give_back(connection, GROUP, owner=ME, event_ids=[events[0].id]) == 1
    assert await work.give_back(connection, GROUP, owner=OTHER) == 0
    assert await work.give_back(connection, GROUP, owner=ME) == 2
    assert {(row.event_id, row.attempts) for row in await take(connection, owner=OTHER)} == {
        (event.id, 2) for event in events
    }


async def test_a_tenant_with_100_000_due_rows_starves_nobody(connection: Connection) -> None:
    await fill(connection, tenant="flood", rows=100_000, due_s=3600)
    for quiet in range(19):
        await fill(connection, tenant=f"quiet-{quiet}", rows=3)
    taken = Counter(row.stored.tenant for row in await take(connection, per_lane=50, total=100))
    assert taken == {"flood": 5} | {f"quiet-{quiet}": 3 for quiet in range(19)}


async def test_tiers_of_one_tenant_do_not_starve_each_other(connection: Connection) -> None:
    await fill(connection, tenant="acme", rows=500, tier=Tier.BULK, due_s=3600)
    await fill(connection, tenant="acme", rows=2, tier=Tier.INTERACTIVE)
    taken = Counter(row.stored.tier for row in await take(connection, total=10))
    assert taken == {Tier.BULK: 5, Tier.INTERACTIVE: 2}


async def test_with_more_lanes_than_places_the_longest_due_go_first(connection: Connection) -> None:
    for lane in range(20):
        await fill(connection, tenant=f"t{lane:02}", rows=2, due_s=lane)
    taken = [row.stored.tenant for row in await take(connection, total=5)]
    assert sorted(taken) == [f"t{lane}" for lane in range(15, 20)]


async def test_a_lane_never_has_more_in_a_process_than_its_limit(connection: Connection) -> None:
    await fill(connection, tenant="acme", rows=50)
    assert len(await take(connection, per_lane=8)) == 8
    assert await take(connection, per_lane=8) == []
    assert len(await take(connection, per_lane=10)) == 2
    assert len(await take(connection, owner=OTHER, per_lane=8)) == 8


async def test_what_another_transaction_has_locked_is_passed_over(connect: Connect) -> None:
    one, other = await connect(), await connect()
    await fill(one, tenant="acme", rows=10)
    async with one.transaction():
        await one.execute("SELECT FROM consumer.work ORDER BY due_at LIMIT 4 FOR UPDATE")
        assert len(await asyncio.wait_for(take(other, per_lane=6), 5)) == 6


async def test_processes_that_claim_at_once_share_every_row_and_none_twice(connect: Connect) -> None:
    connections = [await connect() for _ in range(4)]
    for tenant in range(10):
        await fill(connections[0], tenant=f"t{tenant}", rows=30)
    owners = [uuid4() for _ in connections]
    taken: list[WorkRow] = []

    async def drain(connection: Connection, owner: object) -> None:
        while rows := await take(connection, owner=owner, per_lane=300, total=20):
            taken.extend(rows)

    await asyncio.gather(*map(drain, connections, owners))
    taken.extend(await take(connections[0], owner=owners[0], per_lane=10_000, total=10_000))
    assert len(taken) == 300
    assert len({row.event_id for row in taken}) == 300


async def test_suspects_are_claimed_only_by_who_asks_for_them(connection: Connection) -> None:
    event = an_event()
    await work.put(connection, [new_work(event, reason=Reason.SUSPECT)])
    assert await take(connection) == []
    assert await work.seconds_to_next(connection, GROUP, owner=uuid4()) is None
    assert [row.event_id for row in await take(connection, suspects=True, total=1)] == [event.id]


async def test_batches_written_at_once_in_opposite_orders_do_not_deadlock(connect: Connect) -> None:
    connections = [await connect() for _ in range(4)]
    events = [an_event() for _ in range(40)]

    async def write(connection: Connection, seed: int) -> None:
        shuffled = random.Random(seed).sample(events, len(events))
        for _ in range(5):
            async with connection.transaction():
                await work.put(connection, [new_work(event) for event in shuffled])

    async with asyncio.timeout(60):
        await asyncio.gather(*(write(connection, seed) for seed, connection in enumerate(connections)))
    assert len(await work.exists(connections[0], GROUP, [event.id for event in events])) == 40


async def test_the_successor_of_a_handled_event_is_made_due(connection: Connection) -> None:
    event = keyed(8)
    await work.put(connection, [new_work(event, reason=Reason.WAITING, delay_s=3600)])
    assert not await work.make_due(connection, GROUP, tenant="acme", tier=Tier.STANDARD, key="order-1", number=9)
    assert not await work.make_due(connection, GROUP, tenant="other", tier=Tier.STANDARD, key="order-1", number=8)
    assert await work.make_due(connection, GROUP, tenant="acme", tier=Tier.STANDARD, key="order-1", number=8)
    assert [row.event_id for row in await take(connection)] == [event.id]


async def test_those_that_wait_right_behind_it_become_due_in_their_order_up_to_the_first_that_is_missing(
    connection: Connection,
) -> None:
    waiting = {number: keyed(number) for number in (8, 9, 10, 12)}
    for number in (10, 12, 9, 8):
        await work.put(connection, [new_work(waiting[number], reason=Reason.WAITING, delay_s=3600)])
    assert await work.make_due(connection, GROUP, tenant="acme", tier=Tier.STANDARD, key="order-1", number=8)
    assert [row.event_id for row in await take(connection)] == [waiting[number].id for number in (8, 9, 10)]


async def test_a_long_line_moves_on_some_at_a_time(connection: Connection) -> None:
    await work.put(connection, [new_work(keyed(n), reason=Reason.WAITING, delay_s=3600) for n in range(1, 101)])
    assert await work.make_due(connection, GROUP, tenant="acme", tier=Tier.STANDARD, key="order-1", number=1)
    assert len(await take(connection)) == 10


async def test_a_retry_is_not_made_due_before_its_time(connection: Connection) -> None:
    await work.put(connection, [new_work(keyed(8), reason=Reason.RETRY, delay_s=3600)])
    assert not await work.make_due(connection, GROUP, tenant="acme", tier=Tier.STANDARD, key="order-1", number=8)


async def test_counts_tell_what_waits_by_tier_tenant_and_reason(connection: Connection) -> None:
    events: list[Event] = [an_event(), an_event(), an_event(tenant="zeta", tier=Tier.BULK)]
    await work.put(connection, [new_work(events[0]), new_work(events[1], delay_s=60)])
    await work.put(connection, [new_work(events[2], reason=Reason.HELD)])
    await take(connection, per_lane=1, total=1)
    first, second = await work_counts.read(connection, GROUP)
    assert (first.tenant, first.reason, first.rows, first.owned, first.due) == ("acme", Reason.RETRY, 2, 1, 0)
    assert (second.tenant, second.tier, second.reason, second.due) == ("zeta", Tier.BULK, Reason.HELD, 1)


async def test_groups_do_not_see_each_others_rows(connection: Connection) -> None:
    event = an_event()
    await work.put(connection, [new_work(event), new_work(event, group="shipping")])
    assert len(await take(connection)) == 1
    assert [count.owned for count in await work_counts.read(connection, "shipping")] == [0]


async def test_a_row_tells_since_when_its_attempts_have_failed_however_long_it_waited_before(
    connection: Connection,
) -> None:
    event = an_event()

    async def written(reason: Reason, *, is_failing: bool = False) -> datetime | None:
        row = replace(new_work(event), reason=reason, is_failing=is_failing)
        await work.put(connection, [row], owner=ME)
        (found,) = await take(connection)
        return found.failing_since

    assert await written(Reason.WAITING) is None
    assert await written(Reason.RETRY) is None  # on request: nothing failed
    since = await written(Reason.RETRY, is_failing=True)
    assert since is not None
    assert await written(Reason.HELD) == since
    assert await written(Reason.RETRY, is_failing=True) == since
    await connection.execute("UPDATE consumer.work SET reason = 'replay'")
    again = await written(Reason.RETRY, is_failing=True)
    assert again is not None
    assert again > since
    assert await written(Reason.RETRY) is None
