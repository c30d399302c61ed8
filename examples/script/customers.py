"""Customers, as rows and as events; ``python customers.py`` makes the tables."""

import os

from sqlalchemy import ForeignKey, Identity, UniqueConstraint, create_engine, make_url, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from outbox import EventModel, Outbox, Tier

TENANT = text("current_setting('app.current_tenant_id', true)")

engine = create_engine(make_url(os.environ["DATABASE_URL"]).set(drivername="postgresql+psycopg"))
outbox = Outbox(source="/jobs/import-customers")


class CustomerImported(EventModel, type="crm.customer.imported", version=1, tier=Tier.BULK):
    """A customer came with a file. Bulk: nobody waits for it, and it delays nothing that somebody waits for."""

    customer_id: int
    email: str


class Base(DeclarativeBase):
    """Of all tables here."""


class Customer(Base):
    """Known once per tenant and address."""

    __tablename__ = "customers"
    __table_args__ = (UniqueConstraint("tenant_id", "email"),)

    id: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(server_default=TENANT)
    email: Mapped[str]
    name: Mapped[str]


class Greeting(Base):
    """What a customer is sent."""

    __tablename__ = "greetings"

    id: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(server_default=TENANT)
    customer_id: Mapped[int] = mapped_column(ForeignKey(Customer.id))
    email: Mapped[str]


def make_tables() -> None:
    """Make the tables. FORCE: their owner, who also runs the script, is bound by the policies too."""
    with engine.begin() as connection:
        Base.metadata.create_all(connection)
        for table in Base.metadata.sorted_tables:
            connection.execute(text(f"ALTER TABLE {table.name} ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY"))
            connection.execute(text(f"CREATE POLICY of_tenant ON {table.name} USING (tenant_id = {TENANT.text})"))


if __name__ == "__main__":
    make_tables()
