"""The order of keyed events on a real database, in as many processes as like."""

import asyncio
import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from consumer.decide.order import Turn
from consumer.outcome import DeadCategory
from consumer.store import dead, gate, work
from consumer.store.dead import NewDead
from consumer.store.gate import Key
from consumer.store.stored import Connection
from consumer.store.work import Reason
from outbox import wire
from outbox.event import Event, Tier
from tests.integration.consumer.conftest import Connect
from tests.support.waiting_events import GROUP, HORIZON, keyed, new_work, stored_of

ANCIENT = datetime.now(UTC) - HORIZON - timedelta(hours=1)


async def look(connection: Connection, event: Event) -> Turn:
    return await gate.look(connection, GROUP, event, horizon=HORIZON)


async def enter(connection: Connection, event: Event) -> Turn:
    return await gate.enter(connection, GROUP, event, horizon=HORIZON)


async def handled(connection: Connection, event: Event) -> None:
    assert event.ordering is not None
    await gate.advance(connection, [(gate.key_of(GROUP, event), event.ordering.number)])


async def park(connection: Connection, event: Event) -> bool:
    return await gate.park(connection, GROUP, event, wire.encode(event), horizon=HORIZON)


async def bury(connection: Connection, event: Event) -> int:
    return await dead.put(
        connection,
        NewDead(
            group=GROUP,
            event_id=event.id,
            stored=stored_of(event),
            category=DeadCategory.PERMANENT,
            message="m",
            fingerprint="f",
        ),
    )


async def due(connection: Connection) -> list[int]:
    rows = await work.take_due(connection, GROUP, owner=uuid4(), per_lane_limit=1000, total=1000)
    return sorted(row.stored.key_number or 0 for row in rows)


async def test_an_event_is_ready_after_its_predecessor_and_late_after_itself(connection: Connection) -> None:
    assert await look(connection, keyed(2)) is Turn.EARLY
    assert await look(connection, keyed(1)) is Turn.READY
    await handled(connection, keyed(1))
    assert await look(connection, keyed(1)) is Turn.LATE
    assert await look(connection, keyed(2)) is Turn.READY
    assert await look(connection, keyed(3)) is Turn.EARLY


async def test_keys_tenants_tiers_and_groups_do_not_wait_for_each_other(connection: Connection) -> None:
    await handled(connection, keyed(1))
    assert await look(connection, keyed(2, key="order-2")) is Turn.EARLY
    assert await look(connection, keyed(2, tenant="other")) is Turn.EARLY
    assert await look(connection, replace(keyed(2), tier=Tier.BULK)) is Turn.EARLY
    assert await gate.look(connection, "shipping", keyed(2), horizon=HORIZON) is Turn.EARLY


async def test_a_position_never_falls(connection: Connection) -> None:
    await handled(connection, keyed(5))
    await handled(connection, keyed(3))
    assert await look(connection, keyed(6)) is Turn.READY


async def test_a_purged_key_starts_again_higher(connection: Connection) -> None:
    await handled(connection, keyed(5))
    restarted = keyed(900, first=900)
    assert await look(connection, restarted) is Turn.READY
    await handled(connection, restarted)
    assert await look(connection, keyed(901)) is Turn.READY


async def test_a_predecessor_older_than_the_group_or_the_horizon_counts_as_handled(connection: Connection) -> None:
    assert await look(connection, keyed(8, previous_time=ANCIENT)) is Turn.ORPHAN
    await connection.execute("INSERT INTO consumer.group_start VALUES (%s, clock_timestamp())", (GROUP,))
    assert await look(connection, keyed(8)) is Turn.ORPHAN
    assert await look(connection, keyed(8, previous_time=datetime.now(UTC) + timedelta(hours=1))) is Turn.EARLY


@pytest.mark.parametrize("reason", [Reason.RETRY, Reason.HELD, Reason.REPLAY, Reason.WAITING])
async def test_a_predecessor_that_waits_here_is_waited_for_however_old(connection: Connection, reason: Reason) -> None:
    await work.put(connection, [new_work(keyed(7), reason=reason, delay_s=3600)])
    assert await look(connection, keyed(8, previous_time=ANCIENT)) is Turn.EARLY


async def test_a_dead_lettered_predecessor_holds_its_key_until_it_is_resolved(connection: Connection) -> None:
    await bury(connection, keyed(7))
    assert await look(connection, keyed(8, previous_time=ANCIENT)) is Turn.EARLY
    await connection.execute("UPDATE consumer.dead SET resolution = 'discarded'")
    assert await look(connection, keyed(8, previous_time=ANCIENT)) is Turn.ORPHAN


