"""A second group that reads the bank's events."""

from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession

from consumer import Consumer, Context
from tests.scenarios.bank import Noted, Posted

metadata = sa.MetaData()
bill = sa.Table(
    "bill",
    metadata,
    # Drawn as the bank's effects are: the order of handling.
    sa.Column("at", sa.BigInteger, sa.Sequence("bill_at", metadata=metadata), nullable=False),
    sa.Column("posting_id", sa.Uuid, nullable=False),
    sa.Column("tenant", sa.Text, nullable=False),
    sa.Column("account", sa.Text),
    sa.Column("number", sa.Integer),
)
consumer = Consumer("billing")
# The same service as another group, which knows nothing of what the first has handled.
green = Consumer("billing-2")


@green.on(Posted)
@consumer.on(Posted)
async def charge(event: Posted, ctx: Context, session: AsyncSession) -> None:
    """Write one bill."""
    await session.execute(sa.insert(bill).values(_bill(event.posting_id, ctx, event.account, event.number)))


@green.on(Noted)
@consumer.on(Noted)
async def charge_note(event: Noted, ctx: Context, session: AsyncSession) -> None:
    """Write one bill."""
    await session.execute(sa.insert(bill).values(_bill(event.posting_id, ctx, None, None)))


def _bill(posting_id: UUID, ctx: Context, account: str | None, number: int | None) -> dict[str, object]:
    return {"posting_id": posting_id, "tenant": ctx.tenant, "account": account, "number": number}
