"""What a handler's failures lead to, on a real database: rules, budgets and breakers."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from consumer import Alert, AlertKind, Breaker, Budget, Context, PauseHandler, PauseLane, Policy, Rule
from consumer.decide.control import Scope
from consumer.decide.heartbeat import Heartbeat
from consumer.store import control
from outbox.event import EventModel, Ordering, Tier
from tests.integration.consumer.conftest import Connect
from tests.support.engine import GROUP, TYPE, Rig, an_event, memory_rig
from tests.support.rabbit_queues import rabbit_rig

INSERT = text("INSERT INTO effect (note) VALUES (:note)")
AT_ONCE = Policy(base_s=0.01, max_wait_s=0.02)
OTHER = "orders.order.shipped"


class OrderPlaced(EventModel, type=TYPE):
    order_id: int


class OrderShipped(EventModel, type=OTHER):
    order_id: int


def kinds(alerts: list[Alert]) -> set[AlertKind]:
    return {alert.kind for alert in alerts}


class Down(Exception):
    """What the handlers here raise while what they call is down."""


@pytest.fixture
async def rig(migrated_database: str) -> AsyncIterator[Rig]:
    async with memory_rig(migrated_database) as rig:
        yield rig


@pytest.fixture
async def rabbit(migrated_database: str, vhost: str) -> AsyncIterator[Rig]:
    async with rabbit_rig(migrated_database, vhost, "quorum") as rig:
        yield rig


# ------------------------------------------------------------------ an app's rules


async def test_a_rule_pauses_a_lane_for_a_time_and_no_other_and_charges_nobody(rig: Rig) -> None:
    is_down = True
    alerts: list[Alert] = []
    rig.consumer.on_alert(alerts.append)

    @rig.consumer.on(OrderPlaced, rules=[Rule(match=Down, then=PauseLane(for_s=0.5))])
    async def bill(event: OrderPlaced, ctx: Context, session: AsyncSession) -> None:
        if ctx.tenant == "acme" and is_down:
            raise Down
        await session.execute(INSERT, {"note": f"{ctx.tenant} {ctx.attempt}"})

    await rig.start()
    await rig.publish(an_event())
    await rig.until(lambda: rig.count("consumer.control") == 1)
    assert rig.rows("SELECT tenant, tier, type, handler, source FROM consumer.control") == [
        ("acme", 1, None, None, "policy")
    ]
    await rig.publish(an_event(tenant="zeta"))
    await rig.until(lambda: rig.effects() == ["zeta 1"])
    is_down = False
    await rig.publish(an_event(2))
    await rig.until(lambda: sorted(rig.effects()) == ["acme 1", "acme 1", "zeta 1"])
    await rig.until(lambda: rig.count("consumer.work") == 0)
    assert [(alert.kind, alert.tenant) for alert in alerts] == [(AlertKind.PAUSED, "acme")]


async def test_a_rule_pauses_a_handler_in_every_process_until_somebody_resumes_it(rig: Rig, connect: Connect) -> None:
    runs: list[str] = []

    @rig.consumer.on(OrderPlaced, rules=[Rule(match=Down, then=PauseHandler())])
    async def bill(event: OrderPlaced, ctx: Context) -> None:
        runs.append(ctx.tenant)
        if len(runs) == 1:
            raise Down

    @rig.consumer.on(OrderShipped)
    async def thank(event: OrderShipped, session: AsyncSession) -> None:
        await session.execute(INSERT, {"note": "thanked"})

    first, second = await rig.start(), await rig.start()
    await rig.publish(an_event())
    await rig.until(lambda: all(p.readiness.controls and p.readiness.controls.pauses == 1 for p in (first, second)))
    await rig.publish(*(an_event(number, tenant=f"t{number}") for number in range(5)))
    await rig.publish(*(an_event(number, tenant=f"t{number}", type=OTHER) for number in range(5)))
    await rig.until(lambda: rig.effects() == ["thanked"] * 5)
    assert runs == ["acme"]
    await control.resume(await connect(), GROUP, Scope(handler="bill"), actor="ann")
    await rig.until(lambda: rig.value("SELECT count(*) FROM consumer.ledger WHERE state = 'done'") == 11)
    assert rig.value("SELECT max(attempts) FROM consumer.ledger") == 1


async def test_who_is_throttled_from_its_first_attempt_on_is_dead_when_its_time_is_over(rig: Rig) -> None:
    class Busy(Exception):
        retry_after_s = 0.05

    @rig.consumer.on(OrderPlaced, policy=replace(AT_ONCE, max_elapsed_s=0.5))
    async def bill(event: OrderPlaced) -> None:
        raise Busy

    await rig.start()
    await rig.publish(an_event())
    await rig.until(lambda: rig.rows("SELECT category, attempts FROM consumer.dead") == [("exhausted", 1)])


# ------------------------------------------------------------------ the budget of retries


async def test_beyond_its_budget_a_tenants_events_are_dead_letters_and_those_with_a_key_wait(rig: Rig) -> None:
    runs: Counter[str] = Counter()
    alerts: list[Alert] = []
    rig.consumer.on_alert(alerts.append)
    budget = Budget(percent=0, per_minute_min=5)

    @rig.consumer.on(OrderPlaced, policy=replace(AT_ONCE, budget=budget, breaker=None))
    async def bill(event: OrderPlaced, ctx: Context) -> None:
        runs[ctx.tenant] += 1
        if ctx.tenant != "quiet" or ctx.attempt == 1:
            raise Down

    await rig.start()
    await rig.publish(*(an_event(number, tenant="noisy") for number in range(40)))
    await rig.publish(an_event(tenant="quiet"))
    await rig.until(lambda: rig.count("consumer.dead") == 40)
    await rig.until(lambda: rig.rows("SELECT tenant FROM consumer.ledger WHERE state = 'done'") != [])
    assert rig.rows("SELECT DISTINCT tenant, category FROM consumer.dead") == [("noisy", "over_budget")]
    assert runs == {"noisy": 45, "quiet": 2}

    keyed = an_event(tenant="noisy", ordering=Ordering(key="order-1", number=1, is_first=True, previous_time=None))
    await rig.publish(keyed)
    await rig.until(lambda: rig.count("consumer.work") == 1)
    assert rig.value("SELECT attempts FROM consumer.work") == 1
    assert rig.value("SELECT due_at > now() + interval '50 s' FROM consumer.work")
    assert rig.count("consumer.dead") == 40
    told = {(AlertKind.BUDGET_EXHAUSTED, "noisy"), (AlertKind.DEAD_GROWTH, None)}
    # A hook is called by a thread of its own.
    await rig.until(lambda: {(alert.kind, alert.tenant) for alert in alerts} == told, what="both alerts")


# ------------------------------------------------------------------ the circuit breaker


async def test_a_breaker_that_trips_during_a_burst_loses_nothing_and_charges_few(rabbit: Rig) -> None:
    """JasperFx/wolverine#3680."""
    breaker = Breaker(calls_min=10, window_s=2, open_s=0.2, open_max_s=0.5, probes=2, ramp_s=0.5)
    alerts: list[Alert] = []
    rabbit.consumer.on_alert(alerts.append)
    done, failed_when_open = 0, 0

    @rabbit.consumer.on(OrderPlaced, policy=Policy(base_s=0.05, breaker=breaker))
    async def bill(event: OrderPlaced, session: AsyncSession) -> None:
        nonlocal done, failed_when_open
        is_open = any(alert.kind is AlertKind.BREAKER_OPENED for alert in alerts)
        if done >= 200 and failed_when_open < 15:  # ten of them may have been under way, the rest are probes
            failed_when_open += is_open
            raise Down
        done += 1
        await session.execute(INSERT, {"note": str(event.order_id)})

    await rabbit.start()
    await rabbit.publish(*(an_event(number, tenant=f"t{number % 20}") for number in range(1200)))
    await rabbit.until(lambda: rabbit.count("effect") == 1200, deadline_s=100)
    assert len(set(rabbit.effects())) == 1200
    await rabbit.until(lambda: rabbit.count("consumer.work") == 0)
    await rabbit.until_settled()
    assert rabbit.count("consumer.dead") == 0
    assert rabbit.value("SELECT count(*) FROM consumer.ledger WHERE state = 'done'") == 1200
    assert rabbit.value("SELECT count(*) FROM consumer.ledger WHERE attempts > 1") < 240
    await rabbit.until(lambda: AlertKind.BREAKER_CLOSED in {alert.kind for alert in alerts})


