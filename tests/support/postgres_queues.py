"""What engine tests need of queues in PostgreSQL beside the consumer's ports, in the database that they work on."""

import contextlib
from collections.abc import AsyncIterator, Iterable

from consumer.ports import Broker, Exchange
from consumer.postgres.broker import postgres_broker
from consumer.postgres.exchange import PostgresExchange
from consumer.postgres.wire import Address
from outbox import topology
from outbox.naming import Lane
from outbox.queues import standing
from outbox.queues.putting import Put, json_headers, put
from outbox.queues.session import connect
from outbox.shell.severed import Connection
from outbox.topology import BoundQueue
from outbox.wire import Message
from tests.support.engine import Rig, announcement


class PostgresQueues:
    """Adapters connect by *address*; *admin* is a session of the test's own."""

    def __init__(self, address: Address, admin: Connection) -> None:
        self.address = address
        self._admin = admin
        self._exchanges: list[PostgresExchange] = []

    def broker(self) -> Broker:
        return postgres_broker(self.address)

    def exchange(self) -> Exchange:
        exchange = PostgresExchange(self.address)
        self._exchanges.append(exchange)
        return exchange

    async def declare(self, lane: Lane) -> None:
        bound = BoundQueue(
            name=lane.queue,
            exchange=topology.EVENTS_EXCHANGE,
            routing_key=lane.routing_key,
            arguments=topology.lane_arguments("quorum"),
        )
        assert not await standing.declare(self._admin, [*topology.group_queues(lane.group, "quorum"), bound])
        await self._put(topology.DIRECTORY_EXCHANGE, lane.group, [announcement(lane)])

    async def publish(self, lane: Lane, messages: Iterable[Message]) -> None:
        await self._put(topology.EVENTS_EXCHANGE, lane.routing_key, messages)

    async def in_queue(self, queue: str) -> int:
        count = (await standing.counts(self._admin, [queue]))[queue]
        return count.ready + count.held

    async def close(self) -> None:
        for exchange in self._exchanges:
            await exchange.close()

    async def _put(self, exchange: str, key: str, messages: Iterable[Message]) -> None:
        puts = [Put(bound=key, routing_key=key, message=one, headers=json_headers(one)) for one in messages]
        assert None not in await put(self._admin, exchange, puts)


@contextlib.asynccontextmanager
async def postgres_rig(database_url: str) -> AsyncIterator[Rig]:
    """A rig whose queues are in its own database; its processes are ended at the end."""
    async with await connect(database_url, name="engine test", within_s=10.0) as admin:
        queues = PostgresQueues(Address(url=database_url, name="consumer's queues", lease_s=3.0), admin)
        rig = Rig(database_url, queues)
        rig.execute("CREATE TABLE effect (at bigserial, note text NOT NULL)")
        try:
            yield rig
        finally:
            await rig.close()
            await queues.close()
