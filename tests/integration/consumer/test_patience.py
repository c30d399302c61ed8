"""The broker's patience: it closes the channel of whoever holds a delivery for longer than its consumer timeout."""

import asyncio
import time

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from consumer import Context, Outcome, Policy, Retry
from outbox.event import EventModel
from tests.support.containers import RabbitContainer
from tests.support.engine import TYPE, Rig, an_event
from tests.support.patience import impatient
from tests.support.rabbit import RabbitNode
from tests.support.rabbit_queues import rabbit_rig
from tests.support.services import fresh_name

Node = RabbitNode | RabbitContainer

INSERT = text("INSERT INTO effect (note) VALUES (:note)")
# Several times as long as the broker waits.
LONG_S = 3.0
TENANTS = 12


class OrderPlaced(EventModel, type=TYPE):
    order_id: int


async def test_a_handler_and_a_retry_longer_than_the_brokers_patience_have_their_effect_once_and_stop_no_neighbour(
    migrated_database: str, faulty_rabbit: Node
) -> None:
    """mosquito/aio-pika#288, Bogdanp/dramatiq#827: it was handed out again while it ran, or waited, and ran twice."""
    vhost = fresh_name("patience")
    faulty_rabbit.management.add_vhost(vhost)
    began: list[str] = []
    may_end = asyncio.Event()
    async with impatient(faulty_rabbit), rabbit_rig(migrated_database, faulty_rabbit.url(vhost), "quorum") as rig:
        _handle(rig, began, may_end)
        await rig.start()
        await rig.publish(an_event(1, tenant="slow"), an_event(2, tenant="retried"))
        await rig.until(lambda: {"slow 1", "retried 1"} <= set(began))
        began_at = time.monotonic()
        # More lanes than channels: each channel that is closed over the slow one takes some of them along.
        for number in range(10, 13):
            await rig.publish(*(an_event(number, tenant=f"t{tenant}") for tenant in range(TENANTS)))
            await rig.until(
                lambda: rig.count("effect where note like 't%'") == (number - 9) * TENANTS,  # noqa: B023
                what="the neighbours' effects",
            )
        await rig.until(lambda: time.monotonic() > began_at + LONG_S)
        assert "slow" not in rig.effects()
        may_end.set()
        await rig.until(lambda: rig.count("effect") == 3 * TENANTS + 2, deadline_s=30)
        await rig.until_settled(deadline_s=30)
        await rig.until(lambda: rig.count("consumer.work") == 0)
        assert sorted(note for note in rig.effects() if note[0] != "t") == ["retried", "slow"]
        assert began.count("slow 1") == began.count("retried 1") == began.count("retried 2") == 1
        assert len(began) == 3 + 3 * TENANTS
        assert rig.states() == [("handle", "done", 1)] * (3 * TENANTS + 1) + [("handle", "done", 2)]
    faulty_rabbit.management.delete_vhost(vhost)


def _handle(rig: Rig, began: list[str], may_end: asyncio.Event) -> None:
    @rig.consumer.on(OrderPlaced, policy=Policy(base_s=LONG_S, max_wait_s=LONG_S * 2))
    async def handle(event: OrderPlaced, ctx: Context, session: AsyncSession) -> Outcome | None:
        began.append(f"{ctx.tenant} {ctx.attempt}")
        if ctx.tenant == "slow":
            await may_end.wait()
        if ctx.tenant == "retried" and ctx.attempt == 1:
            return Retry()
        await session.execute(INSERT, {"note": ctx.tenant})
        return None
