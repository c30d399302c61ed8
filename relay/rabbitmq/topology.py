"""What the relay declares on RabbitMQ, and what it tells of it: lanes, directories, roll calls.

It works on channels of the client's own beside the publishing channel, since a refused declaration
closes the channel it came by. Each declaring worker has one, so a refused lane disturbs no other.
"""

import asyncio
import re
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Final

from aiormq import Connection
from aiormq.abc import AbstractChannel, DeliveredMessage
from aiormq.exceptions import AMQPChannelError, ChannelAccessRefused, ChannelLockedResource, DeliveryError
from pamqp.commands import Basic

from outbox.errors import BrokerUnavailable, ConfigError
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
from relay.announcement import announcement_message
from relay.ports import Announcement, Category, LaneFault
from relay.rabbitmq.channel import translated, words

_WORKERS: Final = 8
_ANNOUNCED_AT_ONCE: Final = 100
_INEQUIVALENT: Final = re.compile(r"inequivalent arg '([^']+)' for .*: received (.+) but current is (.+)", re.DOTALL)
_VALUE: Final = re.compile(r"(?:the value )?'(.*?)'(?: of type '\w+')?", re.DOTALL)
_FORBIDDEN: Final = (ChannelAccessRefused, ChannelLockedResource)
_NO_ANSWER: Final = "the broker did not answer in time"


