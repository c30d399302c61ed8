"""One consumer in a process of its own: ours, or one written by hand. Prints one JSON line and ends.

Time runs from the first delivery to the last acknowledgement; CPU time is the whole process's in between.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

from benchmarks.baselines import run_plain_consumer
from benchmarks.events import lanes
from consumer import Consumer
from consumer.api import LedgerName
from consumer.engine.run import run_consumer
from consumer.event_loop import LoopName, run_on
from consumer.limits import Limits
from consumer.ports import Broker, Delivery, Exchange, Inbox, LostBecause, Receipt
from consumer.postgres.broker import postgres_broker
from consumer.postgres.exchange import PostgresExchange
from consumer.postgres.wire import Address as QueuesAddress
from consumer.process import collect_rarely
from consumer.rabbitmq.broker import rabbitmq_broker
from consumer.rabbitmq.connection import Address
from consumer.rabbitmq.exchange import RabbitMQExchange
from outbox.event import Event
from outbox.schema import DEFAULT_GROUP
from outbox.shell.logs import configure
from outbox.shell.signals import Stop

TYPE = "shop.order.placed"
# A leased handler holds no connection while it runs, so a process has as many of them as it has work for.
LEASED_SLOTS = int(os.environ.get("BENCH_LEASED_SLOTS", "300"))


def consumer_of(ledger: LedgerName) -> Consumer:
    """One whose only handler does nothing, once per event."""
    consumer = Consumer(DEFAULT_GROUP)

    @consumer.on(TYPE, ledger=ledger)
    async def nothing(event: Event) -> None: ...

    return consumer


class Clocked:
    """A broker that notes when the first delivery came and when the last one was settled."""

    def __init__(self, broker: Broker, *, count: int) -> None:
        self._broker = broker
        self._left = count
        self.began: float | None = None
        self.cpu_began = 0.0
        self.done = asyncio.Event()

    async def start(self, inbox: Inbox) -> None:
        """As the port says."""
        await self._broker.start(_ClockedInbox(self, inbox))

    async def attach(self, queue: str, *, prefetch: int, is_extra: bool = False) -> None:
        """As the port says."""
        await self._broker.attach(queue, prefetch=prefetch, is_extra=is_extra)

    async def detach(self, queue: str, *, is_extra: bool = False) -> None:
        """As the port says."""
        await self._broker.detach(queue, is_extra=is_extra)

    def settle(self, receipts: Sequence[Receipt], *, requeue: bool = False) -> None:
        """As the port says."""
        self._broker.settle(receipts, requeue=requeue)
        self._left -= len(receipts)
        if self._left <= 0:
            self.done.set()

    async def stop(self) -> None:
        """As the port says."""
        await self._broker.stop()


class _ClockedInbox:
    def __init__(self, clock: Clocked, inbox: Inbox) -> None:
        self._clock = clock
        self._inbox = inbox

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        if self._clock.began is None and deliveries[0].queue.startswith("outbox.lane."):
            self._clock.began, self._clock.cpu_began = time.perf_counter(), time.process_time()
        self._inbox.deliver(deliveries)

    def channel_lost(self, epoch: int) -> None:
        self._inbox.channel_lost(epoch)

    def queue_lost(self, queue: str, because: LostBecause) -> None:
        self._inbox.queue_lost(queue, because)

    def connected(self, *, is_connected: bool) -> None:
        self._inbox.connected(is_connected=is_connected)


def ports(broker_url: str) -> tuple[Broker, Exchange]:
    """Those of the broker at an address of either kind."""
    if broker_url.startswith("postgresql"):
        queues = QueuesAddress(url=broker_url, name="bench")
        return postgres_broker(queues), PostgresExchange(queues)
    address = Address(url=broker_url, name="bench")
    return rabbitmq_broker(address), RabbitMQExchange(address)


async def run_ours(
    database_url: str, broker_url: str, *, count: int, ledger: LedgerName, limits: Limits
) -> tuple[float, float]:
    """Seconds, and CPU seconds."""
    collect_rarely()  # as the process does
    broker, exchange = ports(broker_url)
    clocked = Clocked(broker, count=count)
    running = asyncio.create_task(
        run_consumer(
            consumer_of(ledger), clocked, exchange, database_url, stop=Stop(), limits=limits, queue_kind="classic"
        )
    )
    await asyncio.wait_for(clocked.done.wait(), 300)
    assert clocked.began is not None
    seconds, cpu = time.perf_counter() - clocked.began, time.process_time() - clocked.cpu_began
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    return seconds, cpu


async def main(which: str, database_url: str, broker_url: str, count: int, tenants: int) -> None:
    """Run *which* and print what it took."""
    if which == "ours":
        seconds, cpu = await run_ours(database_url, broker_url, count=count, ledger="transactional", limits=Limits())
    elif which == "leased":
        limits = Limits(slots=LEASED_SLOTS, prefetch=20)
        seconds, cpu = await run_ours(database_url, broker_url, count=count, ledger="leased", limits=limits)
    else:
        cpu_began = time.process_time()
        queues = [lane.queue for lane in lanes(tenants)]
        seconds = await run_plain_consumer(
            database_url, broker_url, queues, count=count, by_session=which == "asyncsession"
        )
        cpu = time.process_time() - cpu_began
    print(json.dumps({"seconds": seconds, "cpu_s": cpu}), flush=True)


if __name__ == "__main__":
    # At the level that a process has by default, written where nobody waits for it.
    with open(os.devnull, "w") as nowhere:
        configure(level="info", format="json", stream=nowhere)
        # Ours on the loop that the process has by default, those by hand on Python's.
        loop: LoopName = "auto" if sys.argv[1] in {"ours", "leased"} else "asyncio"
        run_on(loop, main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])))
