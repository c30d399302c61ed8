"""What is published in place of a discarded event moves its key on as the event would have, and is never handled."""

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from consumer import Consumer, Context, Outcome, Policy, Retry
from outbox.event import Event, EventModel, Ordering
from tests.support.engine import GROUP, TYPE, Rig, an_event, memory_rig

INSERT = text("INSERT INTO effect (note) VALUES (:note)")
KEY = "order-1"


class OrderPlaced(EventModel, type=TYPE):
    order_id: int


@pytest.fixture
async def rig(migrated_database: str) -> AsyncIterator[Rig]:
    async with memory_rig(migrated_database) as rig:

        @rig.consumer.on(OrderPlaced)
        async def bill(event: OrderPlaced, session: AsyncSession) -> None:
            await session.execute(INSERT, {"note": str(event.order_id)})

        yield rig


def keyed(number: int, *, first: int = 1, age: timedelta = timedelta()) -> Event:
    ordering = Ordering(key=KEY, number=number, is_first=number == first, previous_time=None)
    return an_event(number, ordering=ordering, age=age)


def void_of(event: Event) -> Event:
    """What the relay publishes once *event* is discarded."""
    assert event.ordering is not None
    return replace(event, payload=b"", content_type="", ordering=replace(event.ordering, is_void=True))


def position(rig: Rig) -> int:
    found: int = rig.value("SELECT coalesce(max(number), 0) FROM consumer.key_position")
    return found


async def test_a_void_moves_its_key_and_runs_nothing_however_often_and_in_which_order_it_arrives(rig: Rig) -> None:
    """namastack/namastack-outbox#9, MassTransit/MassTransit#3512: the number keeps the place that the event had."""
    events = [void_of(keyed(number)) if number % 3 == 1 else keyed(number) for number in range(1, 13)]
    for _ in range(2):
        await rig.start()
    await rig.publish(*events[1::2], *events[::2], *events)
    await rig.until(lambda: position(rig) == 12)
    await rig.until_settled()
    await rig.until(lambda: rig.count("consumer.work") == 0)
    assert rig.effects() == ["2", "3", "5", "6", "8", "9", "11", "12"]
    assert rig.count("consumer.dead") == 0


async def test_a_void_that_comes_early_is_kept_and_passes_in_its_turn_after_a_crash(rig: Rig) -> None:
    process = await rig.start()
    await rig.publish(void_of(keyed(2)), keyed(3))
    await rig.until(lambda: rig.count("consumer.work") == 2)
    await rig.until_settled()
    assert rig.rows("SELECT DISTINCT reason FROM consumer.work") == [("waiting",)]
    await process.crash()

    await rig.start()
    await rig.publish(keyed(1))
    await rig.until(lambda: rig.effects() == ["1", "3"])
    await rig.until(lambda: rig.count("consumer.work") == 0)


@pytest.mark.parametrize("is_event_first", [True, False])
async def test_an_event_that_a_frozen_relay_sent_beside_its_void_is_handled_in_its_place_or_not_at_all(
    rig: Rig, *, is_event_first: bool
) -> None:
    await rig.start()
    event = keyed(2)
    both = [event, void_of(event)] if is_event_first else [void_of(event), event]
    await rig.publish(keyed(1), both[0])
    await rig.until(lambda: position(rig) == 2)
    await rig.publish(keyed(3))
    await rig.until(lambda: position(rig) == 3)
    await rig.publish(both[1], keyed(4))
    await rig.until(lambda: position(rig) == 4)
    await rig.until_settled()
    assert rig.effects() == (["1", "2", "3", "4"] if is_event_first else ["1", "3", "4"])


async def test_an_event_that_waits_for_its_retry_is_skipped_once_its_void_has_passed(rig: Rig) -> None:
    tries: list[int] = []
    failing = Consumer(GROUP)

    @failing.on(OrderPlaced, policy=Policy(base_s=0.5, max_wait_s=0.5))
    async def bill(event: OrderPlaced, ctx: Context) -> Outcome | None:
        tries.append(event.order_id)
        return Retry() if event.order_id == 1 else None

    await rig.start(consumer=failing)
    event = keyed(1)
    await rig.publish(event)
    await rig.until(lambda: rig.rows("SELECT reason FROM consumer.work") == [("retry",)])
    await rig.publish(void_of(event))
    await rig.until(lambda: position(rig) == 1)
    await rig.until(lambda: rig.count("consumer.work") == 0)
    assert tries == [1]
    assert [state for _, state, _ in rig.states()] == ["skipped"]


async def test_neither_an_unknown_type_nor_its_age_holds_a_void_back(rig: Rig) -> None:
    await rig.start()
    old = void_of(keyed(5, first=5, age=timedelta(days=40)))
    await rig.publish(old, void_of(replace(keyed(6), type="orders.nobody.knows")), keyed(7))
    await rig.until(lambda: rig.effects() == ["7"])
    assert rig.count("consumer.dead") == 0
