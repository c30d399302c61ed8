"""What pages take for granted in their examples: a shop's tables and events, and what its handlers call.

A page imports what it needs of it in a block that readers do not see.
"""

import os
from types import SimpleNamespace

from sqlalchemy import Text, create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker

from consumer import Consumer
from outbox import EventModel, Outbox


class Base(DeclarativeBase):
    """The shop's tables."""


class Order(Base):
    """What a customer ordered."""

    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    total: Mapped[int]
    status: Mapped[str] = mapped_column(default="placed")


class Invoice(Base):
    """What an order is billed by."""

    __tablename__ = "invoices"
    order_id: Mapped[int] = mapped_column(primary_key=True)
    tenant: Mapped[str] = mapped_column(Text, default="")


class OrderPlaced(EventModel, type="orders.order.placed"):
    """A customer placed an order."""

    order_id: int
    total: int = 0


class CardDeclined(Exception):
    """The bank said no."""


class ForgedInvoice(Exception):
    """Somebody made it up."""


class _RateLimitError(Exception):
    pass


class _ConnectionError(Exception):
    pass


class Remote:
    """Another system, which takes any call and remembers its idempotency keys."""

    def __init__(self) -> None:
        self.calls: list[dict[str, object]] = []

    async def has(self, idempotency_key: str) -> bool:
        """Whether it was called with that key."""
        return any(call.get("idempotency_key") == idempotency_key for call in self.calls)

    async def charge(self, total: int, *, idempotency_key: str) -> SimpleNamespace:
        """Take money once per key."""
        if not await self.has(idempotency_key):
            self.calls.append({"total": total, "idempotency_key": idempotency_key})
        return SimpleNamespace(id=f"ch_{len(self.calls)}")

    async def put(self, key: object, document: object) -> None:
        """Keep a document."""
        self.calls.append({"key": key, "document": document})


stripe = SimpleNamespace(RateLimitError=_RateLimitError, APIConnectionError=_ConnectionError)
payments, search = Remote(), Remote()
consumer = Consumer("billing")
outbox = Outbox(source="/svc/orders")


def tables(url: str = "") -> sessionmaker:  # type: ignore[type-arg]
    """Make the shop's tables in the page's database; what makes sessions on it."""
    engine = create_engine(url or os.environ["DATABASE_URL"])
    Base.metadata.create_all(engine)
    return sessionmaker(engine)
