"""A broker inside one process and on one event loop: what both memory adapters stand on.

It behaves as RabbitMQ does where our processes can see it: a publish is routed, returned or rejected
at once; deliveries come later, from the event loop, in queue order and within each consumer's
prefetch; what is handed back takes its old place, marked redelivered; a connection that ends hands
back all it had not settled. Nothing survives the process, and nothing is thread-safe.
"""

import asyncio
import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import count

from outbox.errors import BrokerUnavailable, QueueMismatch
from outbox.wire import Message


class Routing(Enum):
    """What became of a publish."""

    QUEUED = "queued"  # in every queue it is routed to, and there is at least one
    UNROUTABLE = "unroutable"  # no queue is bound for its key
    REJECTED = "rejected"  # a queue is full and says so (``x-overflow`` is ``reject-publish``), so none took it


@dataclass(frozen=True, slots=True, kw_only=True)
class Handed:
    """One message handed to a consumer. *tag* is its connection's, counting from 1."""

    tag: int
    queue: str
    routing_key: str
    message: Message
    is_redelivered: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueCount:
    """What stands in one queue: *ready* to be handed out, and *unsettled* in consumers' hands."""

    ready: int
    unsettled: int
    consumers: int


@dataclass(slots=True, order=True)
class _Item:
    position: int  # the place in its queue, kept when it is handed back
    routing_key: str = field(compare=False)
    message: Message = field(compare=False)
    is_redelivered: bool = field(compare=False, default=False)


@dataclass(slots=True, eq=False, kw_only=True)
class _Queue:
    name: str
    arguments: Mapping[str, str | int]
    positions: Iterator[int] = field(default_factory=count)
    ready: list[_Item] = field(default_factory=list)  # a heap
    consumers: list["Consumer"] = field(default_factory=list)
    unsettled: int = 0

    @property
    def is_full(self) -> bool:
        limit = self.arguments.get("x-max-length")
        return isinstance(limit, int) and len(self.ready) >= limit

    @property
    def rejects(self) -> bool:
        return self.is_full and self.arguments.get("x-overflow") == "reject-publish"

    def give_back(self, item: _Item) -> None:
        self.unsettled -= 1
        item.is_redelivered = True
        heapq.heappush(self.ready, item)

    def hand_out(self) -> None:
        """Give each consumer with room one message in turn, until no message or no room is left."""
        batches: dict[Consumer, list[Handed]] = {}
        while self.ready and (consumer := next((one for one in self.consumers if one.has_room), None)):
            self.consumers.remove(consumer)
            self.consumers.append(consumer)
            batches.setdefault(consumer, []).append(consumer.take(heapq.heappop(self.ready)))
        for consumer, batch in batches.items():
            consumer.on_deliveries(batch)


@dataclass(slots=True, eq=False, kw_only=True)
class Consumer:
    """One consumer of one queue, made by ``Connection.consume``."""

    connection: "Connection"
    queue: _Queue
    prefetch: int
    on_deliveries: Callable[[Sequence[Handed]], None]
    on_cancelled: Callable[[], None]
    unsettled: int = 0

    @property
    def has_room(self) -> bool:
        """Whether one more message may be handed to it."""
        return self.unsettled < self.prefetch

    def take(self, item: _Item) -> Handed:
        """Hand *item* to this consumer."""
        self.unsettled += 1
        self.queue.unsettled += 1
        tag = next(self.connection.tags)
        self.connection.held[tag] = (self, item)
        return Handed(
            tag=tag,
            queue=self.queue.name,
            routing_key=item.routing_key,
            message=item.message,
            is_redelivered=item.is_redelivered,
        )

    def cancel(self) -> None:
        """Receive no more; what it holds can still be settled. Safe to repeat."""
        if self in self.queue.consumers:
            self.queue.consumers.remove(self)
        self.connection.consumers.discard(self)


