"""What the relay declares on RabbitMQ, and what it tells of it: lanes, directories, roll calls.

It works on channels of the client's own beside the publishing channel, since a refused declaration
closes the channel it came by. Each declaring worker has one, so a refused lane disturbs no other.

Declaring a lane is also how to learn that it may be published to: the first publish of a channel to a quorum
queue waits for the queue's leader, for more than a minute if there is none, and everything behind it waits too.
"""

import asyncio
import re
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Final

from aiormq import Connection
from aiormq.abc import AbstractChannel, DeliveredMessage
from aiormq.exceptions import AMQPChannelError, ChannelAccessRefused, ChannelLockedResource, DeliveryError

from outbox.errors import BrokerUnavailable, ConfigError
from outbox.naming import Lane, check_group
from outbox.shell.amqp import words
from outbox.topology import (
    DIRECTORY_EXCHANGE,
    EVENTS_EXCHANGE,
    EXCHANGES,
    ROLL_CALL_EXCHANGE,
    BoundQueue,
    QueueKind,
    directory_queue,
    group_queues,
    lane_arguments,
)
from relay.announcement import announcement_message
from relay.ports import Announcement, Category, LaneFault
from relay.rabbitmq.client import properties_of, translated

_WORKERS: Final = 8
_ANNOUNCED_AT_ONCE: Final = 100
_INEQUIVALENT: Final = re.compile(r"inequivalent arg '([^']+)' for .*: received (.+) but current is (.+)", re.DOTALL)
_VALUE: Final = re.compile(r"(?:the value )?'(.*?)'(?: of type '\w+')?", re.DOTALL)
_FORBIDDEN: Final = (ChannelAccessRefused, ChannelLockedResource)
_NO_ANSWER: Final = "the broker did not answer in time"
# Of a quorum queue without a leader the broker itself says, after waiting 250 ms for the leader, that all is
# well: only the time it took tells.
_LEADER_S: Final = 0.2


