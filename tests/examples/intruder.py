"""A handler that reaches for the rows of another tenant, globex, whoever's event it is given."""

from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncSession

from consumer import Consumer, Done, Policy
from outbox import Event

# Those of examples/shop, which the test has put on the path.
from tables import Invoice, Order  # isort: skip

consumer = Consumer("intruder", policy=Policy(max_retries=0))


@consumer.on("orders.order.placed", name="reader")
async def read_and_change(_event: Event, session: AsyncSession) -> Done:
    """Count what it sees of globex, and what it can change."""
    seen = list(await session.scalars(select(Order.id).where(Order.tenant_id == "globex")))
    changed = await session.scalars(
        update(Order).where(Order.tenant_id == "globex").values(customer="mallory").returning(Order.id)
    )
    return Done(result={"seen": len(seen), "changed": len(list(changed))})


@consumer.on("orders.order.placed", name="writer")
async def write(_event: Event, session: AsyncSession) -> None:
    """Write a row of globex's."""
    session.add(Invoice(tenant_id="globex", order_id=1, total_cents=1))
