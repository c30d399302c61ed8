"""A second group that reads the bank's events."""

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession

from consumer import Consumer
from tests.scenarios.bank import Noted, Posted

bill = sa.Table("bill", sa.MetaData(), sa.Column("posting_id", sa.Uuid, nullable=False))
consumer = Consumer("billing")


@consumer.on(Posted)
async def charge(event: Posted, session: AsyncSession) -> None:
    """Write one bill."""
    await session.execute(sa.insert(bill).values(posting_id=event.posting_id))


@consumer.on(Noted)
async def charge_note(event: Noted, session: AsyncSession) -> None:
    """Write one bill."""
    await session.execute(sa.insert(bill).values(posting_id=event.posting_id))