async def test_a_key_is_held_until_the_transaction_ends_and_nobody_waits_for_it(connect: Connect) -> None:
    one, other = await connect(), await connect()
    async with one.transaction():
        assert await enter(one, keyed(1)) is Turn.READY
        assert await enter(one, keyed(1)) is Turn.READY  # each handler of the event enters
        async with other.transaction():
            assert await asyncio.wait_for(enter(other, keyed(1)), 5) is Turn.BUSY
            assert await enter(other, keyed(1, key="order-2")) is Turn.READY
        await handled(one, keyed(1))
        assert await look(other, keyed(2)) is Turn.EARLY
    async with other.transaction():
        assert await enter(other, keyed(2)) is Turn.READY


async def test_a_rolled_back_handler_does_not_move_its_key(connection: Connection) -> None:
    await handled(connection, keyed(1))
    async with connection.transaction(force_rollback=True):
        assert await enter(connection, keyed(2)) is Turn.READY
        await handled(connection, keyed(2))
    assert await look(connection, keyed(2)) is Turn.READY
    assert await look(connection, keyed(3)) is Turn.EARLY


async def test_an_early_event_is_parked_until_its_predecessor_is_handled(connection: Connection) -> None:
    assert await park(connection, keyed(2))
    assert await park(connection, keyed(3))
    assert await gate.sweep(connection, GROUP) == 0
    assert await due(connection) == []
    await handled(connection, keyed(1))
    assert await gate.sweep(connection, GROUP) == 1
    assert await due(connection) == [2]


async def test_a_parked_event_comes_up_by_itself_when_its_predecessor_is_too_old_to_come(
    connection: Connection,
) -> None:
    event = keyed(2)
    assert event.ordering is not None
    await park(connection, event)
    cursor = await connection.execute("SELECT due_at FROM consumer.work")
    assert await cursor.fetchone() == (event.ordering.previous_time + HORIZON,)  # type: ignore[operator] # keyed sets it


async def test_an_event_behind_an_ancient_one_that_waits_here_is_not_asked_again_and_again(
    connection: Connection,
) -> None:
    await park(connection, keyed(2, previous_time=ANCIENT))
    assert (await work.seconds_to_next(connection, GROUP, owner=uuid4()) or 0) > 60


async def test_the_sweep_is_quick_with_many_keys_and_finds_the_one(connection: Connection) -> None:
    await connection.execute(
        """
        INSERT INTO consumer.work (group_name, event_id, reason, due_at, attempts, tier, tenant, type, ordering_key,
                                   key_number, message_id, app_id, content_type, headers, body)
        SELECT %s, gen_random_uuid(), 'waiting', clock_timestamp() + interval '1 day', 0, 1, 'acme', 't',
               'key-' || n %% 2000, 2 + n / 2000, 'm', 'a', 'c', '{}', ''
        FROM generate_series(0, 39999) n
        """,
        (GROUP,),
    )
    key = Key(group=GROUP, tenant="acme", tier=Tier.STANDARD, key="key-77")
    await gate.advance(connection, [(key, 1)])
    assert await gate.sweep(connection, GROUP) == 1
    assert await due(connection) == [2]
    blocked = await gate.blocked_keys(connection, GROUP, limit=5)
    assert (blocked.total, len(blocked.longest)) == (2000, 5)


async def test_sweeps_at_once_do_not_wait_for_each_other_or_for_a_claim(connect: Connect) -> None:
    one, other = await connect(), await connect()
    await park(one, keyed(2))
    await handled(one, keyed(1))
    async with one.transaction():
        assert await gate.sweep(one, GROUP) == 1
        assert await asyncio.wait_for(gate.sweep(other, GROUP), 5) == 0


async def test_blocked_keys_tell_what_they_wait_for(connection: Connection) -> None:
    for key in ("dead", "retried", "elsewhere"):
        await handled(connection, keyed(1, key=key))
        await park(connection, keyed(3, key=key))
        await park(connection, keyed(4, key=key))
    dead_id = await bury(connection, keyed(2, key="dead"))
    await work.put(connection, [new_work(keyed(2, key="retried"), delay_s=3600)])
    blocked = await gate.blocked_keys(connection, GROUP)
    assert {(one.key, one.number, one.by, one.dead_id, one.waiting) for one in blocked.longest} == {
        ("dead", 2, "dead", dead_id, 2),
        ("retried", 2, "retry", None, 2),
        ("elsewhere", 2, "elsewhere", None, 2),
    }


