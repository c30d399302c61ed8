"""The app of the scenarios: accounts whose postings are numbered under the account's row lock, and their handlers.

The handlers write effects to a table without a unique constraint: an effect too many cannot hide.
"""

import os
from collections.abc import Sequence
from uuid import UUID, uuid4

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from consumer import Consumer, Context, Policy
from outbox import EventModel, Outbox, Tier

metadata = sa.MetaData()
account = sa.Table(
    "account",
    metadata,
    sa.Column("tenant", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("number", sa.Integer, nullable=False),
)
posting = sa.Table(
    "posting",
    metadata,
    sa.Column("id", sa.Uuid, primary_key=True),
    sa.Column("tenant", sa.Text, nullable=False),
    sa.Column("account", sa.Text),
    sa.Column("number", sa.Integer),
)
effect = sa.Table(
    "effect",
    metadata,
    # Drawn inside the handler's transaction, while no other handler of the account can run: the order of handling.
    sa.Column("at", sa.BigInteger, sa.Sequence("effect_at", metadata=metadata), nullable=False),
    sa.Column("posting_id", sa.Uuid, nullable=False),
    sa.Column("tenant", sa.Text, nullable=False),
    sa.Column("account", sa.Text),
    sa.Column("number", sa.Integer),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("pid", sa.Integer, nullable=False),
    sa.Column("handled_at", sa.DateTime(timezone=True), server_default=sa.func.clock_timestamp(), nullable=False),
)


class Posted(EventModel, type="bank.posted"):
    """An account was posted to. *number* counts its postings; *stumbles* is for the handler."""

    posting_id: UUID
    account: str
    number: int
    stumbles: bool = False


class Noted(EventModel, type="bank.noted"):
    """Something happened that belongs to no account."""

    posting_id: UUID


class Stumbled(Exception):
    """What a handler raises that would succeed if it were tried again."""


outbox = Outbox(source="/bank")
consumer = Consumer("default", policy=Policy(max_retries=2, base_s=0.2, budget=None, breaker=None))


@consumer.on(Posted)
async def book(event: Posted, ctx: Context, session: AsyncSession) -> None:
    """Write the effect; the first attempt of some events fails after that."""
    await session.execute(
        sa.insert(effect).values(**effect_row(event.posting_id, ctx), account=event.account, number=event.number)
    )
    if event.stumbles and ctx.attempt == 1:
        raise Stumbled


@consumer.on(Noted)
def file(event: Noted, ctx: Context, session: Session) -> None:
    """Write the effect, in a thread."""
    session.execute(sa.insert(effect).values(**effect_row(event.posting_id, ctx)))


def post(
    session: Session, *, tenant: str, name: str, tier: Tier, count: int = 1, stumbles: bool = False
) -> Sequence[int]:
    """Post *count* times to an account in *session*'s transaction; return the postings' numbers."""
    moved = (
        sa.update(account)
        .where(account.c.tenant == tenant, account.c.name == name)
        .values(number=account.c.number + count)
        .returning(account.c.number)
    )
    last = session.scalars(moved).one()
    numbers = range(last - count + 1, last + 1)
    for number in numbers:
        row = {"id": uuid4(), "tenant": tenant, "account": name, "number": number}
        session.execute(sa.insert(posting).values(row))
        event = Posted(posting_id=row["id"], account=name, number=number, stumbles=stumbles and number == last)
        outbox.emit(session, event, tenant=tenant, tier=tier, ordering_key=name)
    return numbers


def note(session: Session, *, tenant: str, tier: Tier, count: int = 1) -> None:
    """Emit *count* events without an ordering key in *session*'s transaction."""
    for _ in range(count):
        row = {"id": uuid4(), "tenant": tenant}
        session.execute(sa.insert(posting).values(row))
        outbox.emit(session, Noted(posting_id=row["id"]), tenant=tenant, tier=tier)


def effect_row(posting_id: UUID, ctx: Context) -> dict[str, object]:
    """What every effect has."""
    return {"posting_id": posting_id, "tenant": ctx.tenant, "attempt": ctx.attempt, "pid": os.getpid()}
