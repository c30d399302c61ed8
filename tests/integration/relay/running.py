"""A relay running inside the test, on a real database and the in-process broker, and events to give it."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import LiteralString, Protocol, TypeAlias
from uuid import UUID, uuid4

import psycopg

from outbox.event import Tier
from outbox.inprocess import InProcessBroker
from outbox.naming import Lane, bucket_of, tenant_hash
from relay.engine.loop import run_relay
from relay.gauges import Gauges
from relay.limits import Limits
from relay.memory import MemoryPublisher
from relay.ports import LaneTopology, Publisher
from tests.support.wait import until

App: TypeAlias = psycopg.Connection[tuple[object, ...]]

QUICK = Limits(lease_s=3.0, persist_s=0.02, idle_poll_s=0.05, confirm_s=2.0, drain_s=2.0)

_COLUMNS = "id, bucket, tier, tenant, tenant_hash, type, data_version, source, content_type, payload"
_VALUES = "%s, %s, %s, %s, %s, 'order.placed', 1, 'shop', 'application/json', %s"
_EMIT = f"insert into outbox.event ({_COLUMNS}) values ({_VALUES})"
_SCHEDULE = f"""
insert into outbox.scheduled ({_COLUMNS}, due_at) values ({_VALUES}, clock_timestamp() + make_interval(secs => %s))"""


@dataclass(slots=True)
class Running:
    """One relay. Leaving it by ``stop`` hands over; cancelling its task is a crash."""

    gauges: Gauges
    stop: asyncio.Event
    task: asyncio.Task[None]

    async def owns(self, buckets: int = 64) -> None:
        """Wait until it holds *buckets*."""
        await self.sees(lambda gauges: gauges.owned == buckets, what=f"{buckets} buckets")

    async def sees(self, claim: Callable[[Gauges], bool], *, what: str = "", deadline_s: float = 40.0) -> None:
        """Wait until *claim* holds of its gauges; raises what the relay raised if it ended."""

        def holds() -> bool:
            if self.task.done():
                self.task.result()
            return claim(self.gauges)

        await until(holds, deadline_s=deadline_s, what=what)

    async def hand_over(self) -> None:
        """Stop it as SIGTERM does."""
        self.stop.set()
        await self.task

    async def crash(self) -> None:
        """End it wherever it is."""
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


class Both(Publisher, LaneTopology, Protocol):
    """What one adapter is."""


def start(url: str, publisher: Both, *, limits: Limits = QUICK, is_listening: bool = False) -> Running:
    """A relay of the database at *url*."""
    gauges, stop = Gauges(), asyncio.Event()
    task = asyncio.create_task(
        run_relay(
            url,
            publisher,
            publisher,
            stop=stop,
            limits=limits,
            gauges=gauges,
            rng=random.Random(1),
            is_listening=is_listening,
        )
    )
    return Running(gauges, stop, task)


@asynccontextmanager
async def running(
    url: str,
    broker: InProcessBroker,
    *,
    limits: Limits = QUICK,
    publisher: Both | None = None,
    is_listening: bool = False,
    buckets: int = 64,
) -> AsyncIterator[Running]:
    """A relay that owns everything; crashed at the end unless it was stopped."""
    relay = start(url, publisher or MemoryPublisher(broker), limits=limits, is_listening=is_listening)
    try:
        await relay.owns(buckets)
        yield relay
    finally:
        await relay.crash()


def emit(
    app: App, tenant: str = "acme", *, tier: Tier = Tier.STANDARD, payload: bytes = b"{}", count: int = 1
) -> list[UUID]:
    """Write events into the log, in the transaction that *app* is in."""
    hashed = tenant_hash(tenant)
    ids = [uuid4() for _ in range(count)]
    with app.cursor() as cursor:
        rows = [(one, bucket_of(hashed), int(tier), tenant, hashed, payload) for one in ids]
        cursor.executemany(_EMIT, rows)
    return ids


def schedule(app: App, *, due_in_s: float, tenant: str = "acme") -> UUID:
    """Write an event with a due time, in the transaction that *app* is in."""
    hashed, one = tenant_hash(tenant), uuid4()
    app.execute(_SCHEDULE, (one, bucket_of(hashed), int(Tier.STANDARD), tenant, hashed, b"{}", due_in_s))
    return one


def queued(
    broker: InProcessBroker, tenant: str = "acme", *, group: str = "default", tier: Tier = Tier.STANDARD
) -> list[UUID]:
    """The events in one lane's queue, in its order."""
    queue = broker.queues.get(Lane(group=group, tier=tier, tenant=tenant).queue)
    return [] if queue is None else [UUID(item.message.message_id) for item in sorted(queue.ready)]


async def arrived(
    broker: InProcessBroker, events: Sequence[UUID], tenant: str = "acme", *, group: str = "default"
) -> None:
    """Wait until *events* are in the queue of their lane."""
    await until(lambda: set(events) <= set(queued(broker, tenant, group=group)), deadline_s=40, what="events to arrive")


def value(app: App, query: LiteralString, *parameters: object) -> object:
    """The single value that *query* returns."""
    row = app.execute(query, parameters).fetchone()
    assert row is not None
    return row[0]


def committed(app: App, count: int, tenant: str = "acme") -> list[UUID]:
    """Emit as ``emit`` does, and commit."""
    events = emit(app, tenant, count=count)
    app.commit()
    return events


def now(app: App) -> datetime:
    """The database's clock."""
    found = value(app, "select clock_timestamp()")
    app.commit()
    assert isinstance(found, datetime)
    return found
