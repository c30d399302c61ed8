"""Moves what waits in a hand-written outbox table into Fairpost, each row once.

    python move_outbox.py orders.order.placed orders.order.paid

goes on until it is stopped. The types are those that the old poller no longer publishes.
"""

import os
import sys
import time
from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    DateTime,
    MetaData,
    Table,
    Text,
    create_engine,
    func,
    make_url,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Session

from outbox import Outbox

old = Table(
    "app_outbox",
    MetaData(),
    Column("id", BigInteger, primary_key=True),
    Column("tenant_id", Text),
    Column("aggregate_id", Text),
    Column("type", Text),
    Column("payload", JSONB),
    Column("published_at", DateTime(timezone=True)),
)
outbox = Outbox(source="/svc/orders")


def move(session: Session, types: Sequence[str], *, of: tuple[str, str] | None = None, at_most: int = 500) -> int:
    """Emit the oldest rows of *types* that wait, and mark them as published in the same transaction.

    Returns how many they were. *of*: only those of this tenant and aggregate.
    """
    # Locked: whoever else moves these rows waits, and then finds them published.
    waiting = (
        select(old).where(old.c.published_at.is_(None), old.c.type.in_(types)).order_by(old.c.id).with_for_update()
    )
    if of is not None:
        waiting = waiting.where(old.c.tenant_id == of[0], old.c.aggregate_id == of[1])
    rows = session.execute(waiting.limit(at_most)).all()
    for row in rows:
        outbox.emit(
            session,
            row.type,
            row.payload,
            tenant=row.tenant_id,
            ordering_key=row.aggregate_id,
            idempotency_key=f"app_outbox/{row.id}",
        )
    ids = [row.id for row in rows]
    session.execute(update(old).where(old.c.id.in_(ids)).values(published_at=func.clock_timestamp()))
    return len(ids)


def tell(
    session: Session, event_type: str, payload: dict[str, Any], *, tenant: str, aggregate: str, types: Sequence[str]
) -> None:
    """What the app calls instead of adding a row to the old table, once the aggregate's row is locked or changed.

    What older code has left of the aggregate goes first. When that code is gone, only ``emit`` is left of this.
    """
    while move(session, types, of=(tenant, aggregate)):
        pass
    outbox.emit(session, event_type, payload, tenant=tenant, ordering_key=aggregate)


def main(types: Sequence[str]) -> None:
    """Move until stopped; every second, once nothing waits."""
    engine = create_engine(make_url(os.environ["DATABASE_URL"]).set(drivername="postgresql+psycopg"))
    while True:
        with Session(engine) as session, session.begin():
            moved = move(session, types)
        if moved:
            print(f"moved {moved}", flush=True)
        else:
            time.sleep(1)


if __name__ == "__main__":
    main(sys.argv[1:])
