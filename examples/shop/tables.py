"""The shop's own rows. Whose they are, the database writes itself: ``tenant_id`` is the transaction's tenant."""

from typing import ClassVar

from sqlalchemy import BigInteger, FetchedValue, ForeignKeyConstraint, Identity, UniqueConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship


class Base(DeclarativeBase):
    """Of all tables here. Numbers are sent as bigint: as integer, which is the default, no total above 2^31 is."""

    type_annotation_map: ClassVar = {int: BigInteger}


class Order(Base):
    """What a customer asked for, once per idempotency key."""

    __tablename__ = "orders"
    # The second is what lines and invoices refer to: a foreign key is checked without row-level security, so it must
    # name the tenant itself.
    __table_args__ = (UniqueConstraint("tenant_id", "idempotency_key"), UniqueConstraint("tenant_id", "id"))

    id: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(server_default=FetchedValue())
    idempotency_key: Mapped[str]
    customer: Mapped[str]
    lines: Mapped[list["Line"]] = relationship(order_by="Line.number", lazy="selectin")


class Line(Base):
    """One article of an order."""

    __tablename__ = "order_lines"
    __table_args__ = (ForeignKeyConstraint(["tenant_id", "order_id"], ["orders.tenant_id", "orders.id"]),)

    tenant_id: Mapped[str] = mapped_column(server_default=FetchedValue())
    order_id: Mapped[int] = mapped_column(primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    article: Mapped[str]
    quantity: Mapped[int]
    unit_cents: Mapped[int]


class Invoice(Base):
    """What billing makes of an order. Nothing here forbids a second one: the ledger does."""

    __tablename__ = "invoices"
    __table_args__ = (ForeignKeyConstraint(["tenant_id", "order_id"], ["orders.tenant_id", "orders.id"]),)

    id: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(server_default=FetchedValue())
    order_id: Mapped[int]
    total_cents: Mapped[int]
