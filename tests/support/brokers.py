"""One bench for every broker adapter: make queues, fill them, count them, break the connection."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from typing import Literal, Protocol
from urllib.parse import unquote, urlsplit, urlunsplit

import aiormq
from aiormq.abc import AbstractChannel
from pamqp import commands

from consumer.memory import MemoryBroker, MemoryExchange
from consumer.ports import Broker, Exchange
from consumer.postgres.broker import postgres_broker
from consumer.postgres.exchange import PostgresExchange
from consumer.postgres.wire import Address as PostgresAddress
from consumer.rabbitmq.broker import rabbitmq_broker
from consumer.rabbitmq.connection import Address
from consumer.rabbitmq.exchange import RabbitMQExchange
from outbox.inprocess import InProcessBroker
from outbox.queues import standing
from outbox.queues.putting import Put, json_headers, put
from outbox.queues.session import connect as connect_queues
from outbox.queues.wakes import Wake, wake
from outbox.shell.severed import Connection
from outbox.topology import BoundQueue, QueueKind, lane_arguments
from outbox.wire import Message
from tests.support.proxy import Proxy

BrokerKind = Literal["memory", "postgres", "classic", "quorum"]
BROKER_KINDS: tuple[BrokerKind, ...] = ("memory", "postgres", "classic", "quorum")
_EXCHANGE = "bench"


def a_message(number: int, *, body: bytes | None = None) -> Message:
    """The message of this number, which is its id."""
    return Message(
        message_id=str(number),
        type="order.placed",
        app_id="shop",
        content_type="application/json",
        headers={"ce-type": "order.placed", "ce-tenantid": "zoë"},
        body=b'{"n":%d}' % number if body is None else body,
    )


class Bench(Protocol):
    """A broker under test."""

    def broker(self) -> Broker:
        """A new adapter, not started; what a test leaves running is stopped at its end."""

    def exchange(self) -> Exchange:
        """A new exchange adapter; closed at the test's end."""

    async def declare(self, queue: str) -> None:
        """Make a lane's queue."""

    async def delete(self, queue: str) -> None:
        """Delete a queue with all it holds."""

    async def publish(self, queue: str, messages: Iterable[Message]) -> None:
        """Put *messages* into *queue*, in order; they are there on return."""

    async def ready(self, queue: str) -> int:
        """How many wait in *queue*, apart from what consumers hold."""

    async def break_connections(self) -> None:
        """Lose every connection that adapters have."""


class MemoryBench:
    """The in-process broker."""

    def __init__(self, started: contextlib.AsyncExitStack) -> None:
        self._started = started
        self._broker = InProcessBroker()
        self._broker.declare_exchange(_EXCHANGE, "direct")

    def broker(self) -> Broker:
        adapter = MemoryBroker(self._broker)
        self._started.push_async_callback(adapter.stop)
        return adapter

    def exchange(self) -> MemoryExchange:
        return MemoryExchange(self._broker)

    async def declare(self, queue: str) -> None:
        self._broker.declare_queue(queue, lane_arguments("classic"))
        self._broker.bind(queue, _EXCHANGE, queue)

    async def delete(self, queue: str) -> None:
        self._broker.delete_queue(queue)

    async def publish(self, queue: str, messages: Iterable[Message]) -> None:
        for message in messages:
            self._broker.publish(_EXCHANGE, queue, message)

    async def ready(self, queue: str) -> int:
        return self._broker.counts()[queue].ready

    async def break_connections(self) -> None:
        self._broker.drop_connections()


