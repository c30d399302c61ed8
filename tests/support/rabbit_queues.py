"""What engine tests need of RabbitMQ beside the consumer's ports: a lane's queue, its announcement, messages in it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable

import aiormq
from aiormq.abc import AbstractChannel
from pamqp import commands

from consumer.ports import Broker, Exchange
from consumer.rabbitmq.broker import rabbitmq_broker
from consumer.rabbitmq.connection import Address
from consumer.rabbitmq.exchange import RabbitMQExchange
from outbox import topology
from outbox.naming import Lane
from outbox.topology import QueueKind, lane_arguments
from outbox.wire import Message
from tests.support.engine import Rig, announcement


class RabbitQueues:
    """A vhost. Adapters connect to *address*; *admin* is a channel of the test's own."""

    def __init__(self, address: Address, admin: AbstractChannel, kind: QueueKind) -> None:
        self.address = address
        self.kind: QueueKind = kind
        self._admin = admin
        self._exchanges: list[RabbitMQExchange] = []

    def broker(self) -> Broker:
        return rabbitmq_broker(self.address)

    def exchange(self) -> Exchange:
        exchange = RabbitMQExchange(self.address)
        self._exchanges.append(exchange)
        return exchange

    async def declare(self, lane: Lane) -> None:
        exchange = RabbitMQExchange(self.address)
        await exchange.declare_group(lane.group, self.kind)
        await exchange.close()
        await self._admin.queue_declare(lane.queue, durable=True, arguments=dict(lane_arguments(self.kind)))
        await self._admin.queue_bind(lane.queue, topology.EVENTS_EXCHANGE, lane.routing_key)
        await self._publish(topology.DIRECTORY_EXCHANGE, lane.group, announcement(lane))

    async def publish(self, lane: Lane, messages: Iterable[Message]) -> None:
        waiting = list(messages)
        while waiting:
            some, waiting = waiting[:100], waiting[100:]
            await asyncio.gather(*(self._publish(topology.EVENTS_EXCHANGE, lane.routing_key, one) for one in some))

    async def in_queue(self, queue: str) -> int:
        declared = await self._admin.queue_declare(queue, passive=True)
        return declared.message_count or 0

    async def close(self) -> None:
        for exchange in self._exchanges:
            await exchange.close()

    async def _publish(self, exchange: str, routing_key: str, message: Message) -> None:
        properties = commands.Basic.Properties(
            message_id=message.message_id,
            message_type=message.type,
            app_id=message.app_id,
            content_type=message.content_type,
            delivery_mode=2,
            headers={name: str(value) for name, value in message.headers.items()},
        )
        await self._admin.basic_publish(
            message.body, exchange=exchange, routing_key=routing_key, properties=properties, mandatory=True
        )


@contextlib.asynccontextmanager
async def queues_of(amqp_url: str, kind: QueueKind) -> AsyncIterator[RabbitQueues]:
    """The vhost at *amqp_url*, by a connection of the test's own."""
    async with aiormq.connect(amqp_url) as connection:
        queues = RabbitQueues(Address(url=amqp_url, name="engine test"), await connection.channel(), kind)
        yield queues
        await queues.close()


@contextlib.asynccontextmanager
async def rabbit_rig(database_url: str, amqp_url: str, kind: QueueKind) -> AsyncIterator[Rig]:
    """A rig on the vhost at *amqp_url*; its processes are ended at the end."""
    async with queues_of(amqp_url, kind) as queues:
        rig = Rig(database_url, queues)
        rig.queue_kind = kind
        rig.execute("CREATE TABLE effect (at bigserial, note text NOT NULL)")
        try:
            yield rig
        finally:
            await rig.close()
