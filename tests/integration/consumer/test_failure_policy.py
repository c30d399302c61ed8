"""What a handler's failures lead to, on a real database: rules, budgets and breakers."""

from collections.abc import AsyncIterator

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from consumer import Alert, AlertKind, Context, PauseHandler, PauseLane, Policy, Rule
from consumer.decide.control import Scope
from consumer.store import control
from outbox.event import EventModel
from tests.integration.consumer.conftest import Connect
from tests.support.engine import GROUP, TYPE, Rig, an_event, memory_rig

INSERT = text("INSERT INTO effect (note) VALUES (:note)")
AT_ONCE = Policy(base_s=0.01, max_wait_s=0.02)
OTHER = "orders.order.shipped"


class OrderPlaced(EventModel, type=TYPE):
    order_id: int


class OrderShipped(EventModel, type=OTHER):
    order_id: int


class Down(Exception):
    """What the handlers here raise while what they call is down."""


@pytest.fixture
async def rig(migrated_database: str) -> AsyncIterator[Rig]:
    async with memory_rig(migrated_database) as rig:
        yield rig


# ------------------------------------------------------------------ rules


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