class RabbitTopology:
    """Declares on one connection at a time: ``attach`` names it."""

    def __init__(self, *, queue_kind: QueueKind, timeout_s: float, is_blocked: Callable[[], bool]) -> None:
        """Args:
        timeout_s: how long the broker may take for a call that concerns no lane.
        is_blocked: whether the broker reads nothing of the connection now, so that silence is nobody's fault.
        """
        self._queue_kind = queue_kind
        self._timeout_s = timeout_s
        self._is_blocked = is_blocked
        self._connection: Connection | None = None
        self._groups: set[str] = set()
        self._called: set[str] = set()
        self._hanging: dict[str, AbstractChannel] = {}  # queues whose answer is still awaited, and by which channel
        self._asked: set[str] = set()  # queues that the connection was asked for, and has not answered
        self._blamed: dict[str, str] = {}  # queues over which the broker closed it, with its words

    async def attach(self, connection: Connection) -> None:
        """Declare the exchanges on *connection* and listen for roll calls. Raises what aiormq raises."""
        self._connection = connection
        self._groups.clear()
        self._hanging.clear()
        self._asked.clear()
        channel = await connection.channel(publisher_confirms=False)
        for name, kind in EXCHANGES.items():
            await channel.exchange_declare(name, exchange_type=kind, durable=True)
        declared = await channel.queue_declare(exclusive=True, auto_delete=True)
        await channel.queue_bind(declared.queue or "", ROLL_CALL_EXCHANGE)
        await channel.basic_consume(declared.queue or "", self._hear, no_ack=True)

    async def declare(self, lanes: Sequence[Lane], *, patience_s: float = 10.0) -> Sequence[LaneFault]:
        """See ``relay.ports.LaneTopology``. While the broker is blocked, silence is nobody's fault."""
        refusals: dict[str, _Refusal] = {}
        groups = {lane.group for lane in lanes} - self._groups
        await _all(self._prepare_group(group, refusals, patience_s) for group in groups)
        faults = [refusals[lane.group].of(lane) for lane in lanes if lane.group in refusals]
        waiting = deque(lane for lane in lanes if lane.group not in refusals)
        await _all(self._work(waiting, faults, patience_s) for _ in range(min(_WORKERS, len(waiting))))
        return faults

    async def announce(self, announcements: Sequence[Announcement]) -> Sequence[LaneFault]:
        """See ``relay.ports.LaneTopology``."""
        faults: list[LaneFault] = []
        if not announcements:
            return faults
        async with self._channel(confirms=True) as channel:
            for start in range(0, len(announcements), _ANNOUNCED_AT_ONCE):
                batch = announcements[start : start + _ANNOUNCED_AT_ONCE]
                await _all(self._announce(channel, each, faults) for each in batch)
        return faults

    def roll_calls(self) -> frozenset[str]:
        """See ``relay.ports.LaneTopology``."""
        called, self._called = frozenset(self._called), set()
        return called

    def blame(self, words: str) -> None:
        """The broker closed the connection with *words*: a queue of ours that they name is not asked for at once again.

        RabbitMQ 3.10 does so over a quorum queue of which remains are left (541, cluster_not_formed).
        """
        self._blamed |= {name: words for name in self._asked if f"'{name}'" in words}
        self._asked.clear()

    async def _hear(self, message: DeliveredMessage) -> None:
        try:
            self._called.add(check_group(message.routing_key or ""))
        except ConfigError:
            return  # nobody of ours calls so

    async def _prepare_group(self, group: str, refusals: dict[str, "_Refusal"], patience_s: float) -> None:
        """Make sure of the two queues that every lane of *group* needs before it; one that is silent holds no lane."""
        is_sure = True
        for queue in group_queues(group, self._queue_kind):
            async with self._channel() as channel:
                refusal = await self._queue(channel, queue, patience_s)
            if refusal is not None and not refusal.is_silent:
                refusals[group] = refusal
                return
            is_sure = is_sure and refusal is None
        if is_sure:
            self._groups.add(group)

    async def _work(self, waiting: deque[Lane], faults: list[LaneFault], patience_s: float) -> None:
        """Declare lanes of *waiting* until none is left, on another channel after each fault."""
        arguments = lane_arguments(self._queue_kind)
        while waiting:
            async with self._channel() as channel:
                refusal = None
                while waiting and refusal is None:
                    lane = waiting.popleft()
                    queue = BoundQueue(
                        name=lane.queue, arguments=arguments, exchange=EVENTS_EXCHANGE, routing_key=lane.routing_key
                    )
                    refusal = await self._queue(channel, queue, patience_s)
                    if refusal is not None:
                        faults.append(refusal.of(lane))
            if sum(fault.is_silent for fault in faults) >= _WORKERS:
                # Each worker's share of waiting: a broker that answers none would be asked for hours.
                faults += [_silent(lane.queue).of(lane) for lane in waiting]
                waiting.clear()

    async def _queue(self, channel: AbstractChannel, queue: BoundQueue, patience_s: float) -> "_Refusal | None":
        """Declare and bind one queue; if that fails it is told why, and *channel* is of no more use."""
        name = queue.name
        if (words_about_it := self._blamed.pop(name, None)) is not None:
            return _Refusal(category=Category.REFUSED, reason=f"queue {name}: {words_about_it}")
        self._asked.add(name)
        refusal = await self._declare(channel, queue, patience_s)
        self._asked.discard(name)
        return refusal

    async def _declare(self, channel: AbstractChannel, queue: BoundQueue, patience_s: float) -> "_Refusal | None":
        name = queue.name
        if (hanging := self._hanging.get(name)) is not None and not hanging.is_closed:
            # A channel for each time it is asked would run into the broker's limit.
            return _silent(name)
        with translated(f"queue {name}"):
            try:
                declaring = channel.queue_declare(name, durable=True, arguments=dict(queue.arguments))
                took_s = await self._within(declaring, patience_s)
                if took_s > _LEADER_S and not await self._has_leader(channel, name, patience_s):
                    return _silent(name)
                await self._within(channel.queue_bind(name, queue.exchange, queue.routing_key), patience_s)
            except (AMQPChannelError, TimeoutError) as error:
                if self._connection is None or self._connection.is_closed:
                    raise
                if isinstance(error, TimeoutError):
                    self._hanging[name] = channel
                    return _silent(name)
                category, reason = _explain(error, self._queue_kind)
                return _Refusal(category=category, reason=f"queue {name}: {reason}")
        return None

    async def _has_leader(self, channel: AbstractChannel, name: str, patience_s: float) -> bool:
        """Whether a queue that stands answers no later than an exchange does, which no leader is asked for."""
        usual_s = await self._within(channel.exchange_declare(EVENTS_EXCHANGE, passive=True), patience_s)
        took_s = await self._within(channel.queue_declare(name, passive=True), patience_s)
        return took_s < usual_s + _LEADER_S

    async def _within(self, call: Awaitable[object], patience_s: float) -> float:
        """Await *call*, for *patience_s* of time in which the broker is not blocked; return how long it took.

        Raises:
            TimeoutError: no answer came, and the channel is closed as soon as the broker gets to it.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        asking = asyncio.ensure_future(call)
        try:
            while not (await asyncio.wait((asking,), timeout=patience_s))[0]:
                if not self._is_blocked():
                    raise TimeoutError
        finally:
            if not asking.done():
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)
        asking.result()
        return loop.time() - began

    async def _announce(self, channel: AbstractChannel, one: Announcement, faults: list[LaneFault]) -> None:
        message = announcement_message(one)
        with translated("announcing a lane"):
            try:
                published = channel.basic_publish(
                    message.body,
                    exchange=DIRECTORY_EXCHANGE,
                    routing_key=one.lane.group,
                    properties=properties_of(message),
                    mandatory=True,
                )
                await self._within(published, self._timeout_s)
            except DeliveryError as error:
                # Returned or nacked: this group's directory is gone or full, the others' are not.
                self._groups.discard(one.lane.group)
                reason = f"queue {directory_queue(one.lane.group)}: took no announcement: {words(error)}"
                faults.append(LaneFault(lane=one.lane, category=Category.UNROUTABLE, reason=reason))

    @asynccontextmanager
    async def _channel(self, *, confirms: bool = False) -> AsyncIterator[AbstractChannel]:
        with translated("opening a channel"):
            if self._connection is None or self._connection.is_closed:
                raise BrokerUnavailable("RabbitMQ: want an open connection, got none")
            opening = asyncio.ensure_future(self._connection.channel(publisher_confirms=confirms))
            await self._within(opening, self._timeout_s)
            channel = opening.result()
        try:
            yield channel
        finally:
            await self._close(channel)

    async def _close(self, channel: AbstractChannel) -> None:
        if channel not in self._hanging.values():
            # What it was for is settled by now; a lost connection is told by whoever uses it next.
            with suppress(BrokerUnavailable), translated("closing a channel"):
                async with asyncio.timeout(self._timeout_s):
                    await channel.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Refusal:
    category: Category
    reason: str
    is_silent: bool = False

    def of(self, lane: Lane) -> LaneFault:
        return LaneFault(lane=lane, category=self.category, reason=self.reason, is_silent=self.is_silent)


def _silent(queue: str) -> _Refusal:
    return _Refusal(category=Category.UNROUTABLE, reason=f"queue {queue}: {_NO_ANSWER}", is_silent=True)


def _explain(error: BaseException, kind: QueueKind) -> tuple[Category, str]:
    said = words(error)
    if isinstance(error, _FORBIDDEN):
        return Category.FORBIDDEN, f"want permission to declare and bind it, got {said}"
    unequal = _INEQUIVALENT.search(said)
    if unequal is None:
        return Category.UNROUTABLE, said
    argument, ours, theirs = unequal.groups()
    ours, theirs = (_value(described) for described in (ours, theirs))
    # The broker names one argument only; of another kind of queue it may be any of them.
    return Category.MISMATCH, f"want {argument} {ours}, as our {kind} queues have, got one that exists with {theirs}"


def _value(described: str) -> str:
    value = _VALUE.fullmatch(described)
    return value.group(1) if value else described


async def _all(works: Iterable[Awaitable[None]]) -> None:
    """Run all to their end, then raise the first error of any."""
    for ended in await asyncio.gather(*works, return_exceptions=True):
        if isinstance(ended, BaseException):
            raise ended
