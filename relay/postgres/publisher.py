"""Queues in PostgreSQL as the relay's publisher and topology.

A batch is one statement and one commit; its events are confirmed when that has returned. On connections of their own,
so that neither ever waits for the other: lanes are declared and announced, and consumers are woken.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Final

import psycopg
from psycopg import sql

from outbox.errors import BrokerUnavailable, ConfigError
from outbox.naming import Lane, check_group
from outbox.queues.putting import Put, json_headers, put
from outbox.queues.session import connect, deadline
from outbox.queues.wakes import ROLL_CALL_CHANNEL, Wake
from outbox.shell import severed
from outbox.shell.severed import Connection
from outbox.topology import EVENTS_EXCHANGE, QueueKind
from outbox.wire import encode
from relay.answers import Answers
from relay.ports import Announcement, Category, Confirmed, Failed, LaneFault, Outgoing, Settlement
from relay.postgres.bell import Bell
from relay.postgres.topology import PostgresTopology
from relay.rabbitmq.frames import DEFAULT_BODY_BYTES_MAX, DEFAULT_FRAME_BYTES_MAX, FRAME_OVERHEAD_BYTES

_NAME: Final = "outbox-relay queues"
_BATCH: Final = 500
_BATCH_BYTES: Final = 8 * 1024 * 1024
_BLOCKED_AGAIN_S: Final = 0.25
_PROBE_S: Final = 1.0
_PROBE: Final = "SELECT 1"
_LISTEN: Final = sql.SQL("LISTEN {}").format(sql.Identifier(ROLL_CALL_CHANNEL))
# Its limits are RabbitMQ's, so what would be refused there is refused here.
_HEADER_BYTES_MAX: Final = DEFAULT_FRAME_BYTES_MAX - FRAME_OVERHEAD_BYTES
# No room on the disk, or read-only for now: the server takes nothing of anybody, and says so to everybody.
_BLOCKED: Final = frozenset({"53100", "25006"})


class PostgresPublisher:
    """Implements ``relay.ports.Publisher`` and ``relay.ports.LaneTopology`` on the queues at *url*."""

    def __init__(
        self,
        *,
        url: str,
        queue_kind: QueueKind = "quorum",
        connect_timeout_s: float = 10.0,
        call_timeout_s: float = 10.0,
        body_bytes_max: int = DEFAULT_BODY_BYTES_MAX,
    ) -> None:
        """Args:
        queue_kind: what queues say they are; it means nothing here, and never changes.
        call_timeout_s: how long the server may take for one statement.
        body_bytes_max: larger payloads are Failed without being sent.
        """
        self._url = url
        self._connect_timeout_s = connect_timeout_s
        self._call_timeout_s = call_timeout_s
        self._body_bytes_max = body_bytes_max
        self._bell = Bell(lambda: self._connect(f"{_NAME} bell"), within_s=call_timeout_s)
        self._topology = PostgresTopology(queue_kind=queue_kind, timeout_s=call_timeout_s, ring=self._bell.ring)
        self._connection: Connection | None = None
        self._work: list[asyncio.Task[None]] = []
        self._waiting: deque[Outgoing] = deque()
        self._answers = Answers()
        self._is_waiting = asyncio.Event()
        self._is_blocked = False
        self._called: set[str] = set()
        self._lost: BrokerUnavailable | None = None

    @property
    def is_blocked(self) -> bool:
        """See ``relay.ports.Publisher``."""
        return self._is_blocked

    async def open(self) -> None:
        """See ``relay.ports.Publisher``."""
        await self.close()
        connection = self._connection = await self._connect(_NAME)
        connection.add_notify_handler(self._hear)
        try:
            async with deadline(connection, self._connect_timeout_s):
                await connection.execute(_LISTEN)
            self._topology.attach(await self._connect(f"{_NAME} lanes"))
            self._work = [asyncio.create_task(self._bell.toll()), asyncio.create_task(self._publish(connection))]
        except BaseException:
            await self.close()
            raise

    async def send(self, batch: Sequence[Outgoing]) -> None:
        """See ``relay.ports.Publisher``. What is handed over waits in memory for its statement."""
        self._check_open()
        self._waiting.extend(batch)
        self._is_waiting.set()

    async def settlements(self, *, timeout_s: float) -> Sequence[Settlement]:
        """See ``relay.ports.Publisher``."""
        is_open = self._connection is not None and self._lost is None
        return await self._answers.take(timeout_s=timeout_s, check_open=self._check_open, is_open=is_open)

    def unread(self) -> AbstractContextManager[None]:
        """See ``relay.ports.Publisher``. Answers come by the batch here."""
        return nullcontext()

    async def close(self) -> None:
        """See ``relay.ports.Publisher``."""
        connection, self._connection = self._connection, None
        work, self._work = self._work, []
        if connection is not None:
            # Severed, not cancelled: a cancelled driver waits for the server's answer.
            severed.sever(connection)
        for task in work:
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)
        await severed.close(connection)
        await self._topology.detach()
        self._waiting.clear()
        self._is_blocked = False
        self._lost = None
        self._answers.clear()

    async def declare(self, lanes: Sequence[Lane], *, patience_s: float = 10.0) -> Sequence[LaneFault]:
        """See ``relay.ports.LaneTopology``. No lane is silent here: either all answer, or none does."""
        return await self._topology.declare(lanes, patience_s=patience_s)

    async def announce(self, announcements: Sequence[Announcement]) -> Sequence[LaneFault]:
        """See ``relay.ports.LaneTopology``."""
        return await self._topology.announce(announcements)

    def roll_calls(self) -> frozenset[str]:
        """See ``relay.ports.LaneTopology``."""
        called, self._called = frozenset(self._called), set()
        return called

    async def _connect(self, name: str) -> Connection:
        return await connect(self._url, name=name, within_s=self._connect_timeout_s)

    async def _publish(self, connection: Connection) -> None:
        """Put what waits into its queues, a batch after the other, until the connection is lost."""
        try:
            while True:
                self._is_waiting.clear()
                while batch := self._take():
                    await self._put(connection, batch)
                if not await self._has_more():
                    # A lost connection shows when it is asked something, and calls that came are read then.
                    async with deadline(connection, self._call_timeout_s):
                        await connection.execute(_PROBE)
        except BrokerUnavailable as error:
            self._lost = error
            self._answers.ring()

    async def _has_more(self) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(_PROBE_S):
                return await self._is_waiting.wait()
        return False

    def _hear(self, notification: psycopg.Notify) -> None:
        with suppress(ConfigError):  # nobody of ours calls for what names no group
            self._called.add(check_group(notification.payload))

    def _take(self) -> list[tuple[int, Put]]:
        """The next batch; what is too large for it fails alone."""
        batch: list[tuple[int, Put]] = []
        room_bytes = _BATCH_BYTES
        while self._waiting and len(batch) < _BATCH and room_bytes > 0:
            outgoing = self._waiting.popleft()
            message, key = encode(outgoing.event), outgoing.lane.routing_key
            headers = json_headers(message)
            reason = _too_large("headers", len(headers), _HEADER_BYTES_MAX) or _too_large(
                "payload", len(message.body), self._body_bytes_max
            )
            if reason:
                self._answers.add([Failed(tag=outgoing.tag, category=Category.TOO_LARGE, reason=reason)])
                continue
            room_bytes -= len(headers) + len(message.body)
            batch.append((outgoing.tag, Put(bound=key, routing_key=key, message=message, headers=headers)))
        return batch

    async def _put(self, connection: Connection, batch: Sequence[tuple[int, Put]]) -> None:
        while True:
            try:
                async with deadline(connection, self._call_timeout_s):
                    queue_ids = await put(connection, EVENTS_EXCHANGE, [one for _, one in batch])
            except BrokerUnavailable as error:
                if connection.closed or not _is_blocked(error):
                    raise
                self._is_blocked = True
                self._answers.ring()
                await asyncio.sleep(_BLOCKED_AGAIN_S)
            else:
                break
        self._is_blocked = False
        self._bell.ring(Wake(queue_id=queue_id) for queue_id in queue_ids if queue_id is not None)
        answers = zip(batch, queue_ids, strict=True)
        self._answers.add([_settlement(tag, one, queue_id) for (tag, one), queue_id in answers])

    def _check_open(self) -> None:
        if self._lost is not None:
            raise self._lost
        if self._connection is None:
            raise BrokerUnavailable("queues in PostgreSQL: want an open connection, got none")


def _settlement(tag: int, one: Put, queue_id: int | None) -> Settlement:
    if queue_id is not None:
        return Confirmed(tag=tag)
    reason = f"routing key {one.bound}: want a queue bound to it, got none"
    return Failed(tag=tag, category=Category.UNROUTABLE, reason=reason)


def _too_large(what: str, size: int, most: int) -> str:
    return f"{what}: want at most {most} bytes, got {size}" if size > most else ""


def _is_blocked(error: BaseException | None) -> bool:
    """Whether the server's own words, somewhere behind *error*, are that it takes nothing now."""
    while error is not None:
        if isinstance(error, psycopg.Error) and error.sqlstate in _BLOCKED:
            return True
        error = error.__cause__
    return False
