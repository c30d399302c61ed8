"""The engine on real RabbitMQ: the same handlers, with quorum and with classic queues, and the real process."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from consumer import Context, Outcome, Policy, Retry
from consumer.decide.control import Scope
from consumer.store import control
from outbox.event import EventModel, Ordering, Tier
from outbox.topology import QueueKind
from outbox.wire import encode
from tests.support.containers import RabbitContainer
from tests.support.engine import GROUP, TYPE, Rig, an_event, lane_of
from tests.support.processes import ConsoleProcess, Processes
from tests.support.rabbit import RabbitNode
from tests.support.rabbit_queues import RabbitQueues, queues_of, rabbit_rig
from tests.support.wait import until

OTHER = "orders.order.shipped"
INSERT = text("INSERT INTO effect (note) VALUES (:note)")
AT_ONCE = Policy(base_s=0.01, max_wait_s=0.02, budget=None, breaker=None)

APP = """
import asyncio, pathlib
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession
from consumer import Consumer, Context
from outbox.event import EventModel

class OrderPlaced(EventModel, type="orders.order.placed"):
    order_id: int

consumer = Consumer("billing")
INSERT = text("INSERT INTO effect (note) VALUES (:note)")

@consumer.on(OrderPlaced)
async def bill(event: OrderPlaced, ctx: Context, session: AsyncSession) -> None:
    await session.execute(INSERT, {"note": str(event.order_id)})
    ctx.log.info("billing", order_id=event.order_id)
    while event.order_id >= 100 and not pathlib.Path("go").exists():
        await asyncio.sleep(0.02)
"""


class OrderPlaced(EventModel, type=TYPE):
    order_id: int


@pytest.fixture(params=["quorum", "classic"])
async def rig(request: pytest.FixtureRequest, migrated_database: str, vhost: str) -> AsyncIterator[Rig]:
    kind: QueueKind = request.param
    async with rabbit_rig(migrated_database, vhost, kind) as rig:
        yield rig


async def test_events_of_many_tenants_are_handled_once_each_and_in_order(rig: Rig) -> None:
    """namastack/namastack-outbox#9, MassTransit/MassTransit#3512."""

    @rig.consumer.on(OrderPlaced, policy=AT_ONCE)
    async def bill(event: OrderPlaced, ctx: Context, session: AsyncSession) -> Outcome | None:
        if event.order_id % 5 == 0 and ctx.attempt == 1:
            return Retry()
        await session.execute(INSERT, {"note": f"{ctx.tenant} {event.order_id}"})
        return None

    @rig.consumer.on(OrderPlaced)
    def thank(event: OrderPlaced, session: Session) -> None:
        session.execute(INSERT, {"note": "thanks"})

    for _ in range(2):
        await rig.start()
    await rig.publish(
        *(
            an_event(
                number,
                tenant=f"t{tenant}",
                ordering=Ordering(key="k", number=number, is_first=number == 1, previous_time=None),
            )
            for number in range(1, 11)
            for tenant in range(4)
        )
    )
    await rig.until(lambda: rig.count("effect") >= 80, deadline_s=40)
    await rig.until_settled()
    await rig.until(lambda: rig.count("consumer.work") == 0)
    for tenant in range(4):
        notes = [note for note in rig.effects() if note.startswith(f"t{tenant} ")]
        assert notes == [f"t{tenant} {number}" for number in range(1, 11)]
    assert rig.effects().count("thanks") == 40


async def test_a_paused_type_at_the_head_of_a_lane_blocks_no_other_type_behind_it(rig: Rig) -> None:
    @rig.consumer.on(OrderPlaced)
    async def bill(event: OrderPlaced, session: AsyncSession) -> None:
        await session.execute(INSERT, {"note": f"bill {event.order_id}"})

    @rig.consumer.on(OTHER)
    async def thank(event: dict[str, int], session: AsyncSession) -> None:
        await session.execute(INSERT, {"note": f"thank {event['order_id']}"})

    async with await psycopg.AsyncConnection.connect(rig.database_url, autocommit=True) as connection:
        scope = Scope(type=TYPE)
        await control.pause(connection, GROUP, scope, actor="ann", reason="its service is down")
        await rig.start()
        key = [Ordering(key="k", number=number, is_first=number == 1, previous_time=None) for number in range(1, 61)]
        await rig.publish(*(an_event(one.number, ordering=one) for one in key), an_event(99, type=OTHER))
        await rig.until(rig.effects)
        assert rig.effects() == ["thank 99"]
        await rig.until_settled()
        await control.resume(connection, GROUP, scope, actor="ann")
        await rig.until(lambda: rig.count("effect") == 61, deadline_s=90)
    assert rig.effects()[1:] == [f"bill {number}" for number in range(1, 61)]
    await rig.until(lambda: rig.count("consumer.work") == 0)


async def test_one_lane_alone_uses_every_slot_that_its_tier_may_have(rig: Rig) -> None:
    running: set[int] = set()
    enough = asyncio.Event()

    @rig.consumer.on(OrderPlaced)
    async def bill(event: OrderPlaced) -> None:
        running.add(event.order_id)
        if len(running) == 7:  # ten slots, three of them for interactive work only
            enough.set()
        await enough.wait()

    await rig.start()
    await rig.publish(*(an_event(number) for number in range(40)))
    await asyncio.wait_for(enough.wait(), 10)
    await rig.until_settled()


