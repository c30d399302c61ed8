"""The tables of an app that uses Celery; ``python shop_tables.py`` makes them."""

import os

from sqlalchemy import Identity, create_engine, make_url
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

engine = create_engine(make_url(os.environ["DATABASE_URL"]).set(drivername="postgresql+psycopg"))


class Base(DeclarativeBase):
    """Of all tables here."""


class Order(Base):
    """What a customer asked for."""

    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)
    customer: Mapped[str]


class Receipt(Base):
    """What a customer got for an order."""

    __tablename__ = "receipts"

    order_id: Mapped[int] = mapped_column(primary_key=True)


class Booking(Base):
    """What the accounts say of an order."""

    __tablename__ = "bookings"

    order_id: Mapped[int] = mapped_column(primary_key=True)


if __name__ == "__main__":
    Base.metadata.create_all(engine)
