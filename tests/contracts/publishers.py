"""Publishers on a broker that a test can look into, cut off and block: memory, PostgreSQL and RabbitMQ."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Protocol
from urllib.parse import urlsplit, urlunsplit

import aiormq
from aiormq.abc import AbstractChannel
from pamqp.commands import Basic

from consumer.postgres import claims, leases
from consumer.postgres.claims import Wish, claim
from outbox.event import Event, Tier, new_event_id
from outbox.inprocess import InProcessBroker
from outbox.naming import Lane
from outbox.queues import standing
from outbox.queues.session import connect
from outbox.queues.wakes import call_roll
from outbox.shell.severed import Connection
from outbox.topology import ROLL_CALL_EXCHANGE, BoundQueue, QueueKind
from outbox.wire import Message, decode
from relay.memory import MemoryPublisher
from relay.ports import Confirmed, Failed, LaneTopology, Outgoing, Publisher, Settlement
from relay.postgres.publisher import PostgresPublisher
from relay.rabbitmq.publisher import RabbitPublisher
from tests.support.containers import RabbitContainer
from tests.support.proxy import Proxy
from tests.support.rabbit import RabbitNode

BODY_BYTES_MAX = 100_000
_TIME = datetime(2026, 11, 29, 12, 30, tzinfo=UTC)


class Both(Publisher, LaneTopology, Protocol):
    """What the engine gets: both ports in one adapter."""


class Stage(Protocol):
    """A publisher, not opened, and the broker behind it."""

    @property
    def publisher(self) -> Both: ...

    async def read(self, queue: str) -> Sequence[Message]:
        """Take everything that is ready in *queue*."""

    async def declare_queue(self, queue: str, arguments: Mapping[str, str | int]) -> None: ...

    async def delete_queue(self, queue: str) -> None: ...

    async def call_roll(self, group: str) -> None: ...

    async def cut(self) -> None:
        """Break the publisher's connection."""

    async def block(self) -> None:
        """Raise the broker's alarm."""

    async def unblock(self) -> None: ...


class MemoryStage:
    def __init__(self) -> None:
        self.broker = InProcessBroker()
        self.publisher = MemoryPublisher(self.broker, queue_kind="classic", body_bytes_max=BODY_BYTES_MAX)

    async def read(self, queue: str) -> Sequence[Message]:
        messages: list[Message] = []
        connection = self.broker.connect()
        connection.consume(
            queue, prefetch=10_000, on_deliveries=lambda handed: messages.extend(one.message for one in handed)
        )
        ready = self.broker.counts()[queue].ready
        while len(messages) < ready:
            await asyncio.sleep(0)
        for tag in list(connection.held):
            connection.settle(tag)
        connection.close()
        return messages

    async def declare_queue(self, queue: str, arguments: Mapping[str, str | int]) -> None:
        self.broker.declare_queue(queue, arguments)

    async def delete_queue(self, queue: str) -> None:
        self.broker.delete_queue(queue)

    async def call_roll(self, group: str) -> None:
        connection = self.broker.connect()
        connection.publish(ROLL_CALL_EXCHANGE, group, _empty())
        connection.close()

    async def cut(self) -> None:
        self.broker.drop_connections()

    async def block(self) -> None:
        self.broker.block()

    async def unblock(self) -> None:
        self.broker.block(is_blocked=False)


class PostgresStage:
    """Queues in a migrated database. Its alarm is a full disk, as the server tells of one."""

    def __init__(self, url: str, admin: Connection) -> None:
        self._admin = admin
        self.publisher = PostgresPublisher(url=url, body_bytes_max=BODY_BYTES_MAX)

    async def read(self, queue: str) -> Sequence[Message]:
        token = await leases.begin(self._admin, lease_s=60.0)
        queue_id = (await standing.ids(self._admin, [queue]))[queue]
        wish = Wish(queue_id=queue_id, after=0, room=10_000)
        claimed = await claim(self._admin, token, [wish], dead=[])
        await claims.settle(self._admin, token, [one.place for one in claimed])
        return [one.message for one in claimed]

    async def declare_queue(self, queue: str, arguments: Mapping[str, str | int]) -> None:
        odd = BoundQueue(name=queue, exchange="odd", routing_key=queue, arguments=arguments)
        assert not await standing.declare(self._admin, [odd])

    async def delete_queue(self, queue: str) -> None:
        await standing.delete(self._admin, queue)

    async def call_roll(self, group: str) -> None:
        await call_roll(self._admin, group)

    async def cut(self) -> None:
        await self._admin.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where application_name like 'outbox-relay%' and datname = current_database()"
        )

    async def block(self) -> None:
        await self._admin.execute(
            """create function full_disk() returns trigger language plpgsql as
               $$ begin raise exception 'no space left on device' using errcode = 'disk_full'; end $$"""
        )
        await self._admin.execute(
            "create trigger full_disk before insert on outbox_broker.message execute function full_disk()"
        )

    async def unblock(self) -> None:
        await self._admin.execute("drop function full_disk cascade")


@asynccontextmanager
async def postgres_stage(url: str) -> AsyncIterator[PostgresStage]:
    """A stage on the migrated database at *url*."""
    async with await connect(url, name="stage", within_s=10.0) as admin:
        stage = PostgresStage(url, admin)
        yield stage
        await stage.publisher.close()