async def test_interactive_work_starts_while_bulk_work_fills_its_slots(rig: Rig) -> None:
    is_blocked = asyncio.Event()

    @rig.consumer.on(OrderPlaced)
    async def bill(event: OrderPlaced, ctx: Context, session: AsyncSession) -> None:
        if ctx.event.tier is Tier.BULK:
            await is_blocked.wait()
        else:
            await session.execute(INSERT, {"note": ctx.event.tier.label})

    await rig.start()
    await rig.publish(*(an_event(number, tier=Tier.BULK) for number in range(40)))
    await rig.publish(an_event(tier=Tier.INTERACTIVE), an_event(tier=Tier.STANDARD))
    await rig.until(lambda: sorted(rig.effects()) == ["interactive", "standard"])
    is_blocked.set()
    await rig.until_settled()


async def test_a_planned_end_just_after_success_redelivers_nothing(rig: Rig) -> None:
    """Bogdanp/dramatiq#148."""
    handled = asyncio.Event()

    @rig.consumer.on(OrderPlaced)
    async def bill(event: OrderPlaced) -> None:
        handled.set()

    process = await rig.start()
    event = an_event()
    await rig.publish(event)
    await asyncio.wait_for(handled.wait(), 10)
    await process.drain()
    assert await rig.queues.in_queue(lane_of(event).queue) == 0


# ------------------------------------------------------------------ the process


async def test_a_killed_process_loses_nothing_and_a_terminated_one_hands_back(
    rig: Rig, processes: Processes, tmp_path: Path
) -> None:
    """celery/celery#1628, taskiq-python/taskiq#380, janbjorge/pgqueuer#630, #475."""
    (tmp_path / "shop.py").write_text(APP)
    assert isinstance(rig.queues, RabbitQueues)
    settings = {
        "DATABASE_URL": rig.database_url,
        "RABBITMQ_URL": rig.queues.address.url,
        "OUTBOX_CONSUMER_QUEUE_KIND": rig.queues.kind,
        "OUTBOX_CONSUMER_LEASE_S": "3",
        "OUTBOX_CONSUMER_HEALTH_PORT": "0",
    }

    def start() -> ConsoleProcess:
        return processes.start("outbox-consumer", "run", "shop:consumer", settings=settings, cwd=tmp_path)

    await rig.publish(*(an_event(number) for number in range(100, 112)))
    first = start()
    await first.line('"billing"', times=7)
    first.kill()
    assert rig.effects() == []
    second = start()
    await second.line('"billing"', times=7)
    second.terminate()
    await second.line('"draining"')
    lane = lane_of(an_event())
    await until(lambda: _ready_is(rig, lane.queue, 5), what="what had not started to be in the lane again")
    (tmp_path / "go").touch()
    assert await second.ended() == 0
    assert len(rig.effects()) == 7
    third = start()
    await rig.until(lambda: rig.count("effect") == 12)
    third.terminate()
    assert await third.ended() == 0
    assert sorted(rig.effects()) == [str(number) for number in range(100, 112)]
    assert rig.value("SELECT max(attempts) FROM consumer.ledger") == 1


async def _ready_is(rig: Rig, queue: str, count: int) -> bool:
    return await rig.queues.in_queue(queue) == count


async def test_a_restarted_broker_is_consumed_from_within_ten_seconds(
    migrated_database: str, faulty_rabbit: RabbitNode | RabbitContainer
) -> None:
    """ag2ai/faststream#2758, celery/celery#10302."""
    async with rabbit_rig(migrated_database, faulty_rabbit.url(), "classic") as rig:

        @rig.consumer.on(OrderPlaced)
        async def bill(event: OrderPlaced, session: AsyncSession) -> None:
            await session.execute(INSERT, {"note": str(event.order_id)})

        process = await rig.start()
        await rig.publish(an_event(1))
        await rig.until(lambda: rig.effects() == ["1"])
        await asyncio.to_thread(faulty_rabbit.stop)
        await rig.until(lambda: not process.is_ready())
        await asyncio.to_thread(faulty_rabbit.start)
        async with queues_of(faulty_rabbit.url(), "classic") as queues:
            event = an_event(2)
            await queues.publish(lane_of(event), [encode(event)])
            await rig.until(lambda: rig.effects() == ["1", "2"], deadline_s=10)
        await rig.until(process.is_ready)


async def test_after_a_restart_of_the_broker_what_comes_again_is_nobodys_suspicion(
    migrated_database: str, faulty_rabbit: RabbitNode | RabbitContainer
) -> None:
    """rabbitmq/rabbitmq-server#2013: after a restart everything comes with the mark of what was delivered before."""
    async with rabbit_rig(migrated_database, faulty_rabbit.url(), "classic") as rig:
        rig.limits = replace(rig.limits, slots=4, prefetch=10)
        is_back = asyncio.Event()

        @rig.consumer.on(OrderPlaced)
        async def bill(event: OrderPlaced, session: AsyncSession) -> None:
            await session.execute(INSERT, {"note": str(event.order_id)})
            await is_back.wait()

        process = await rig.start()
        await rig.publish(*(an_event(number) for number in range(20)))
        await rig.until(lambda: process.readiness.engine is not None and process.readiness.engine.hands.running == 2)
        await process.crash()
        await asyncio.to_thread(faulty_rabbit.stop)
        await asyncio.to_thread(faulty_rabbit.start)
        is_back.set()
        await rig.start()
        await rig.until(lambda: rig.count("effect") == 20)
        await rig.until(lambda: rig.count("consumer.start") == 0)
        assert rig.value("SELECT max(attempts) FROM consumer.ledger") == 1
        assert (rig.count("consumer.work"), rig.count("consumer.dead")) == (0, 0)
