"""A consumer's engine in this process, on a real database and either broker, for tests that look at what it did."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

import psycopg

from consumer.api import Consumer
from consumer.engine.run import Programs, Readiness, run_consumer
from consumer.limits import Limits
from consumer.memory import MemoryBroker, MemoryExchange
from consumer.ports import Broker, Exchange
from outbox import topology
from outbox.event import JSON, Event, Ordering, Tier, new_event_id
from outbox.inprocess import InProcessBroker
from outbox.naming import Lane
from outbox.shell.signals import Stop
from outbox.wire import Message, encode
from tests.support.wait import until

GROUP = "billing"
TYPE = "orders.order.placed"


def an_event(
    order_id: int = 1,
    *,
    tenant: str = "acme",
    tier: Tier = Tier.STANDARD,
    type: str = TYPE,
    payload: bytes | None = None,
    ordering: Ordering | None = None,
    age: timedelta = timedelta(),
) -> Event:
    """An event as the relay publishes it."""
    time = datetime.now(UTC) - age
    return Event(
        id=new_event_id(),
        tenant=tenant,
        tier=tier,
        type=type,
        data_version=1,
        source="shop",
        content_type=JSON,
        payload=json.dumps({"order_id": order_id}).encode() if payload is None else payload,
        time=time,
        ledger_time=time,
        ordering=ordering,
    )


class Queues(Protocol):
    """What a test needs of a broker beside the consumer's ports."""

    def broker(self) -> Broker:
        """A new connection that consumes."""

    def exchange(self) -> Exchange:
        """A new connection that publishes."""

    async def declare(self, lane: Lane) -> None:
        """Make the lane's queue, and the group's directory, and announce it there."""

    async def publish(self, lane: Lane, messages: Iterable[Message]) -> None:
        """Put *messages* into the lane."""

    async def in_queue(self, queue: str) -> int:
        """How many messages *queue* has, ready and unsettled."""


class MemoryQueues:
    """The in-process broker."""

    def __init__(self) -> None:
        self.inner = InProcessBroker()
        self._exchange = MemoryExchange(self.inner)

    def broker(self) -> Broker:
        return MemoryBroker(self.inner)

    def exchange(self) -> Exchange:
        return MemoryExchange(self.inner)

    async def declare(self, lane: Lane) -> None:
        await self._exchange.declare_group(lane.group, "quorum")
        self.inner.declare_queue(lane.queue, topology.lane_arguments("quorum"))
        self.inner.bind(lane.queue, topology.EVENTS_EXCHANGE, lane.routing_key)
        self.inner.publish(topology.DIRECTORY_EXCHANGE, lane.group, announcement(lane))

    async def publish(self, lane: Lane, messages: Iterable[Message]) -> None:
        for message in messages:
            self.inner.publish(topology.EVENTS_EXCHANGE, lane.routing_key, message)

    async def in_queue(self, queue: str) -> int:
        count = self.inner.counts()[queue]
        return count.ready + count.unsettled


def announcement(lane: Lane, *, is_gone: bool = False) -> Message:
    """What the relay tells a group of *lane*."""
    content: dict[str, object] = {
        "group": lane.group,
        "tier": lane.tier.label,
        "tenant": lane.tenant,
        "queue": lane.queue,
        "group_started_at": (datetime.now(UTC) - timedelta(days=1)).isoformat(),
        "is_gone": is_gone,
    }
    return Message(
        message_id=str(new_event_id()),
        type="fairpost.lane",
        app_id="outbox-relay",
        content_type=JSON,
        headers={},
        body=json.dumps(content).encode(),
    )


class Process:
    """One running consumer."""

    def __init__(self, task: "asyncio.Task[None]", stop: Stop, readiness: Readiness) -> None:
        self.task = task
        self.stop = stop
        self.readiness = readiness

    async def drain(self, *, deadline_s: float = 40.0) -> None:
        """Ask it to end, as SIGTERM does, and wait until it has."""
        self.stop.request()
        await asyncio.wait_for(self.task, deadline_s)

    async def crash(self) -> None:
        """End it at whatever it is doing."""
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task

    def is_ready(self) -> bool:
        return all(probe().is_ok for probe in self.readiness.probes().values())


