"""What the relay declares among queues in PostgreSQL, and what it tells of it: lanes and directories."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Final

from outbox.errors import BrokerUnavailable
from outbox.naming import Lane
from outbox.queues import standing
from outbox.queues.putting import Put, json_headers, put, trim
from outbox.queues.session import deadline
from outbox.queues.wakes import Wake
from outbox.shell import severed
from outbox.shell.severed import Connection
from outbox.topology import (
    DIRECTORY_EXCHANGE,
    EVENTS_EXCHANGE,
    BoundQueue,
    QueueKind,
    directory_queue,
    group_queues,
    lane_arguments,
)
from relay.announcement import announcement_message
from relay.ports import Announcement, Category, LaneFault

_LENGTH: Final = "x-max-length"


class PostgresTopology:
    """Declares on one connection at a time: ``attach`` names it."""

    def __init__(self, *, queue_kind: QueueKind, timeout_s: float, ring: Callable[[Iterable[Wake]], None]) -> None:
        """Args:
        ring: has consumers woken.
        """
        self._queue_kind = queue_kind
        self._timeout_s = timeout_s
        self._ring = ring
        self._connection: Connection | None = None
        self._is_in_use = asyncio.Lock()

    def attach(self, connection: Connection) -> None:
        """Work on *connection* from now on, and close it in the end."""
        self._connection = connection

    async def detach(self) -> None:
        """Close the connection at once; who waits for an answer on it hears that none comes. Safe to repeat."""
        connection, self._connection = self._connection, None
        if connection is not None:
            severed.sever(connection)
        await severed.close(connection)

    async def declare(self, lanes: Sequence[Lane], *, patience_s: float) -> Sequence[LaneFault]:
        """See ``relay.ports.LaneTopology``."""
        beside = {group: group_queues(group, self._queue_kind) for group in dict.fromkeys(lane.group for lane in lanes)}
        async with self._use(patience_s) as connection:
            refused = await standing.declare(connection, [queue for queues in beside.values() for queue in queues])
            reasons = {one.name: one.reason for one in refused}
            of_group = {
                group: next((reasons[queue.name] for queue in queues if queue.name in reasons), None)
                for group, queues in beside.items()
            }
            sound = [lane for lane in lanes if of_group[lane.group] is None]
            refused = await standing.declare(connection, [self._queue(lane) for lane in sound])
        reasons = {one.name: one.reason for one in refused}
        return [
            LaneFault(lane=lane, category=Category.MISMATCH, reason=reason)
            for lane in lanes
            if (reason := of_group[lane.group] or reasons.get(lane.queue))
        ]

    async def announce(self, announcements: Sequence[Announcement]) -> Sequence[LaneFault]:
        """See ``relay.ports.LaneTopology``."""
        puts = []
        for one in announcements:
            message, group = announcement_message(one), one.lane.group
            puts.append(Put(bound=group, routing_key=group, message=message, headers=json_headers(message)))
        async with self._use(self._timeout_s) as connection:
            queue_ids = await put(connection, DIRECTORY_EXCHANGE, puts)
            directories = dict(zip((one.bound for one in puts), queue_ids, strict=True))
            for group, queue_id in directories.items():
                most = group_queues(group, self._queue_kind)[-1].arguments[_LENGTH]
                if queue_id is not None and isinstance(most, int):
                    await trim(connection, queue_id, most=most)
        self._ring(Wake(queue_id=queue_id) for queue_id in directories.values() if queue_id is not None)
        return [
            LaneFault(
                lane=one.lane,
                category=Category.UNROUTABLE,
                reason=f"queue {directory_queue(one.lane.group)}: took no announcement: no such queue is bound",
            )
            for one, queue_id in zip(announcements, queue_ids, strict=True)
            if queue_id is None
        ]

    def _queue(self, lane: Lane) -> BoundQueue:
        arguments = lane_arguments(self._queue_kind)
        return BoundQueue(name=lane.queue, exchange=EVENTS_EXCHANGE, routing_key=lane.routing_key, arguments=arguments)

    @asynccontextmanager
    async def _use(self, within_s: float) -> AsyncIterator[Connection]:
        async with self._is_in_use:
            connection = self._connection
            if connection is None:
                raise BrokerUnavailable("queues in PostgreSQL: want an open connection, got none")
            async with deadline(connection, within_s):
                yield connection
