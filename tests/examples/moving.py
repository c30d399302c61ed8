"""An app that moves from a hand-written outbox: its old code, its new code, its old poller, and its handlers."""

from threading import Event

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from consumer import Consumer, Context
from move_outbox import old, tell

TYPE = "orders.order.changed"
OTHER = "orders.order.seen"

metadata = sa.MetaData()
aggregate = sa.Table(
    "aggregate",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("number", sa.Integer, nullable=False),
)
# No unique constraint: what is handled twice shows.
handled = sa.Table(
    "handled",
    metadata,
    sa.Column("at", sa.BigInteger, sa.Identity()),
    sa.Column("aggregate_id", sa.Text, nullable=False),
    sa.Column("number", sa.Integer, nullable=False),
    sa.Column("type", sa.Text, nullable=False),
    sa.Column("is_old", sa.Boolean, nullable=False),
)
consumer = Consumer("default")


async def _handle(event: dict[str, object], ctx: Context, session: AsyncSession) -> None:
    row = {"aggregate_id": event["of"], "number": event["number"], "type": ctx.event.type, "is_old": False}
    await session.execute(sa.insert(handled).values(row))


consumer.on(TYPE)(_handle)


def change(session: Session, of: str, *, is_new_code: bool) -> None:
    """Change an aggregate and tell of it, as old or as new code does."""
    number = session.scalars(
        sa.update(aggregate)
        .where(aggregate.c.id == of)
        .values(number=aggregate.c.number + 1)
        .returning(aggregate.c.number)
    ).one()
    payload = {"of": of, "number": number}
    if is_new_code:
        tell(session, TYPE, payload, tenant="acme", aggregate=of, types=[TYPE])
    else:
        row = {"tenant_id": "acme", "aggregate_id": of, "type": TYPE, "payload": payload}
        session.execute(sa.insert(old).values(row))
        session.execute(sa.insert(old).values({**row, "type": OTHER}))


def write(url: str, of: list[str], stop: Event, *, is_new_code: bool) -> int:
    """Change aggregates in turn until told to stop; how often it did."""
    engine = sa.create_engine(url)
    count = 0
    while not stop.is_set():
        with Session(engine) as session, session.begin():
            change(session, of[count % len(of)], is_new_code=is_new_code)
        count += 1
        stop.wait(0.01)  # so fast that both meet, and no faster
    engine.dispose()
    return count


def poll(url: str, types: list[str], stop: Event) -> None:
    """Publish and handle what waits of *types*, as the old poller and its consumers did, until told to stop."""
    engine = sa.create_engine(url)
    while not stop.is_set():
        with engine.begin() as connection:
            waiting = sa.select(old).where(old.c.published_at.is_(None), old.c.type.in_(types)).order_by(old.c.id)
            for row in connection.execute(waiting.limit(20).with_for_update()).all():
                connection.execute(
                    sa.insert(handled).values(
                        aggregate_id=row.aggregate_id, number=row.payload["number"], type=row.type, is_old=True
                    )
                )
                done = sa.update(old).where(old.c.id == row.id).values(published_at=sa.func.now())
                connection.execute(done)
        stop.wait(0.02)
    engine.dispose()
