"""The in-process broker as the relay's publisher and topology: no network, the same outcomes."""

from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from itertools import count
from typing import Final

from outbox.errors import BrokerUnavailable, ConfigError, QueueMismatch
from outbox.inprocess import Connection, Handed, InProcessBroker, Routing
from outbox.naming import Lane, check_group
from outbox.topology import (
    DIRECTORY_EXCHANGE,
    EVENTS_EXCHANGE,
    EXCHANGES,
    ROLL_CALL_EXCHANGE,
    QueueKind,
    directory_queue,
    group_queues,
    lane_arguments,
)
from outbox.wire import encode
from relay.announcement import announcement_message
from relay.answers import Answers
from relay.ports import Announcement, Category, Confirmed, Failed, LaneFault, Nacked, Outgoing, Settlement
from relay.rabbitmq.frames import DEFAULT_BODY_BYTES_MAX, DEFAULT_FRAME_BYTES_MAX, Marshaller, TooLarge

_PREFETCH: Final = 100
_own_queues: Final = count(1)


class MemoryPublisher:
    """Implements ``relay.ports.Publisher`` and ``relay.ports.LaneTopology`` on *broker*."""

    def __init__(
        self,
        broker: InProcessBroker,
        *,
        queue_kind: QueueKind = "quorum",
        body_bytes_max: int = DEFAULT_BODY_BYTES_MAX,
    ) -> None:
        self._broker = broker
        self._queue_kind = queue_kind
        # Its limits are RabbitMQ's, so what would be refused there is refused here.
        self._frames = Marshaller(channel=1, frame_bytes_max=DEFAULT_FRAME_BYTES_MAX, body_bytes_max=body_bytes_max)
        self._connection: Connection | None = None
        self._waiting: deque[Outgoing] = deque()
        self._answers = Answers()
        self._called: set[str] = set()

    @property
    def is_blocked(self) -> bool:
        """See ``relay.ports.Publisher``."""
        return self._connection is not None and self._broker.is_blocked

    async def open(self) -> None:
        """See ``relay.ports.Publisher``."""
        await self.close()
        connection = self._broker.connect(on_lost=self._answers.ring, on_blocked=self._blocked)
        for name, kind in EXCHANGES.items():
            self._broker.declare_exchange(name, kind)
        own = f"outbox.roll_call.{next(_own_queues)}"
        connection.declare_own_queue(own)
        self._broker.bind(own, ROLL_CALL_EXCHANGE, "")
        connection.consume(own, prefetch=_PREFETCH, on_deliveries=self._hear)
        self._connection = connection

    async def send(self, batch: Sequence[Outgoing]) -> None:
        """See ``relay.ports.Publisher``. While the broker is blocked, what is sent waits in memory."""
        connection = self._opened()
        self._waiting.extend(batch)
        self._publish(connection)

    async def settlements(self, *, timeout_s: float) -> Sequence[Settlement]:
        """See ``relay.ports.Publisher``."""
        return await self._answers.take(timeout_s=timeout_s, check_open=self._check_open, is_open=self._is_open)

    def unread(self) -> AbstractContextManager[None]:
        """See ``relay.ports.Publisher``. Answers come by the batch here."""
        return nullcontext()

    async def close(self) -> None:
        """See ``relay.ports.Publisher``."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None
        self._waiting.clear()
        self._answers.clear()

    async def declare(self, lanes: Sequence[Lane], *, patience_s: float = 10.0) -> Sequence[LaneFault]:  # noqa: ARG002
        """See ``relay.ports.LaneTopology``. It takes no time."""
        self._opened()
        return [fault for lane in lanes if (fault := self._declare(lane))]

    async def announce(self, announcements: Sequence[Announcement]) -> Sequence[LaneFault]:
        """See ``relay.ports.LaneTopology``."""
        connection = self._opened()
        faults = []
        for each in announcements:
            group = each.lane.group
            routing = connection.publish(DIRECTORY_EXCHANGE, group, announcement_message(each))
            if routing is not Routing.QUEUED:
                reason = f"queue {directory_queue(group)}: took no announcement: {routing.value}"
                faults.append(LaneFault(lane=each.lane, category=Category.UNROUTABLE, reason=reason))
        return faults

    def roll_calls(self) -> frozenset[str]:
        """See ``relay.ports.LaneTopology``."""
        called, self._called = frozenset(self._called), set()
        return called

    def _publish(self, connection: Connection) -> None:
        while self._waiting and not self._broker.is_blocked:
            self._answers.add([self._publish_one(connection, self._waiting.popleft())])

    def _publish_one(self, connection: Connection, outgoing: Outgoing) -> Settlement:
        tag, key = outgoing.tag, outgoing.lane.routing_key
        framed = self._frames.publish(outgoing.lane, outgoing.event)
        if isinstance(framed, TooLarge):
            return Failed(tag=tag, category=Category.TOO_LARGE, reason=framed.reason)
        match connection.publish(EVENTS_EXCHANGE, key, encode(outgoing.event)):
            case Routing.QUEUED:
                return Confirmed(tag=tag)
            case Routing.REJECTED:
                return Nacked(tag=tag)
            case Routing.UNROUTABLE:
                reason = f"routing key {key}: want a queue bound to it, got none"
                return Failed(tag=tag, category=Category.UNROUTABLE, reason=reason)

    def _declare(self, lane: Lane) -> LaneFault | None:
        broker = self._broker
        beside = group_queues(lane.group, self._queue_kind)
        try:
            for queue in beside:
                broker.declare_queue(queue.name, queue.arguments)
            broker.declare_queue(lane.queue, lane_arguments(self._queue_kind))
        except QueueMismatch as error:
            return LaneFault(lane=lane, category=Category.MISMATCH, reason=str(error))
        for queue in beside:
            broker.bind(queue.name, queue.exchange, queue.routing_key)
        broker.bind(lane.queue, EVENTS_EXCHANGE, lane.routing_key)
        return None

    def _hear(self, calls: Sequence[Handed]) -> None:
        for call in calls:
            if self._connection is not None:
                self._connection.settle(call.tag)
            with suppress(ConfigError):  # nobody of ours calls for what names no group
                self._called.add(check_group(call.routing_key))

    def _blocked(self, is_blocked: bool) -> None:
        if not is_blocked and self._is_open:
            self._publish(self._opened())

    @property
    def _is_open(self) -> bool:
        return self._connection is not None and self._connection.is_open

    def _check_open(self) -> None:
        self._opened()

    def _opened(self) -> Connection:
        if self._connection is None or not self._connection.is_open:
            raise BrokerUnavailable("in-process broker: want an open connection, got none")
        return self._connection