async def test_an_open_breaker_at_the_head_of_a_lane_blocks_no_other_type_behind_it(rabbit: Rig) -> None:
    breaker = Breaker(calls_min=5, open_s=60)
    runs: list[int] = []

    @rabbit.consumer.on(OrderPlaced, policy=Policy(breaker=breaker))
    async def bill(event: OrderPlaced) -> None:
        runs.append(event.order_id)
        raise Down

    @rabbit.consumer.on(OrderShipped)
    async def thank(event: OrderShipped, session: AsyncSession) -> None:
        await session.execute(INSERT, {"note": "thanked"})

    process = await rabbit.start()
    assert process.readiness.engine is not None
    await rabbit.publish(*(an_event(number) for number in range(100)))
    await rabbit.publish(*(an_event(number, type=OTHER) for number in range(5)))
    await rabbit.until(lambda: rabbit.effects() == ["thanked"] * 5)
    said = process.readiness.engine.heartbeat()
    assert [(one.type, one.handler) for one in said.breakers] == [(TYPE, "bill")]
    assert said.tiers == tuple(Tier)
    assert Heartbeat.from_json(said.to_json()) == said
    assert len(runs) < 5 + rabbit.limits.slots + 1
    # What failed before it opened is charged; what it made wait is not.
    assert rabbit.value("SELECT count(*) FROM consumer.ledger WHERE attempts > 0 AND state = 'retry'") < 5
    assert rabbit.count("consumer.dead") == 0