class RabbitTopology:
    """Declares on one connection at a time: ``attach`` names it."""

    def __init__(self, *, queue_kind: QueueKind, timeout_s: float, is_blocked: Callable[[], bool]) -> None:
        """Args:
        timeout_s: how long the broker may take for one queue.
        is_blocked: whether the broker reads nothing of the connection now, so that silence is nobody's fault.
        """
        self._queue_kind = queue_kind
        self._timeout_s = timeout_s
        self._is_blocked = is_blocked
        self._connection: Connection | None = None
        self._groups: set[str] = set()
        self._called: set[str] = set()

    async def attach(self, connection: Connection) -> None:
        """Declare the exchanges on *connection* and listen for roll calls. Raises what aiormq raises."""
        self._connection = connection
        self._groups.clear()
        channel = await connection.channel(publisher_confirms=False)
        for name, kind in EXCHANGES.items():
            await channel.exchange_declare(name, exchange_type=kind, durable=True)
        declared = await channel.queue_declare(exclusive=True, auto_delete=True)
        await channel.queue_bind(declared.queue or "", ROLL_CALL_EXCHANGE)
        await channel.basic_consume(declared.queue or "", self._hear, no_ack=True)

    async def declare(self, lanes: Sequence[Lane]) -> Sequence[LaneFault]:
        """See ``relay.ports.LaneTopology``. A lane that gets no answer in time is a fault of its own."""
        refusals: dict[str, _Refusal] = {}
        groups = {lane.group for lane in lanes} - self._groups
        await _all(self._prepare_group(group, refusals) for group in groups)
        faults = [refusals[lane.group].of(lane) for lane in lanes if lane.group in refusals]
        waiting = deque(lane for lane in lanes if lane.group not in refusals)
        await _all(self._work(waiting, faults) for _ in range(min(_WORKERS, len(waiting))))
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

    async def _hear(self, message: DeliveredMessage) -> None:
        try:
            self._called.add(check_group(message.routing_key or ""))
        except ConfigError:
            return  # nobody of ours calls so

    async def _prepare_group(self, group: str, refusals: dict[str, "_Refusal"]) -> None:
        """Make sure of the two queues that every lane of *group* needs before it."""
        refusal: _Refusal | None = None
        async with self._channel() as channel:
            for queue in group_queues(group, self._queue_kind):
                if refusal is None:
                    refusal = await self._queue(channel, queue.name, queue.arguments, queue.exchange, queue.routing_key)
        if refusal is None:
            self._groups.add(group)
        else:
            refusals[group] = refusal

    async def _work(self, waiting: deque[Lane], faults: list[LaneFault]) -> None:
        """Declare lanes of *waiting* until none is left, on another channel after each fault."""
        arguments = lane_arguments(self._queue_kind)
        while waiting:
            async with self._channel() as channel:
                refusal = None
                while waiting and refusal is None:
                    lane = waiting.popleft()
                    refusal = await self._queue(channel, lane.queue, arguments, EVENTS_EXCHANGE, lane.routing_key)
                    if refusal is not None:
                        faults.append(refusal.of(lane))
            if sum(fault.reason.endswith(_NO_ANSWER) for fault in faults) >= _WORKERS:
                # Each worker's share of waiting: a broker that answers none would be asked for hours.
                faults += [_Refusal(category=Category.UNROUTABLE, reason=_NO_ANSWER).of(lane) for lane in waiting]
                waiting.clear()

    async def _queue(
        self, channel: AbstractChannel, name: str, arguments: Mapping[str, str | int], exchange: str, routing_key: str
    ) -> "_Refusal | None":
        """Declare and bind one queue; what the broker refuses is returned, and *channel* is of no more use."""
        with translated(f"queue {name}"):
            try:
                await channel.queue_declare(name, durable=True, arguments=dict(arguments), timeout=self._timeout_s)
                await channel.queue_bind(name, exchange, routing_key, timeout=self._timeout_s)
            except (AMQPChannelError, TimeoutError) as error:
                is_lost = self._connection is None or self._connection.is_closed
                if is_lost or (isinstance(error, TimeoutError) and self._is_blocked()):
                    raise
                category, reason = _explain(error, self._queue_kind)
                return _Refusal(category=category, reason=f"queue {name}: {reason}")
        return None

    async def _announce(self, channel: AbstractChannel, one: Announcement, faults: list[LaneFault]) -> None:
        message = announcement_message(one)
        properties = Basic.Properties(
            content_type=message.content_type,
            delivery_mode=2,
            message_id=message.message_id,
            message_type=message.type,
            app_id=message.app_id,
        )
        with translated("announcing a lane"):
            try:
                await channel.basic_publish(
                    message.body,
                    exchange=DIRECTORY_EXCHANGE,
                    routing_key=one.lane.group,
                    properties=properties,
                    mandatory=True,
                    timeout=self._timeout_s,
                )
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
            channel = await self._connection.channel(publisher_confirms=confirms, timeout=self._timeout_s)
        try:
            yield channel
        finally:
            # What it was for is settled by now; a lost connection is told by whoever uses it next.
            with suppress(BrokerUnavailable), translated("closing a channel"):
                async with asyncio.timeout(self._timeout_s):
                    await channel.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Refusal:
    category: Category
    reason: str

    def of(self, lane: Lane) -> LaneFault:
        return LaneFault(lane=lane, category=self.category, reason=self.reason)


def _explain(error: BaseException, kind: QueueKind) -> tuple[Category, str]:
    said = words(error)
    if isinstance(error, _FORBIDDEN):
        return Category.FORBIDDEN, said
    if isinstance(error, TimeoutError):
        return Category.UNROUTABLE, _NO_ANSWER
    unequal = _INEQUIVALENT.search(said)
    if unequal is None:
        return Category.UNROUTABLE, said
    argument, ours, theirs = unequal.groups()
    ours, theirs = (_value(described) for described in (ours, theirs))
    # The broker names one argument only; of another kind of queue it may be any of them.
    return Category.MISMATCH, f"want {argument} {ours}, as our {kind} queues have, the broker has it with {theirs}"


def _value(described: str) -> str:
    value = _VALUE.fullmatch(described)
    return value.group(1) if value else described


async def _all(works: Iterable[Awaitable[None]]) -> None:
    """Run all to their end, then raise the first error of any."""
    for ended in await asyncio.gather(*works, return_exceptions=True):
        if isinstance(ended, BaseException):
            raise ended
