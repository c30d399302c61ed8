"""The broker and exchange ports on the in-process broker: the tests' adapter."""

import asyncio
from collections.abc import Sequence
from itertools import count
from typing import Final

from consumer.ports import Delivery, Inbox, LostBecause, Receipt
from outbox import topology
from outbox.errors import BrokerUnavailable
from outbox.inprocess import Connection, Consumer, Handed, InProcessBroker, Routing
from outbox.wire import Message

_EPOCHS: Final = count(1)
_RETRY_S: Final = 0.05


class MemoryBroker:
    """``consumer.ports.Broker`` on the event loop of the in-process broker."""

    def __init__(self, broker: InProcessBroker) -> None:
        self._broker = broker
        self._inbox: Inbox | None = None
        self._connection: Connection | None = None
        self._epoch = 0
        self._prefetches: dict[tuple[str, bool], int] = {}  # what is wished, by queue and whether it is the extra
        self._consumers: dict[tuple[str, bool], Consumer] = {}
        self._retry: asyncio.TimerHandle | None = None

    async def start(self, inbox: Inbox) -> None:
        """As the port says."""
        self._inbox = inbox
        self._connect()

    async def attach(self, queue: str, *, prefetch: int, is_extra: bool = False) -> None:
        """As the port says."""
        if (queue, is_extra) not in self._prefetches:
            self._prefetches[queue, is_extra] = prefetch
            self._consume(queue, is_extra=is_extra)

    async def detach(self, queue: str, *, is_extra: bool = False) -> None:
        """As the port says."""
        self._prefetches.pop((queue, is_extra), None)
        consumer = self._consumers.pop((queue, is_extra), None)
        if consumer is not None:
            consumer.cancel()

    def settle(self, receipts: Sequence[Receipt], *, requeue: bool = False) -> None:
        """As the port says."""
        for receipt in receipts:
            if self._connection is not None and receipt.epoch == self._epoch:
                self._connection.settle(receipt.tag, requeue=requeue)

    async def stop(self) -> None:
        """As the port says."""
        self._inbox = None
        if self._retry is not None:
            self._retry.cancel()
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connect(self) -> None:
        if self._inbox is None:
            return
        try:
            self._connection = self._broker.connect(on_lost=self._on_lost)
        except BrokerUnavailable:
            self._retry = asyncio.get_running_loop().call_later(_RETRY_S, self._connect)
            return
        self._epoch = next(_EPOCHS)
        self._inbox.connected(is_connected=True)
        for queue, is_extra in list(self._prefetches):
            self._consume(queue, is_extra=is_extra)

    def _on_lost(self) -> None:
        self._connection = None
        self._consumers.clear()
        if self._inbox is not None:
            self._inbox.channel_lost(self._epoch)
            self._inbox.connected(is_connected=False)
            self._retry = asyncio.get_running_loop().call_later(_RETRY_S, self._connect)

    def _consume(self, queue: str, *, is_extra: bool) -> None:
        if self._connection is None:
            return
        try:
            self._consumers[queue, is_extra] = self._connection.consume(
                queue,
                prefetch=self._prefetches[queue, is_extra],
                on_deliveries=self._deliver,
                on_cancelled=lambda: self._lose(queue),
            )
        except KeyError:
            # Told later, as every loss is, so that the engine never hears of it inside its own call.
            asyncio.get_running_loop().call_soon(self._lose, queue)

    def _lose(self, queue: str) -> None:
        held = [key for key in ((queue, False), (queue, True)) if self._prefetches.pop(key, None) is not None]
        for key in held:
            self._consumers.pop(key, None)
        if held and self._inbox is not None:
            self._inbox.queue_lost(queue, LostBecause.MISSING)

    def _deliver(self, batch: Sequence[Handed]) -> None:
        if self._inbox is not None:
            self._inbox.deliver([_delivery(handed, epoch=self._epoch) for handed in batch])


class MemoryExchange:
    """``consumer.ports.Exchange`` on the in-process broker."""

    def __init__(self, broker: InProcessBroker) -> None:
        self._broker = broker

    async def declare_group(self, group: str, kind: topology.QueueKind) -> None:
        """Make the queues that *group* reads beside its lanes. Raises QueueMismatch: one has other arguments."""
        for exchange, exchange_kind in topology.EXCHANGES.items():
            self._broker.declare_exchange(exchange, exchange_kind)
        for queue in topology.group_queues(group, kind):
            self._broker.declare_queue(queue.name, queue.arguments)
            self._broker.bind(queue.name, queue.exchange, queue.routing_key)

    async def publish(self, exchange: str, routing_key: str, message: Message) -> None:
        """As the port says."""
        self._broker.declare_exchange(exchange, topology.EXCHANGES[exchange])
        connection = self._broker.connect()
        try:
            routing = connection.publish(exchange, routing_key, message)
        finally:
            connection.close()
        if routing is Routing.REJECTED:
            raise BrokerUnavailable(f"exchange {exchange}: want the message taken, got a full queue")

    async def close(self) -> None:
        """As the port says."""


def _delivery(handed: Handed, *, epoch: int) -> Delivery:
    return Delivery(
        queue=handed.queue,
        receipt=Receipt(epoch=epoch, tag=handed.tag),
        message=handed.message,
        routing_key=handed.routing_key,
        is_redelivered=handed.is_redelivered,
    )
