"""The control table on a real database, and an engine that follows it."""

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from consumer import Context, Policy
from consumer.decide.control import Scope, Source
from consumer.store import control
from consumer.store.stored import Connection
from outbox.errors import ConfigError
from outbox.event import Event, EventModel, Tier
from outbox.inprocess import QueueCount
from tests.support.engine import GROUP, TYPE, MemoryQueues, Process, Rig, an_event, lane_of, memory_rig

INSERT = text("INSERT INTO effect (note) VALUES (:note)")
OTHER = "orders.order.shipped"
LATE = "orders.order.late"
ACME = Scope(tenant="acme")


class OrderPlaced(EventModel, type=TYPE):
    order_id: int


class OrderShipped(EventModel, type=OTHER):
    order_id: int


@pytest.fixture
async def rig(migrated_database: str) -> AsyncIterator[Rig]:
    async with memory_rig(migrated_database) as rig:

        @rig.consumer.on(OrderPlaced)
        async def bill(event: OrderPlaced, ctx: Context, session: AsyncSession) -> None:
            await session.execute(INSERT, {"note": f"bill {ctx.tenant}"})

        @rig.consumer.on(OrderShipped)
        async def thank(event: OrderShipped, ctx: Context, session: AsyncSession) -> None:
            await session.execute(INSERT, {"note": f"thank {ctx.tenant}"})

        yield rig


async def pause(connection: Connection, scope: Scope, **options: object) -> None:
    await control.pause(connection, GROUP, scope, actor="ann", reason="a test", **options)  # type: ignore[arg-type]


async def resume(connection: Connection, scope: Scope) -> None:
    await control.resume(connection, GROUP, scope, actor="ann")


def holds(process: Process, pauses: int) -> bool:
    controls = process.readiness.controls
    return controls is not None and controls.pauses == pauses


# -------------------------------------------------------------------- the table


async def test_what_was_paused_and_weighed_is_read_back_with_who_why_and_until(connection: Connection) -> None:
    until = datetime.now(UTC) + timedelta(hours=1)
    lane = Scope(tenant="acme", tier=Tier.BULK)
    await control.pause(connection, GROUP, lane, actor="ann", reason="its database is full", until=until)
    await control.pause(connection, GROUP, Scope(handler="bill"), actor="bill", reason="failing", for_s=30)
    await control.pause(connection, "another", Scope(), actor="ann", reason="")
    await control.set_weight(connection, GROUP, "acme", 5, actor="bob", reason="a migration")

    found = await control.read(connection, GROUP)
    first, second = found.pauses
    assert (first.scope, first.source, first.actor, first.reason, first.until) == (
        lane,
        Source.OPERATOR,
        "ann",
        "its database is full",
        until,
    )
    assert second.until is not None
    assert timedelta(seconds=29) < second.until - found.at < timedelta(seconds=31)
    (weight,) = found.weights
    assert (weight.tenant, weight.weight, weight.actor) == ("acme", 5, "bob")
    assert (await control.read(connection, "another")).is_group_paused


async def test_a_pause_that_was_set_again_is_one_pause_as_it_was_set_last(connection: Connection) -> None:
    for scope in (Scope(), ACME, Scope(type=TYPE), Scope(tenant="acme", tier=Tier.INTERACTIVE)):
        await pause(connection, scope)
        await pause(connection, scope, for_s=60)
    found = await control.read(connection, GROUP)
    assert len(found.pauses) == 4
    assert all(one.until is not None for one in found.pauses)


async def test_a_rule_that_ends_its_own_pause_leaves_the_one_of_an_operator(connection: Connection) -> None:
    await pause(connection, ACME)
    await pause(connection, ACME, source=Source.BREAKER, for_s=10)
    ended = await control.resume(connection, GROUP, ACME, actor="breaker", sources=[Source.BREAKER])
    assert [one.source for one in ended] == [Source.BREAKER]
    assert [one.source for one in (await control.read(connection, GROUP)).pauses] == [Source.OPERATOR]

    await pause(connection, ACME, source=Source.POLICY)
    assert len(await control.resume(connection, GROUP, ACME, actor="ann")) == 2
    assert not (await control.read(connection, GROUP)).pauses


