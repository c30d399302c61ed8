"""The exchange port on queues in PostgreSQL: a connection that publishes, opened when it is first needed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from consumer.postgres.wire import Address
from outbox import topology
from outbox.errors import QueueMismatch
from outbox.queues import standing
from outbox.queues.putting import Put, json_headers, put
from outbox.queues.session import connect, deadline
from outbox.queues.wakes import Wake, call_roll, wake
from outbox.shell import severed
from outbox.shell.severed import Connection
from outbox.wire import Message


class PostgresExchange:
    """``consumer.ports.Exchange``. It lives on one event loop."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._connection: Connection | None = None
        self._is_in_use = asyncio.Lock()

    async def declare_group(self, group: str, kind: topology.QueueKind) -> None:
        """As the port says."""
        async with self._opened() as connection:
            mismatches = await standing.declare(connection, topology.group_queues(group, kind))
        if mismatches:
            raise QueueMismatch(mismatches[0].reason)

    async def publish(self, exchange: str, routing_key: str, message: Message) -> None:
        """As the port says; a message that no queue is bound for is confirmed too."""
        async with self._opened() as connection:
            if exchange == topology.ROLL_CALL_EXCHANGE:
                await call_roll(connection, routing_key)
                return
            headers = json_headers(message)
            puts = [
                Put(bound=bound, routing_key=routing_key, message=message, headers=headers)
                for bound in topology.keys_taking(exchange, routing_key)
            ]
            queue_ids = await put(connection, exchange, puts)
            await wake(connection, [Wake(queue_id=queue_id) for queue_id in queue_ids if queue_id is not None])

    async def close(self) -> None:
        """As the port says."""
        async with self._is_in_use:
            await self._close()

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[Connection]:
        address = self._address
        async with self._is_in_use:
            if self._connection is None:
                self._connection = await connect(address.url, name=address.name, within_s=address.wait_s)
            connection = self._connection
            try:
                async with deadline(connection, address.wait_s):
                    yield connection
            finally:
                if connection.closed:
                    await self._close()

    async def _close(self) -> None:
        connection, self._connection = self._connection, None
        await severed.close(connection)