class Rig:
    """A database, queues, a consumer's handlers and the processes that run them."""

    def __init__(self, database_url: str, queues: Queues) -> None:
        self.database_url = database_url
        self.queues = queues
        self.consumer = Consumer(GROUP)
        self.limits = replace(Limits(), lease_s=3.0, drain_s=10.0)
        self.queue_kind: topology.QueueKind = "quorum"
        self.programs: Programs | None = None
        self._lanes: set[Lane] = set()
        self._processes: list[Process] = []

    async def publish(self, *events: Event) -> None:
        """Put *events* into their lanes, which are made and announced first."""
        for event in events:
            await self.publish_messages(lane_of(event), [encode(event)])

    async def publish_messages(self, lane: Lane, messages: Sequence[Message]) -> None:
        if lane not in self._lanes:
            await self.queues.declare(lane)
            self._lanes.add(lane)
        await self.queues.publish(lane, messages)

    async def start(self, *, database_url: str | None = None, consumer: Consumer | None = None) -> Process:
        """Start one more process."""
        stop, readiness = Stop(), Readiness()
        running = run_consumer(
            consumer or self.consumer,
            self.queues.broker(),
            self.queues.exchange(),
            database_url or self.database_url,
            stop=stop,
            limits=self.limits,
            queue_kind=self.queue_kind,
            readiness=readiness,
            programs=self.programs,
        )
        process = Process(asyncio.create_task(running), stop, readiness)
        self._processes.append(process)
        await until(lambda: process.is_ready() or process.task.done(), what="the consumer to be ready")
        if process.task.done():
            process.task.result()
        return process

    async def close(self) -> None:
        """End every process that still runs."""
        for process in self._processes:
            await process.crash()

    def execute(self, statement: str) -> None:
        """Run *statement*."""
        with psycopg.connect(self.database_url, autocommit=True) as connection:
            connection.execute(statement.encode())

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """What *query* returns."""
        with psycopg.connect(self.database_url, autocommit=True) as connection:
            return connection.execute(query.encode()).fetchall()

    def value(self, query: str) -> Any:
        """The one value that *query* returns."""
        return self.rows(query)[0][0]

    def effects(self) -> list[str]:
        """What handlers wrote, in the order in which they did."""
        return [note for (note,) in self.rows("SELECT note FROM effect ORDER BY at")]

    def count(self, table: str) -> int:
        """How many rows *table* has."""
        found: int = self.value(f"SELECT count(*) FROM {table}")
        return found

    def states(self) -> list[tuple[str, str, int]]:
        """The ledger: handler, state and attempts of every row."""
        return self.rows("SELECT handler, state, attempts FROM consumer.ledger ORDER BY handler, state, attempts")

    async def until(self, predicate: Callable[[], object], *, what: str = "", deadline_s: float = 40.0) -> None:
        """Wait for *predicate*, and fail at once with what a process failed with."""

        def seen() -> object:
            for process in self._processes:
                if process.task.done() and not process.task.cancelled():
                    process.task.result()
            return predicate()

        await until(seen, what=what, deadline_s=deadline_s)

    async def until_settled(self, *, deadline_s: float = 40.0) -> None:
        """Wait until nothing is left in any lane."""

        async def is_empty() -> bool:
            return not any([await self.queues.in_queue(lane.queue) for lane in self._lanes])

        await until(is_empty, what="every lane to be empty", deadline_s=deadline_s)


def lane_of(event: Event) -> Lane:
    """The lane that *event* goes by."""
    return Lane(group=GROUP, tier=event.tier, tenant=event.tenant)


@contextlib.asynccontextmanager
async def memory_rig(database_url: str) -> AsyncIterator[Rig]:
    """A rig on the in-process broker; its processes are ended at the end."""
    rig = Rig(database_url, MemoryQueues())
    # No unique constraint: a second effect shows.
    rig.execute("CREATE TABLE effect (at bigserial, note text NOT NULL)")
    try:
        yield rig
    finally:
        await rig.close()
