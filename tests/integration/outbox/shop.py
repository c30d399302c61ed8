"""A small app: orders and wallets, the events about them, and what a test wants to know of the database."""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from outbox import EventModel, Outbox, Tier, schema

SOURCE = "/svc/shop"


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str] = mapped_column(unique=True)


class Wallet(Base):
    """Its name and its table's sort after everything of the outbox's."""

    __tablename__ = "wallets"

    id: Mapped[int] = mapped_column(primary_key=True)
    balance: Mapped[int] = mapped_column(default=0)


class OrderPlaced(EventModel, type="shop.order.placed", version=2):
    order_id: int


class WalletChanged(EventModel, type="shop.wallet.changed", tier=Tier.INTERACTIVE):
    balance: int


def new_outbox(**options: Any) -> Outbox:
    return Outbox(SOURCE, **options)


def logged(engine: sa.Engine) -> Sequence[sa.Row[Any]]:
    """The log's rows, in the order in which a relay walks them."""
    with engine.connect() as connection:
        return connection.execute(sa.select(schema.event).order_by(schema.event.c.seq)).all()


def numbers(engine: sa.Engine, key: str) -> list[int]:
    """The numbers of the events with an ordering key, in log order."""
    return [row.key_number for row in logged(engine) if row.ordering_key == key]


def scheduled(engine: sa.Engine) -> Sequence[sa.Row[Any]]:
    with engine.connect() as connection:
        return connection.execute(sa.select(schema.scheduled)).all()


def count(engine: sa.Engine, entity: type[Base]) -> int:
    with Session(engine) as session:
        return session.scalar(sa.select(sa.func.count()).select_from(entity)) or 0