@dataclass(slots=True, eq=False, kw_only=True)
class Connection:
    """One client's connection, made by ``InProcessBroker.connect``."""

    broker: "InProcessBroker"
    on_lost: Callable[[], None]
    on_blocked: Callable[[bool], None]
    is_open: bool = True
    tags: Iterator[int] = field(default_factory=lambda: count(1))
    held: dict[int, tuple[Consumer, _Item]] = field(default_factory=dict)
    consumers: set[Consumer] = field(default_factory=set)
    own_queues: list[str] = field(default_factory=list)

    def publish(self, exchange: str, routing_key: str, message: Message) -> Routing:
        """Route *message*. Raises BrokerUnavailable: lost, blocked, or there is no such exchange."""
        self._check_open()
        return self.broker.publish(exchange, routing_key, message)

    def declare_own_queue(self, name: str) -> None:
        """Make a queue that is deleted when this connection ends."""
        self._check_open()
        self.broker.declare_queue(name, {})
        self.own_queues.append(name)

    def consume(
        self,
        queue: str,
        *,
        prefetch: int,
        on_deliveries: Callable[[Sequence[Handed]], None],
        on_cancelled: Callable[[], None] = lambda: None,
    ) -> Consumer:
        """Hand messages of *queue* to *on_deliveries*, at most *prefetch* unsettled; both callbacks on the loop.

        *on_cancelled* is called when the queue is deleted. Raises BrokerUnavailable, or KeyError: no such queue.
        """
        self._check_open()
        consumer = Consumer(
            connection=self,
            queue=self.broker.queues[queue],
            prefetch=prefetch,
            on_deliveries=on_deliveries,
            on_cancelled=on_cancelled,
        )
        self.consumers.add(consumer)
        consumer.queue.consumers.append(consumer)
        self.broker.wake(consumer.queue)
        return consumer

    def settle(self, tag: int, *, requeue: bool = False) -> None:
        """Acknowledge what *tag* names, or hand it back with *requeue*. A tag that is not held is ignored."""
        consumer, item = self.held.pop(tag, (None, None))
        if consumer is None or item is None:
            return
        consumer.unsettled -= 1
        if requeue:
            consumer.queue.give_back(item)
        else:
            consumer.queue.unsettled -= 1
        self.broker.wake(consumer.queue)

    def close(self) -> None:
        """End: everything unsettled goes back to its place. ``on_lost`` is not called. Safe to repeat."""
        if not self.is_open:
            return
        self.is_open = False
        self.broker.connections.remove(self)
        for consumer in list(self.consumers):
            consumer.cancel()
        for tag in list(self.held):
            self.settle(tag, requeue=True)
        for name in self.own_queues:
            self.broker.delete_queue(name)

    def _check_open(self) -> None:
        if not self.is_open:
            raise BrokerUnavailable("in-process broker: want an open connection, got a lost one")


