"""Old and new code of one group at work together: what only the new code reads ends up there, once and in order."""

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from consumer import Consumer, Context, DeadCategory, Policy, RetryLater
from consumer.store import dead, incarnation, unknown, work
from consumer.store.stored import Connection
from consumer.store.unknown import Kind
from outbox.event import Event, EventModel, Ordering
from outbox.wire import encode
from tests.integration.consumer.conftest import Connect
from tests.integration.consumer.test_dead import new_dead
from tests.support.engine import GROUP, TYPE, Rig, an_event, lane_of, memory_rig
from tests.support.waiting_events import new_work

DAY = timedelta(days=1)
INSERT = text("INSERT INTO effect (note) VALUES (:note)")


class Old(EventModel, type=TYPE, version=1):
    order_id: int


class New(EventModel, type=TYPE, version=2):
    order_id: int
    currency: str


def old_code() -> Consumer:
    consumer = Consumer(GROUP)

    @consumer.on(Old, name="bill")
    async def bill(event: Old, session: AsyncSession) -> None:
        await session.execute(INSERT, {"note": str(event.order_id)})

    return consumer


def new_code() -> Consumer:
    consumer = Consumer(GROUP)

    @consumer.on(New, name="bill")
    async def bill(event: New, session: AsyncSession) -> None:
        await session.execute(INSERT, {"note": str(event.order_id)})

    @consumer.upcast(New, from_version=1)
    def with_currency(payload: dict[str, Any]) -> dict[str, Any]:
        return {**payload, "currency": "EUR"}

    return consumer


def versioned(number: int, version: int, *, key: str | None = None) -> Event:
    payload = f'{{"order_id": {number}' + (', "currency": "USD"}' if version > 1 else "}")
    ordering = None if key is None else Ordering(key=key, number=number, is_first=number == 1, previous_time=None)
    return replace(an_event(payload=payload.encode(), ordering=ordering), data_version=version)


@pytest.fixture
async def rig(migrated_database: str) -> AsyncIterator[Rig]:
    async with memory_rig(migrated_database) as rig:
        yield rig


def open_letters(rig: Rig) -> int:
    return rig.count("consumer.dead WHERE resolution IS NULL")


async def process(connection: Connection, version: int) -> UUID:
    """A process that is alive, whose one handler reads versions up to *version*."""
    return await incarnation.begin(
        connection, GROUP, host="here", pid=1, lease_s=60, knows={TYPE: {"": (1, version), "bill": (1, version)}}
    )


async def take(connection: Connection, owner: UUID) -> list[work.WorkRow]:
    return await work.take_due(connection, GROUP, owner=owner, per_lane_limit=10, total=10)


async def bury(
    connection: Connection, *events: Event, category: str = "unknown_version", handlers: tuple[str, ...] = ("bill",)
) -> None:
    for event in events:
        new = replace(new_dead(event, handlers=handlers), category=DeadCategory(category))
        await dead.put(connection, new)


async def test_an_unknown_version_is_handled_by_itself_and_in_its_order_when_code_that_knows_it_starts(
    rig: Rig,
) -> None:
    old = await rig.start(consumer=old_code())
    await rig.publish(*(versioned(number, 1 if number == 1 else 2, key="order-1") for number in range(1, 6)))
    await rig.until(lambda: open_letters(rig) == 4, deadline_s=40)
    assert rig.rows("SELECT DISTINCT category, handlers FROM consumer.dead") == [("unknown_version", ["bill"])]
    await old.drain()
    await rig.start(consumer=new_code())
    await rig.until(lambda: rig.effects() == ["1", "2", "3", "4", "5"], deadline_s=40)
    await rig.until(lambda: rig.count("consumer.work") == 0)
    assert open_letters(rig) == 0
    assert rig.rows("SELECT DISTINCT actor, action FROM consumer.audit") == [("outbox-consumer", "dead.replay")]


async def test_old_code_beside_new_takes_nothing_that_was_replayed_for_the_new(rig: Rig) -> None:
    for code in (old_code, new_code, old_code):
        await rig.start(consumer=code())
    events = [versioned(number, number % 2 + 1, key=f"order-{key}") for number in range(1, 11) for key in range(3)]
    await rig.publish(*events)
    await rig.until(lambda: len(rig.effects()) == 30, deadline_s=40)
    await rig.until(lambda: rig.count("consumer.work") == 0)
    assert sorted(rig.effects()) == sorted(str(number) for number in range(1, 11) for _ in range(3))
    assert open_letters(rig) == 0
    # Each was buried once at most: nothing went back and forth.
    assert rig.value("SELECT count(*) - count(DISTINCT event_id) FROM consumer.dead") == 0


async def test_a_retry_of_what_only_new_code_reads_is_left_to_it(rig: Rig) -> None:
    tries: list[int] = []
    new = Consumer(GROUP, policy=Policy(base_s=0.2, max_wait_s=0.2))

    @new.on(New, name="bill")
    async def bill(event: New, ctx: Context) -> None:
        tries.append(ctx.attempt)
        if ctx.attempt < 4:
            raise RetryLater("not yet")

    process = await rig.start(consumer=new)
    await rig.publish(versioned(1, 2))
    await rig.until(lambda: tries)
    for _ in range(2):
        await rig.start(consumer=old_code())
    await rig.until(lambda: len(tries) == 4)
    await rig.until(lambda: rig.count("consumer.work") == 0)
    assert (tries, rig.count("consumer.dead")) == ([1, 2, 3, 4], 0)
    await process.drain()


