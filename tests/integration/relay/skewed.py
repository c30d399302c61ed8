"""An app and a relay in a process whose clock is off by so many seconds; see test_scheduled.

Prints one JSON object once what was due soon is published: how many events are, and how long that took.
"""

import asyncio
import json
import sys
import time
from datetime import datetime, timedelta, tzinfo

import sqlalchemy as sa
from sqlalchemy.orm import Session

from outbox import Outbox
from outbox.inprocess import InProcessBroker
from tests.integration.relay.running import arrived, queued, running


class _AnyDatetime(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, datetime)


def skew(seconds: float) -> None:
    """From now on give all of ours that asks this process's clock a wrong answer."""
    right, right_ns = time.time, time.time_ns

    class Skewed(datetime, metaclass=_AnyDatetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            return datetime.fromtimestamp(right() + seconds, tz)

    time.time = lambda: right() + seconds
    time.time_ns = lambda: right_ns() + int(seconds * 1e9)
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] in ("outbox", "relay") and getattr(module, "datetime", None) is datetime:
            module.datetime = Skewed  # type: ignore[attr-defined]


async def run(url: str) -> None:
    broker, outbox = InProcessBroker(), Outbox("/svc/shop")
    engine = sa.create_engine(sa.make_url(url).set(drivername="postgresql+psycopg"))
    async with running(url, broker):
        with Session(engine) as session, session.begin():
            # What people give as a time is theirs; it is the database that says when it has come.
            now = session.scalars(sa.text("select clock_timestamp()")).one()
            second, later = timedelta(seconds=1), timedelta(minutes=5)
            soon = [
                outbox.emit(session, "shop.order.placed", {}, tenant="acme", delay=second),
                outbox.emit(session, "shop.order.placed", {}, tenant="acme", due_at=now + second),
            ]
            outbox.emit(session, "shop.order.placed", {}, tenant="acme", delay=later)
            outbox.emit(session, "shop.order.placed", {}, tenant="acme", due_at=now + later)
        began = time.monotonic()
        await arrived(broker, [event.id for event in soon])
        print(json.dumps({"published": len(queued(broker)), "seconds": time.monotonic() - began}))
    engine.dispose()


if __name__ == "__main__":
    skew(float(sys.argv[2]))
    asyncio.run(run(sys.argv[1]))
