"""The bank's consumer as its next release has it: one field more in a payload, and a handler that became async."""

from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession

from consumer import Consumer, Context, DeadLetter, Outcome
from outbox import EventModel
from tests.scenarios import bank


class Posted(EventModel, type="bank.posted"):
    """As the bank's; no event that was emitted so far has a memo."""

    posting_id: UUID
    account: str
    number: int
    memo: str = ""


consumer = Consumer("default")
broken = Consumer("default")


@consumer.on(Posted)
async def book(event: Posted, ctx: Context, session: AsyncSession) -> None:
    """Write the effect."""
    row = bank.effect_row(event.posting_id, ctx)
    await session.execute(sa.insert(bank.effect).values(**row, account=event.account, number=event.number))


@broken.on(Posted, name="book")
async def book_not(event: Posted, ctx: Context) -> Outcome:
    """A bug."""
    return DeadLetter(reason="a bug of this release")


@consumer.on(bank.Noted, name="file")
@broken.on(bank.Noted, name="file")
async def file_note(event: bank.Noted, ctx: Context, session: AsyncSession) -> None:
    """Write the effect."""
    await session.execute(sa.insert(bank.effect).values(**bank.effect_row(event.posting_id, ctx)))