async def test_a_key_that_a_dead_letter_holds_is_blocked_before_anything_waits(connection: Connection) -> None:
    dead_id = await bury(connection, keyed(1))
    (blocked,) = (await gate.blocked_keys(connection, GROUP)).longest
    assert (blocked.number, blocked.by, blocked.dead_id, blocked.waiting) == (1, "dead", dead_id, 0)
    await handled(connection, keyed(1))  # skipped by policy
    assert (await gate.blocked_keys(connection, GROUP)).total == 0


async def test_batches_of_positions_in_opposite_orders_do_not_deadlock(connect: Connect) -> None:
    connections = [await connect() for _ in range(4)]
    keys = [Key(group=GROUP, tenant="acme", tier=Tier.STANDARD, key=f"k{n}") for n in range(40)]

    async def advance(connection: Connection, seed: int) -> None:
        shuffled = random.Random(seed).sample(keys, len(keys))
        for number in range(5):
            async with connection.transaction():
                await gate.advance(connection, [(key, number) for key in shuffled])

    async with asyncio.timeout(60):
        await asyncio.gather(*(advance(connection, seed) for seed, connection in enumerate(connections)))


class Process:
    """What a process does with deliveries: gate, ledger, handler and position in one transaction; late ones too."""

    def __init__(self, connection: Connection, running: set[str]) -> None:
        self.connection = connection
        self.running = running

    async def attempt(self, event: Event) -> bool:
        ordering = event.ordering
        assert ordering is not None
        async with self.connection.transaction():
            if not (await enter(self.connection, event)).may_run:
                return False
            claimed = await self.connection.execute(
                "INSERT INTO consumer.ledger_0 (slot, group_name, event_id, handler, tenant, state, attempts)"
                " VALUES (0, %s, %s, 'h', 'acme', 'done', 1) ON CONFLICT DO NOTHING",
                (GROUP, event.id),
            )
            if claimed.rowcount:
                assert ordering.key not in self.running, "two events of one key at once"
                self.running.add(ordering.key)
                await self.connection.execute("INSERT INTO effect VALUES (%s, %s)", (ordering.key, ordering.number))
                await handled(self.connection, event)
                self.running.discard(ordering.key)
        return True

    async def drain(self, events: list[Event], rng: random.Random) -> None:
        """Try what is left, in any order, until everything was handled by somebody."""
        left = list(events)
        while left:
            rng.shuffle(left)
            left = [event for event in left if not await self.attempt(event)]


async def test_racing_processes_handle_a_key_in_order_and_alone(connect: Connect) -> None:
    """namastack/namastack-outbox#9, MassTransit#3512"""
    connections = [await connect() for _ in range(4)]
    await connections[0].execute("CREATE TABLE effect (key text, number bigint, at bigserial)")
    events = [keyed(number, key=f"k{key}") for key in range(3) for number in range(1, 16)]
    running: set[str] = set()
    async with asyncio.timeout(90):
        await asyncio.gather(
            *(
                Process(connection, running).drain(events, random.Random(seed))
                for seed, connection in enumerate(connections)
            )
        )
    cursor = await connections[0].execute("SELECT key, array_agg(number ORDER BY at) FROM effect GROUP BY key")
    assert dict(await cursor.fetchall()) == {f"k{key}": list(range(1, 16)) for key in range(3)}


async def test_parked_events_of_a_key_come_up_one_after_the_other_across_processes(connect: Connect) -> None:
    """namastack/namastack-outbox#9, MassTransit#3512"""
    connections = [await connect() for _ in range(3)]
    for number in random.Random(7).sample(range(2, 22), 20):
        await park(connections[0], keyed(number))
    await handled(connections[0], keyed(1))
    order: list[int] = []

    async def pump(connection: Connection) -> None:
        owner = uuid4()
        while len(order) < 20:
            await gate.sweep(connection, GROUP)
            for row in await work.take_due(connection, GROUP, owner=owner, per_lane_limit=2, total=2):
                event = wire.decode(row.stored.message)
                async with connection.transaction():
                    assert (await enter(connection, event)).may_run
                    order.append(row.stored.key_number or 0)
                    await handled(connection, event)
                    await work.finish(connection, GROUP, [row.event_id], owner=owner)

    async with asyncio.timeout(60):
        await asyncio.gather(*map(pump, connections))
    assert order == list(range(2, 22))
