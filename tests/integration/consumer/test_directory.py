"""Lanes and group starts, learnt and forgotten on a real database."""

import asyncio
import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import uuid4

from consumer.store import directory, gate, work
from consumer.store.directory import Announcement
from consumer.store.stored import Connection
from outbox import wire
from outbox.event import Tier
from outbox.naming import Lane
from tests.integration.consumer.conftest import Connect
from tests.support.waiting_events import GROUP, HORIZON, keyed

START = datetime(2026, 6, 15, 12, tzinfo=UTC)


def announcement(tenant: str, *, tier: Tier = Tier.STANDARD, started_at: datetime = START) -> Announcement:
    return Announcement(lane=Lane(group=GROUP, tier=tier, tenant=tenant), group_started_at=started_at)


async def known(connection: Connection) -> list[tuple[Tier, str]]:
    return [(one.lane.tier, one.lane.tenant) for one in await directory.lanes(connection, GROUP)]


async def test_lanes_are_known_once_however_often_they_are_announced(connection: Connection) -> None:
    announced = [announcement("b"), announcement("a"), announcement("a", tier=Tier.INTERACTIVE), announcement("b")]
    await directory.learn(connection, announced)
    await directory.learn(connection, announced)
    assert await known(connection) == [(Tier.INTERACTIVE, "a"), (Tier.STANDARD, "a"), (Tier.STANDARD, "b")]
    assert await directory.group_start(connection, GROUP) == START
    assert await directory.group_start(connection, "shipping") is None


async def test_a_lane_that_is_gone_is_forgotten_and_can_come_back(connection: Connection) -> None:
    await directory.learn(connection, [announcement("a"), announcement("b")])
    assert await directory.forget(connection, announcement("a").lane)
    assert not await directory.forget(connection, announcement("a").lane)
    assert await known(connection) == [(Tier.STANDARD, "b")]
    await directory.learn(connection, [announcement("a")])
    assert len(await known(connection)) == 2
    gone = replace(announcement("a"), is_gone=True)
    await directory.learn(connection, [announcement("a"), gone])
    assert await known(connection) == [(Tier.STANDARD, "b")]
    await directory.learn(connection, [gone, announcement("a")])
    assert len(await known(connection)) == 2


async def test_the_mark_is_another_whenever_the_lanes_are_others_and_only_then(connection: Connection) -> None:
    marks = [await directory.mark(connection, GROUP)]
    for change in ([announcement("a")], [announcement("b")], [replace(announcement("a"), is_gone=True)]):
        await directory.learn(connection, change)
        marks.append(await directory.mark(connection, GROUP))
    assert len(set(marks)) == 4
    await directory.learn(connection, [announcement("b"), replace(announcement("a"), is_gone=True)])
    await directory.learn(connection, [announcement("c"), replace(announcement("c"), is_gone=True)])
    assert await directory.mark(connection, GROUP) == marks[-1]


async def test_a_lane_is_written_again_only_when_it_was_not_seen_for_a_while(connection: Connection) -> None:
    await directory.learn(connection, [announcement("a")])
    (first,) = await directory.lanes(connection, GROUP)
    await directory.learn(connection, [announcement("a")])
    assert await directory.lanes(connection, GROUP) == [first]
    await connection.execute("UPDATE consumer.lane SET seen_at = seen_at - interval '6 min'")
    await directory.learn(connection, [announcement("a")])
    (again,) = await directory.lanes(connection, GROUP)
    assert again.seen_at >= first.seen_at


async def test_a_group_that_learns_its_start_asks_again_for_what_waits(connection: Connection) -> None:
    event = keyed(8)
    await gate.park(connection, GROUP, event, wire.encode(event), horizon=HORIZON)
    await directory.learn(connection, [announcement("acme", started_at=datetime.now(UTC) + timedelta(hours=1))])
    rows = await work.take_due(connection, GROUP, owner=uuid4(), per_lane_limit=10, total=10)
    assert [row.event_id for row in rows] == [event.id]
    assert (await gate.look(connection, GROUP, event, horizon=HORIZON)).may_run


async def test_announcements_in_opposite_orders_do_not_deadlock(connect: Connect) -> None:
    connections = [await connect() for _ in range(4)]
    announced = [announcement(f"t{n}") for n in range(50)]

    async def learn(connection: Connection, seed: int) -> None:
        async with connection.transaction():
            await directory.learn(connection, random.Random(seed).sample(announced, len(announced)))

    async with asyncio.timeout(60):
        await asyncio.gather(*(learn(connection, seed) for seed, connection in enumerate(connections)))
    assert len(await known(connections[0])) == 50