class RabbitStage:
    def __init__(
        self,
        *,
        publisher: RabbitPublisher,
        connection: aiormq.Connection,
        proxy: Proxy,
        node: RabbitNode | RabbitContainer | None,
    ) -> None:
        self.publisher = publisher
        self.proxy = proxy
        self._connection = connection
        self._node = node

    async def read(self, queue: str) -> Sequence[Message]:
        messages: list[Message] = []
        async with self._channel() as channel:
            while True:
                got = await channel.basic_get(queue, no_ack=True)
                if isinstance(got.delivery, Basic.GetEmpty):
                    return messages
                properties = got.header.properties
                messages.append(
                    Message(
                        message_id=properties.message_id or "",
                        type=properties.message_type or "",
                        app_id=properties.app_id or "",
                        content_type=properties.content_type or "",
                        headers=dict(properties.headers or {}),
                        body=got.body,
                    )
                )

    async def declare_queue(self, queue: str, arguments: Mapping[str, str | int]) -> None:
        async with self._channel() as channel:
            await channel.queue_declare(queue, durable=True, arguments=dict(arguments))

    async def delete_queue(self, queue: str) -> None:
        async with self._channel() as channel:
            await channel.queue_delete(queue)

    async def call_roll(self, group: str) -> None:
        async with self._channel() as channel:
            await channel.basic_publish(b"", exchange=ROLL_CALL_EXCHANGE, routing_key=group)

    async def cut(self) -> None:
        self.proxy.cut()

    async def block(self) -> None:
        assert self._node is not None, "the shared broker is never blocked"
        await asyncio.to_thread(self._node.block)

    async def unblock(self) -> None:
        assert self._node is not None, "the shared broker is never blocked"
        await asyncio.to_thread(self._node.unblock)

    @asynccontextmanager
    async def _channel(self) -> AsyncIterator[AbstractChannel]:
        channel = await self._connection.channel()
        try:
            yield channel
        finally:
            await channel.close()


@asynccontextmanager
async def rabbit_stage(
    url: str,
    *,
    queue_kind: QueueKind,
    node: RabbitNode | RabbitContainer | None = None,
    heartbeat_s: int = 10,
    write_timeout_s: float = 10.0,
    body_bytes_max: int = BODY_BYTES_MAX,
) -> AsyncIterator[RabbitStage]:
    """A stage on the vhost at *url*; *node* is the broker itself if the test may block it."""
    address = urlsplit(url)
    async with (
        Proxy(host=address.hostname or "", port=address.port or 5672, speaks="anything") as proxy,
        aiormq.connect(url) as connection,
    ):
        login = address.netloc.rpartition("@")[0]
        publisher = RabbitPublisher(
            url=urlunsplit(address._replace(netloc=f"{login}@127.0.0.1:{proxy.port}")),
            queue_kind=queue_kind,
            heartbeat_s=heartbeat_s,
            write_timeout_s=write_timeout_s,
            body_bytes_max=body_bytes_max,
        )
        yield RabbitStage(publisher=publisher, connection=connection, proxy=proxy, node=node)
        await publisher.close()


def lane(tenant: str = "acme", *, group: str = "billing", tier: Tier = Tier.STANDARD) -> Lane:
    return Lane(group=group, tier=tier, tenant=tenant)


def event(*, tenant: str = "acme", payload: bytes = b'{"a":1}', actor: str | None = None) -> Event:
    return Event(
        id=new_event_id(),
        tenant=tenant,
        tier=Tier.STANDARD,
        type="order.placed",
        data_version=1,
        source="shop",
        content_type="application/json",
        payload=payload,
        time=_TIME,
        ledger_time=_TIME,
        actor=actor,
    )


def outgoing(count: int, *lanes: Lane, first_tag: int = 1, payload: bytes = b'{"a":1}') -> list[Outgoing]:
    """*count* events, to *lanes* in turn."""
    return [
        Outgoing(
            tag=first_tag + number,
            lane=lanes[number % len(lanes)],
            event=event(tenant=lanes[number % len(lanes)].tenant, payload=payload),
        )
        for number in range(count)
    ]


async def settle(publisher: Publisher, count: int, *, within_s: float = 30.0) -> Sequence[Settlement]:
    """The next *count* settlements."""
    settled: list[Settlement] = []
    async with asyncio.timeout(within_s):
        while len(settled) < count:
            settled += await publisher.settlements(timeout_s=1.0)
    assert len(settled) == count
    return settled


def by_tag(settlements: Sequence[Settlement]) -> Mapping[int, Settlement]:
    """Each settlement by its tag; none is settled twice."""
    found = {settlement.tag: settlement for settlement in settlements}
    assert len(found) == len(settlements)
    return found


def confirmed_tags(settlements: Sequence[Settlement]) -> list[int]:
    return sorted(one.tag for one in settlements if isinstance(one, Confirmed))


def failures(settlements: Sequence[Settlement]) -> list[Failed]:
    return [one for one in settlements if isinstance(one, Failed)]


def events_of(messages: Sequence[Message]) -> list[Event]:
    return [decode(message) for message in messages]


def _empty() -> Message:
    return Message(message_id="", type="", app_id="", content_type="", headers={}, body=b"")