async def test_a_duplicate_that_reaches_old_code_while_its_event_waits_for_new_is_acked(rig: Rig) -> None:
    await rig.start(consumer=old_code())
    event = versioned(1, 2)
    await rig.publish(event)
    await rig.until(lambda: open_letters(rig) == 1)
    rig.execute("SELECT consumer.replay_dead('billing', ARRAY(SELECT id FROM consumer.dead), 'ops', NULL)")
    await rig.queues.publish(lane_of(event), [encode(event)])
    await rig.until_settled()
    assert rig.rows("SELECT resolution FROM consumer.dead") == [("replayed",)]
    assert rig.rows("SELECT reason, owner FROM consumer.work") == [("replay", None)]


async def test_what_nobody_alive_can_read_is_a_dead_letter_again_after_a_while(connect: Connect) -> None:
    """It must not wait out of sight for a fleet that was rolled back."""
    connection = await connect()
    old, new = [await process(connection, version) for version in (1, 2)]
    event = versioned(1, 2)
    await work.put(connection, [new_work(event)])
    assert await take(connection, old) == []
    assert await work.seconds_to_next(connection, GROUP, owner=old) is None
    assert await work.seconds_to_next(connection, GROUP, owner=new) == 0
    assert await unknown.give_up(connection, GROUP, owner=old) == 0  # it is not late yet
    await connection.execute("UPDATE consumer.work SET due_at = due_at - interval '61 s'")
    assert await unknown.give_up(connection, GROUP, owner=old) == 0  # one that can read it is alive
    await incarnation.end(connection, new)
    assert await unknown.give_up(connection, GROUP, owner=uuid4()) == 0  # one process does it
    assert await take(connection, old) == []
    assert await unknown.give_up(connection, GROUP, owner=old) == 1
    assert [row.event_id for row in await take(connection, old)] == [event.id]


async def test_one_process_replays_the_one_that_has_run_for_longest_of_those_that_can(connect: Connect) -> None:
    connection = await connect()
    old, first, second = [await process(connection, version) for version in (1, 2, 2)]
    await bury(connection, versioned(1, 2), versioned(2, 2), versioned(3, 7))
    wanted = Kind(type=TYPE, version=2)
    assert [await unknown.led(connection, GROUP, owner=one) for one in (old, first, second)] == [[], [wanted], []]
    await incarnation.end(connection, first)
    assert await unknown.led(connection, GROUP, owner=second) == [wanted]
    found = await unknown.letters(connection, GROUP, wanted, owner=second, type_age=DAY, limit=1)
    assert len(found) == 1


async def test_a_type_that_was_unknown_for_long_is_replayed_by_hand_alone(connect: Connect) -> None:
    """A new handler is not sent what was buried months before anybody wrote it."""
    connection = await connect()
    owner = await process(connection, 1)
    await bury(connection, versioned(1, 1), versioned(2, 1), category="unknown_type", handlers=())
    kind = Kind(type=TYPE, version=1)
    await connection.execute("UPDATE consumer.dead SET dead_at = dead_at - interval '25 h' WHERE id = 1")
    assert await unknown.led(connection, GROUP, owner=owner) == [kind]
    assert await unknown.letters(connection, GROUP, kind, owner=owner, type_age=DAY, limit=10) == [2]


async def test_letters_of_a_handler_that_is_gone_stand_in_nobodys_way(connect: Connect) -> None:
    connection = await connect()
    owner = await process(connection, 2)
    await bury(connection, versioned(1, 2), handlers=("removed",))
    await bury(connection, versioned(2, 2))
    kind = Kind(type=TYPE, version=2)
    assert await unknown.letters(connection, GROUP, kind, owner=owner, type_age=DAY, limit=10) == [2]


async def test_what_is_replayed_by_itself_comes_at_a_bounded_rate(rig: Rig) -> None:
    old = await rig.start(consumer=old_code())
    await rig.publish(*(versioned(number, 2) for number in range(30)))
    await rig.until(lambda: open_letters(rig) == 30)
    await old.drain()
    rig.limits = replace(rig.limits, replay_unknown_per_s=10)
    await rig.start(consumer=new_code())
    await rig.until(lambda: len(rig.effects()) == 30, deadline_s=30)
    batches = rig.rows("SELECT jsonb_array_length(detail->'ids') FROM consumer.audit ORDER BY id")
    assert batches == [(10,), (10,), (10,)]


async def test_a_letter_of_what_was_handled_meanwhile_is_let_go_and_its_key_moves_on(
    rig: Rig, connect: Connect
) -> None:
    """A duplicate that old code buried beside the event itself must not hold the key for ever."""
    await rig.start(consumer=new_code())
    first = versioned(1, 2, key="order-1")
    await rig.publish(first)
    await rig.until(lambda: rig.effects() == ["1"])
    await bury(await connect(), first)
    await rig.publish(versioned(2, 2, key="order-1"))
    await rig.until(lambda: rig.effects() == ["1", "2"])
    await rig.until(lambda: open_letters(rig) == 0)
    assert rig.rows("SELECT resolution, resolved_by FROM consumer.dead") == [("discarded", "outbox-consumer")]