async def test_a_pause_ends_by_itself_and_is_forgotten_later(connection: Connection) -> None:
    await pause(connection, ACME, for_s=0.01)
    await control.set_weight(connection, GROUP, "acme", 2, actor="ann", reason="", for_s=0.01)
    await connection.execute("SELECT pg_sleep(0.02)")
    found = await control.read(connection, GROUP)
    assert (found.pauses, found.weights) == ((), ())
    assert await control.forget_ended(connection, GROUP) == 0
    await connection.execute("UPDATE consumer.control SET until = until - interval '2 hours'")
    assert await control.forget_ended(connection, GROUP) == 2


async def test_a_pause_that_would_have_ended_and_a_weight_out_of_range_are_refused(connection: Connection) -> None:
    with pytest.raises(ConfigError, match="want a time to come"):
        await pause(connection, ACME, until=datetime.now(UTC) - timedelta(seconds=1))
    for weight in (0, 101):
        with pytest.raises(ConfigError, match=r"weight: want 1\.\.100"):
            await control.set_weight(connection, GROUP, "acme", weight, actor="ann", reason="")
    assert (
        await (await connection.execute("SELECT FROM consumer.control UNION ALL SELECT FROM consumer.audit")).fetchall()
        == []
    )


async def test_what_an_operator_does_is_audited_and_what_a_breaker_does_is_not(connection: Connection) -> None:
    await pause(connection, ACME, source=Source.BREAKER, for_s=10)
    await control.resume(connection, GROUP, ACME, actor="breaker", sources=[Source.BREAKER])
    await pause(connection, ACME)
    await control.set_weight(connection, GROUP, "acme", 3, actor="bob", reason="why")
    await control.set_weight(connection, GROUP, "acme", 1, actor="bob", reason="")
    assert not (await control.read(connection, GROUP)).weights
    await resume(connection, ACME)
    await resume(connection, ACME)  # nothing is left to end
    cursor = await connection.execute("SELECT actor, action, group_name, detail FROM consumer.audit ORDER BY id")
    assert await cursor.fetchall() == [
        ("ann", "control.pause", GROUP, {"tenant": "acme", "reason": "a test", "until": None}),
        ("bob", "control.weight", GROUP, {"tenant": "acme", "weight": 3, "reason": "why", "until": None}),
        ("bob", "control.weight", GROUP, {"tenant": "acme", "weight": 1, "reason": "", "until": None}),
        ("ann", "control.resume", GROUP, {"tenant": "acme", "ended": ["operator"]}),
    ]


# -------------------------------------------------------------------- the engine


async def test_what_was_paused_before_a_process_started_does_not_start_until_it_is_resumed(
    rig: Rig, connection: Connection
) -> None:
    @rig.consumer.on(LATE)
    async def remind(event: Event, ctx: Context, session: AsyncSession) -> None:
        await session.execute(INSERT, {"note": f"remind {ctx.tenant} {ctx.event.tier.label}"})

    scopes = [
        Scope(tenant="whole"),
        Scope(tenant="lane", tier=Tier.BULK),
        Scope(tenant="typed", type=TYPE),
        Scope(tier=Tier.BULK, type=TYPE),
        Scope(handler="thank"),
    ]
    for scope in scopes:
        await pause(connection, scope)
    await rig.start()
    held = {
        "remind whole standard": an_event(tenant="whole", type=LATE),
        "remind lane bulk": an_event(tenant="lane", tier=Tier.BULK, type=LATE),
        "bill typed": an_event(tenant="typed"),
        "bill globex": an_event(tenant="globex", tier=Tier.BULK),
        "thank acme": an_event(tenant="acme", type=OTHER),
    }
    free = {
        "remind lane standard": an_event(tenant="lane", type=LATE),
        "remind typed standard": an_event(tenant="typed", type=LATE),
        "bill acme": an_event(tenant="acme"),
        "remind globex bulk": an_event(tenant="globex", tier=Tier.BULK, type=LATE),
    }
    await rig.publish(*held.values(), *free.values())
    await rig.until(lambda: len(rig.effects()) >= len(free))
    assert sorted(rig.effects()) == sorted(free)
    for scope in scopes:
        await resume(connection, scope)
    await rig.until(lambda: len(rig.effects()) == len(held | free))
    assert sorted(rig.effects()) == sorted(held | free)


