"""The demo's app: a shop with twenty tenants, one of them noisy.

Every order is one business row and one event in one transaction. The handler writes one effect row per
order into a table without a unique constraint, so that a doubled effect could not hide.
"""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID, uuid4

from sqlalchemy import Column, DateTime, MetaData, Table, Text, Uuid, func, insert
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker

from consumer import Consumer, Context
from outbox import EventModel, Outbox, Tier

NOISY_ORDERS = 5000
QUIET_TENANTS = tuple(f"quiet-{number:02}" for number in range(1, 20))
NOISY_TENANT = "noisy"

metadata = MetaData(schema="demo")
placed_order = Table(
    "placed_order",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("tenant", Text, nullable=False),
)
shipment = Table(
    "shipment",
    metadata,
    Column("order_id", Uuid, nullable=False),
    Column("event_id", Uuid, nullable=False),
    Column("tenant", Text, nullable=False),
    Column("started_at", DateTime(timezone=True), nullable=False),
)


class OrderPlaced(EventModel, type="demo.order.placed"):
    """Somebody ordered something."""

    order_id: UUID
    item: str


outbox = Outbox(source="/demo/shop")
consumer = Consumer("default")


@consumer.on(OrderPlaced)
async def ship(event: OrderPlaced, ctx: Context, session: AsyncSession) -> None:
    """Write one shipment for the order."""
    row = {"order_id": event.order_id, "event_id": ctx.event.id, "tenant": ctx.tenant}
    await session.execute(insert(shipment).values(**row, started_at=func.clock_timestamp()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Shop:
    """Places orders through an engine that it does not own."""

    engine: AsyncEngine

    async def order(self, tenant: str, items: Sequence[str], *, tier: Tier) -> None:
        """Commit one order per item, with its event, all in one transaction."""
        sessions = async_sessionmaker(self.engine, expire_on_commit=False)
        orders = [OrderPlaced(order_id=uuid4(), item=item) for item in items]
        async with sessions() as session, session.begin():
            rows = [{"id": order.order_id, "tenant": tenant} for order in orders]
            await session.execute(insert(placed_order), rows)
            for order in orders:
                outbox.emit(session, order, tenant=tenant, tier=tier)

    async def flood(self) -> None:
        """The noisy tenant: thousands of bulk orders in one go."""
        await self.order(NOISY_TENANT, [f"item {number}" for number in range(NOISY_ORDERS)], tier=Tier.BULK)

    async def trickle(self, tenant: str, *, seconds: float, rng: random.Random) -> None:
        """A quiet tenant: a few orders a second, for *seconds*."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while loop.time() < until:
            await self.order(tenant, ["item"], tier=Tier.STANDARD)
            await asyncio.sleep(rng.uniform(0.2, 0.6))