class InProcessBroker:
    """Exchanges, queues and connections. Set *is_down* to refuse new connections."""

    def __init__(self) -> None:
        self.is_down = False
        self.is_blocked = False
        self.queues: dict[str, _Queue] = {}
        self.connections: list[Connection] = []
        self._exchanges: dict[str, str] = {}  # name -> kind
        self._bindings: dict[str, dict[str, list[str]]] = {}  # exchange -> routing key -> queues
        self._awake: dict[_Queue, None] = {}  # in the order they woke

    def connect(
        self,
        *,
        on_lost: Callable[[], None] = lambda: None,
        on_blocked: Callable[[bool], None] = lambda _: None,
    ) -> Connection:
        """Open a connection; *on_lost* is called when the broker drops it. Raises BrokerUnavailable while down."""
        if self.is_down:
            raise BrokerUnavailable("in-process broker: want it up, got it down")
        connection = Connection(broker=self, on_lost=on_lost, on_blocked=on_blocked)
        self.connections.append(connection)
        return connection

    def declare_exchange(self, name: str, kind: str) -> None:
        """Make a ``direct``, ``fanout`` or ``topic`` exchange. Declaring it again changes nothing."""
        if self._exchanges.setdefault(name, kind) != kind:
            raise QueueMismatch(f"exchange {name}: want {kind}, got {self._exchanges[name]}")
        self._bindings.setdefault(name, {})

    def declare_queue(self, name: str, arguments: Mapping[str, str | int]) -> None:
        """Make a queue. Declaring it again changes nothing, or raises QueueMismatch: other arguments."""
        queue = self.queues.setdefault(name, _Queue(name=name, arguments=dict(arguments)))
        if queue.arguments != dict(arguments):
            raise QueueMismatch(f"queue {name}: want arguments {dict(arguments)}, got {queue.arguments}")

    def bind(self, queue: str, exchange: str, routing_key: str) -> None:
        """Route *routing_key* to *queue*; a topic's key may end in ``#``. Raises KeyError for unknown names."""
        queues = self._bindings[exchange].setdefault(routing_key, [])
        if self.queues[queue].name not in queues:
            queues.append(queue)

    def unbind(self, queue: str, exchange: str, routing_key: str) -> None:
        """Undo ``bind``; nothing happens if there was none."""
        queues = self._bindings[exchange].get(routing_key, [])
        if queue in queues:
            queues.remove(queue)

    def delete_queue(self, name: str) -> None:
        """Delete a queue with all it holds and cancel its consumers; nothing happens if there is none."""
        queue = self.queues.pop(name, None)
        if queue is None:
            return
        for exchange, by_key in self._bindings.items():
            for routing_key in by_key:
                self.unbind(name, exchange, routing_key)
        for consumer in list(queue.consumers):
            consumer.cancel()
            consumer.on_cancelled()

    def publish(self, exchange: str, routing_key: str, message: Message) -> Routing:
        """Route *message*. Raises BrokerUnavailable: blocked, or there is no such exchange."""
        if self.is_blocked:
            raise BrokerUnavailable("in-process broker: want it to take messages, got it blocked")
        if exchange not in self._exchanges:
            raise BrokerUnavailable(f"exchange {exchange}: want it declared, got none")
        queues = [self.queues[name] for name in self._routes(exchange, routing_key)]
        if any(queue.rejects for queue in queues):
            return Routing.REJECTED
        for queue in queues:
            if queue.is_full:  # as RabbitMQ does by default: the oldest makes room
                heapq.heappop(queue.ready)
            heapq.heappush(queue.ready, _Item(next(queue.positions), routing_key, message))
            self.wake(queue)
        return Routing.QUEUED if queues else Routing.UNROUTABLE

    def counts(self) -> Mapping[str, QueueCount]:
        """What stands in each queue, by its name."""
        return {
            name: QueueCount(ready=len(queue.ready), unsettled=queue.unsettled, consumers=len(queue.consumers))
            for name, queue in self.queues.items()
        }

    def block(self, *, is_blocked: bool = True) -> None:
        """Behave as under an alarm, or end it: refuse publishes, and tell every connection."""
        self.is_blocked = is_blocked
        for connection in list(self.connections):
            connection.on_blocked(is_blocked)

    def drop_connections(self) -> None:
        """Lose every connection; each hears of it once its unsettled messages are back in their queues."""
        for connection in list(self.connections):
            connection.close()
            connection.on_lost()

    def wake(self, queue: _Queue) -> None:
        """Hand out from *queue* in the loop's next turn, never inside the caller's own call."""
        if not queue.ready or not queue.consumers:
            return
        if not self._awake:
            asyncio.get_running_loop().call_soon(self._hand_out)
        self._awake[queue] = None

    def _hand_out(self) -> None:
        awake, self._awake = self._awake, {}
        for queue in awake:
            queue.hand_out()

    def _routes(self, exchange: str, routing_key: str) -> Sequence[str]:
        by_key = self._bindings[exchange]
        if self._exchanges[exchange] == "direct":
            return by_key.get(routing_key, [])
        is_fanout = self._exchanges[exchange] == "fanout"
        matching = [queues for key, queues in by_key.items() if is_fanout or _matches(key, routing_key)]
        return list(dict.fromkeys(name for queues in matching for name in queues))


def _matches(pattern: str, routing_key: str) -> bool:
    """Whether a topic binding takes *routing_key*: it is the same, or begins with the words before a last ``#``."""
    stem = pattern.removesuffix("#")
    if stem == pattern:
        return pattern == routing_key
    return f"{routing_key}.".startswith(stem)