async def test_every_process_follows_a_change_and_a_pause_ends_by_itself(rig: Rig, connection: Connection) -> None:
    processes = [await rig.start(), await rig.start()]
    await pause(connection, Scope(), for_s=2.0)
    await rig.until(lambda: all(holds(process, 1) for process in processes))
    await rig.publish(an_event(1), an_event(2, tenant="globex"))
    await rig.until(lambda: rig.effects() == [] and rig.count("consumer.lane") == 2)
    await rig.until(lambda: len(rig.effects()) == 2)
    await rig.until(lambda: all(holds(process, 0) for process in processes))


async def test_a_heavier_tenant_gets_its_share(rig: Rig, connection: Connection) -> None:
    await control.set_weight(connection, GROUP, "heavy", 3, actor="ann", reason="")
    await pause(connection, Scope())
    # So much in hand of each that a lane is never found empty for want of the next delivery.
    rig.limits = replace(rig.limits, share_by="events", prefetch=20)
    await rig.start()
    await rig.publish(*(an_event(number, tenant=tenant) for number in range(60) for tenant in ("heavy", "light")))
    await resume(connection, Scope())
    await rig.until(lambda: len(rig.effects()) == 120)
    first = rig.effects()[:60]
    assert first.count("bill heavy") >= 40


async def test_a_paused_group_hands_everything_back_and_leaves_it_in_the_queue(
    rig: Rig, connection: Connection
) -> None:
    process = await rig.start()
    await rig.publish(an_event(0, tenant="globex"))
    await rig.until(rig.effects)
    await pause(connection, Scope())
    await rig.until(lambda: holds(process, 1))
    events = [an_event(number, tenant=tenant) for number in range(20) for tenant in ("acme", "globex")]
    await rig.publish(*events)
    assert isinstance(rig.queues, MemoryQueues)
    broker = rig.queues.inner
    await rig.until(lambda: rig.count("consumer.lane") == 2)
    waiting = {QueueCount(ready=20, unsettled=0, consumers=0)}
    await rig.until(lambda: {broker.counts()[lane_of(event).queue] for event in events} == waiting)
    await resume(connection, Scope())
    await rig.until(lambda: rig.count("effect") == 41)
    assert rig.count("consumer.work") == 0
    await process.drain()


async def test_a_process_that_drains_while_its_group_is_paused_ends(rig: Rig, connection: Connection) -> None:
    await pause(connection, Scope())
    process = await rig.start()
    await process.drain(deadline_s=5.0)
    assert rig.count("consumer.incarnation") == 0


async def test_retries_of_a_paused_type_wait_and_take_no_room_from_others(rig: Rig, connection: Connection) -> None:
    fails = True

    @rig.consumer.on(
        "orders.order.failed", policy=Policy(max_retries=1000, base_s=0.01, max_wait_s=0.02, budget=None, breaker=None)
    )
    async def fail(event: Event, ctx: Context, session: AsyncSession) -> None:
        if fails:
            raise ConnectionError
        await session.execute(INSERT, {"note": f"{event.type} {ctx.attempt}"})

    @rig.consumer.on("orders.order.late", policy=Policy(base_s=0.01, max_wait_s=0.02))
    async def late(event: Event, ctx: Context, session: AsyncSession) -> None:
        if ctx.attempt == 1:
            raise ConnectionError
        await session.execute(INSERT, {"note": event.type})

    rig.limits = replace(rig.limits, work_total=2, work_per_lane=2)
    process = await rig.start()
    await rig.publish(*(an_event(tenant=f"t{number}", type="orders.order.failed") for number in range(4)))
    await rig.until(lambda: rig.count("consumer.work") == 4)
    await pause(connection, Scope(type="orders.order.failed"))
    await rig.until(lambda: rig.value("SELECT count(due_before_pause) FROM consumer.work") == 4)
    await rig.publish(an_event(tenant="t0", type="orders.order.late"))
    await rig.until(lambda: rig.effects() == ["orders.order.late"])
    fails = False
    await process.crash()
    await resume(connection, Scope(type="orders.order.failed"))
    await rig.start()
    await rig.until(lambda: rig.count("effect") == 5)
    await rig.until(lambda: rig.count("consumer.work") == 0)
