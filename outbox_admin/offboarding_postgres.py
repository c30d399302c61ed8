"""Off-boarding of queues in PostgreSQL: their rows tell what is ready and what is in somebody's hands."""

import contextlib
from collections.abc import AsyncIterator
from typing import Final

from outbox.errors import TransientError
from outbox.naming import Lane
from outbox.queues import standing
from outbox.queues.putting import Put, json_headers, put
from outbox.queues.session import connect, deadline
from outbox.queues.wakes import Wake, wake
from outbox.shell import severed
from outbox.shell.severed import Connection
from outbox.topology import DIRECTORY_EXCHANGE
from outbox_admin.offboarding import State
from relay.announcement import announcement_message
from relay.ports import Announcement

_ASK_S: Final = 30.0


class PostgresDesk:
    """``outbox_admin.offboarding.Desk`` on queues in PostgreSQL."""

    def __init__(self, connection: Connection) -> None:
        """*connection* is that of ``opened``."""
        self._connection = connection

    @staticmethod
    @contextlib.asynccontextmanager
    async def opened(url: str) -> "AsyncIterator[PostgresDesk]":
        """One on a connection of its own to the database at *url*."""
        connection = await connect(url, name="outbox tenant offboard", within_s=_ASK_S)
        try:
            yield PostgresDesk(connection)
        finally:
            await severed.close(connection)

    async def unbind(self, lane: Lane) -> None:
        """As the port says."""
        async with deadline(self._connection, _ASK_S):
            await standing.unbind(self._connection, lane.queue)

    async def state(self, queue: str) -> State | None:
        """As the port says."""
        async with deadline(self._connection, _ASK_S):
            found = (await standing.counts(self._connection, [queue])).get(queue)
        return None if found is None else State(ready=found.ready, holders=found.held, what="in hand", is_sure=True)

    async def announce(self, announcement: Announcement, *, is_gone: bool) -> None:
        """As the port says."""
        message, group = announcement_message(announcement, is_gone=is_gone), announcement.lane.group
        one = Put(bound=group, routing_key=group, message=message, headers=json_headers(message))
        async with deadline(self._connection, _ASK_S):
            (queue_id,) = await put(self._connection, DIRECTORY_EXCHANGE, [one])
            if queue_id is not None:
                await wake(self._connection, [Wake(queue_id=queue_id)])

    async def delete(self, queue: str) -> None:
        """As the port says. Raises TransientError: something came after it was seen empty."""
        async with deadline(self._connection, _ASK_S):
            if not await standing.delete(self._connection, queue, if_empty=True):
                raise TransientError(f"{queue}: want it empty, got a message at the last moment; run it again to go on")