async def test_only_the_probes_start_while_a_breaker_finds_out(rig: Rig) -> None:
    breaker = Breaker(calls_min=5, open_s=0.3, probes=2, ramp_s=0.5)
    alerts: list[Alert] = []
    rig.consumer.on_alert(alerts.append)
    failures, probes = 0, 0
    is_well = asyncio.Event()

    @rig.consumer.on(OrderPlaced, policy=Policy(base_s=3600, max_wait_s=3600, breaker=breaker))
    async def bill(event: OrderPlaced, session: AsyncSession) -> None:
        nonlocal failures, probes
        if failures < 5:
            failures += 1
            raise Down
        probes += not is_well.is_set()
        await is_well.wait()
        await session.execute(INSERT, {"note": "billed"})

    @rig.consumer.on(OrderShipped)
    async def thank(event: OrderShipped, session: AsyncSession) -> None:
        await session.execute(INSERT, {"note": "thanked"})

    await rig.start()
    for number in range(5):  # one at a time, so that none is under way when it opens
        await rig.publish(an_event(number))
        await rig.until(lambda number=number: failures > number or AlertKind.BREAKER_OPENED in kinds(alerts))  # type: ignore[misc]
    await rig.publish(*(an_event(number) for number in range(40)))
    await rig.until(lambda: probes == 2)
    await rig.publish(*(an_event(number, type=OTHER) for number in range(20)))
    await rig.until(lambda: rig.effects() == ["thanked"] * 20)
    assert probes == 2
    is_well.set()
    await rig.until(lambda: rig.effects().count("billed") == 40)
    await rig.until(lambda: AlertKind.BREAKER_CLOSED in kinds(alerts))
    assert rig.count("consumer.dead") == 0


async def test_a_breaker_of_one_tenant_leaves_the_handler_to_the_others(rig: Rig) -> None:
    breaker = Breaker(calls_min=5, open_s=60)
    alerts: list[Alert] = []
    rig.consumer.on_alert(alerts.append)

    @rig.consumer.on(OrderPlaced, policy=Policy(breaker=breaker))
    async def bill(event: OrderPlaced, ctx: Context, session: AsyncSession) -> None:
        if ctx.tenant == "broken":
            raise Down
        await session.execute(INSERT, {"note": ctx.tenant})

    await rig.start()
    await rig.publish(*(an_event(number, tenant=f"t{number}") for number in range(4)))
    await rig.publish(*(an_event(number, tenant="broken") for number in range(50)))
    await rig.until(lambda: any(alert.kind is AlertKind.BREAKER_OPENED for alert in alerts))
    await rig.publish(*(an_event(number, tenant=f"t{number}") for number in range(4)))
    await rig.until(lambda: len(rig.effects()) == 8)
    assert [(alert.kind, alert.tenant) for alert in alerts] == [(AlertKind.BREAKER_OPENED, "broken")]


async def test_what_an_open_breaker_has_put_off_is_handled_after_its_process_died(rig: Rig) -> None:
    is_down = True

    @rig.consumer.on(OrderPlaced, policy=Policy(base_s=0.01, breaker=Breaker(calls_min=5, open_s=60)))
    async def bill(event: OrderPlaced, session: AsyncSession) -> None:
        if is_down:
            raise Down
        await session.execute(INSERT, {"note": str(event.order_id)})

    rig.limits = replace(rig.limits, lease_s=1.0)
    process = await rig.start()
    await rig.publish(*(an_event(number) for number in range(60)))
    await rig.until(lambda: rig.value("SELECT count(due_before_pause) FROM consumer.work") > 20)
    await process.crash()
    is_down = False
    # One that waits for the breaker's end, as the dead process knew it, is not due before.
    rig.execute("UPDATE consumer.work SET due_at = now() WHERE due_before_pause IS NULL")
    await rig.start()
    await rig.until(lambda: len(set(rig.effects())) == 60)
    await rig.until(lambda: rig.count("consumer.work") == 0)
    assert (rig.count("effect"), rig.count("consumer.dead")) == (60, 0)