class RabbitBench:
    """A RabbitMQ vhost; adapters reach it through *proxy*, the bench itself does not."""

    def __init__(
        self, started: contextlib.AsyncExitStack, url: str, admin: AbstractChannel, proxy: Proxy, kind: QueueKind
    ) -> None:
        self._started = started
        self._url = url
        self._admin = admin
        self.proxy = proxy
        self.kind: QueueKind = kind

    @property
    def vhost(self) -> str:
        """The vhost's name."""
        return unquote(urlsplit(self._url).path.removeprefix("/"))

    def address(self, *, heartbeat_s: int = 10, rpc_timeout_s: float = 5.0) -> Address:
        """Where adapters connect to."""
        parts = urlsplit(self._url)
        login = f"{parts.username}:{parts.password}@127.0.0.1:{self.proxy.port}"
        through = urlunsplit(parts._replace(netloc=login))
        return Address(url=through, name="bench", heartbeat_s=heartbeat_s, rpc_timeout_s=rpc_timeout_s)

    def broker(self, address: Address | None = None, *, shared_channels: int = 4) -> Broker:
        adapter = rabbitmq_broker(address or self.address(), shared_channels=shared_channels)
        self._started.push_async_callback(adapter.stop)
        return adapter

    def exchange(self) -> RabbitMQExchange:
        adapter = RabbitMQExchange(self.address())
        self._started.push_async_callback(adapter.close)
        return adapter

    async def declare(self, queue: str, *, kind: QueueKind | None = None) -> None:
        arguments = lane_arguments(kind or self.kind)
        await self._admin.queue_declare(queue, durable=True, arguments=dict(arguments))

    async def delete(self, queue: str) -> None:
        await self._admin.queue_delete(queue)

    async def publish(self, queue: str, messages: Iterable[Message]) -> None:
        waiting = list(messages)
        while waiting:
            some, waiting = waiting[:100], waiting[100:]
            await asyncio.gather(*(self._publish(queue, message) for message in some))

    async def ready(self, queue: str) -> int:
        declared = await self._admin.queue_declare(queue, passive=True)
        return declared.message_count or 0

    async def break_connections(self) -> None:
        self.proxy.cut()

    async def _publish(self, queue: str, message: Message) -> None:
        properties = commands.Basic.Properties(
            message_id=message.message_id,
            message_type=message.type,
            app_id=message.app_id,
            content_type=message.content_type,
            delivery_mode=2,
            headers={name: str(value) for name, value in message.headers.items()},
        )
        await self._admin.basic_publish(message.body, routing_key=queue, properties=properties)


class PostgresBench:
    """Queues in a migrated database."""

    def __init__(self, started: contextlib.AsyncExitStack, url: str, admin: Connection) -> None:
        self._started = started
        self._admin = admin
        self.address = PostgresAddress(url=url, name="bench", lease_s=3.0)

    def broker(self) -> Broker:
        adapter = postgres_broker(self.address)
        self._started.push_async_callback(adapter.stop)
        return adapter

    def exchange(self) -> PostgresExchange:
        adapter = PostgresExchange(self.address)
        self._started.push_async_callback(adapter.close)
        return adapter

    async def declare(self, queue: str) -> None:
        bound = BoundQueue(name=queue, exchange=_EXCHANGE, routing_key=queue, arguments=lane_arguments("quorum"))
        assert not await standing.declare(self._admin, [bound])

    async def delete(self, queue: str) -> None:
        await standing.delete(self._admin, queue)

    async def publish(self, queue: str, messages: Iterable[Message]) -> None:
        puts = [Put(bound=queue, routing_key=queue, message=one, headers=json_headers(one)) for one in messages]
        for queue_id in set(await put(self._admin, _EXCHANGE, puts)):
            assert queue_id is not None
            await wake(self._admin, [Wake(queue_id=queue_id)])

    async def ready(self, queue: str) -> int:
        return (await standing.counts(self._admin, [queue]))[queue].ready

    async def break_connections(self) -> None:
        await self._admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s"
            " AND datname = current_database()",
            (self.address.name,),
        )


@contextlib.asynccontextmanager
async def postgres_bench(url: str) -> AsyncIterator[PostgresBench]:
    """A bench in the migrated database at *url*."""
    async with (
        await connect_queues(url, name="bench's own", within_s=10.0) as admin,
        contextlib.AsyncExitStack() as started,
    ):
        yield PostgresBench(started, url, admin)


@contextlib.asynccontextmanager
async def rabbit_bench(url: str, kind: QueueKind) -> AsyncIterator[RabbitBench]:
    """A bench on the vhost at *url*."""
    parts = urlsplit(url)
    proxy = Proxy(host=parts.hostname or "127.0.0.1", port=parts.port or 5672, speaks="anything")
    async with aiormq.connect(url) as connection, proxy, contextlib.AsyncExitStack() as started:
        yield RabbitBench(started, url, await connection.channel(), proxy, kind)


@contextlib.asynccontextmanager
async def memory_bench() -> AsyncIterator[MemoryBench]:
    """A bench in this process."""
    async with contextlib.AsyncExitStack() as started:
        yield MemoryBench(started)
