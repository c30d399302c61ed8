"""An app that was there before: its own Base, engine and driver; three lines of it are about events."""

import os
import sys

from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from outbox import Outbox

outbox = Outbox(source="/svc/billing")


class Base(DeclarativeBase):
    """The app's tables."""


class Invoice(Base):
    """A table of the app's own."""

    __tablename__ = "invoice"

    id: Mapped[int] = mapped_column(primary_key=True)


engine = create_engine(os.environ["DATABASE_URL"].replace("postgresql://", "postgresql+psycopg://", 1))
Base.metadata.create_all(engine)
with Session(engine) as session, session.begin():
    session.add(Invoice(id=7))
    outbox.emit(session, "billing.invoice.made", {"id": 7}, tenant="acme")
loaded = {name.partition(".")[0] for name in sys.modules}
print(
    sorted(
        loaded & {"aio_pika", "aiormq", "alembic", "consumer", "outbox_admin", "relay", "structlog", "typer", "rich"}
    )
)
