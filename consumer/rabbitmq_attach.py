"""Attaching to queues on one connection, so that no queue's trouble is another's.

Many queues share a few channels, and a queue that cannot be attached takes its whole channel with it: one
that is missing makes the broker close it, one without a leader makes it hang. So every queue is asked for
first on a channel where nothing is lost: what does not answer waits apart, and what kills a channel in
spite of its answer is tried on a channel of its own.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from aiormq.channel import Channel
from aiormq.exceptions import ChannelAccessRefused, ChannelLockedResource, ChannelNotFoundEntity
from pamqp import commands

from consumer.rabbitmq_channel import Attachment, How, Listener, WireChannel
from consumer.rabbitmq_connection import Address, PlainConnection, close_channel, open_channel, within
from outbox.errors import BrokerUnavailable

# A queue that is well answers in milliseconds; one that is not must not keep the line behind it waiting.
_PROBE_S: Final = 0.5
# Of those that wait apart, how many are asked at a time; each may take its whole deadline.
_APART_AT_ONCE: Final = 16


class Verdict(Enum):
    """How a try ended."""

    ATTACHED = "attached"
    MISSING = "missing"
    REFUSED = "refused"
    SILENT = "silent"  # the question was not answered in time
    KILLED = "killed"  # the question was answered, yet the channel died of the attaching, or hung
    UNRESPONSIVE = "unresponsive"  # apart or alone, and still no answer within the deadline


@dataclass(slots=True, eq=False)
class _Line:
    """A shared channel, a channel to ask on, and what waits for them; one at a time."""

    waiting: asyncio.Queue[tuple[Attachment, bool]] = field(default_factory=asyncio.Queue)
    channel: WireChannel | None = None
    probe: Channel | None = None

    @property
    def load(self) -> int:
        return self.waiting.qsize() + (len(self.channel.attachments) if self.channel is not None else 0)


class Attacher:
    """Works on one connection until ``run`` is cancelled."""

    def __init__(
        self,
        connection: PlainConnection,
        address: Address,
        listener: Listener,
        *,
        report: Callable[[Attachment, Verdict], None],
        is_wanted: Callable[[Attachment], bool],
        shared_channels: int,
    ) -> None:
        """*report* is told every verdict, except of attachments that *is_wanted* no more when their turn comes."""
        self._connection = connection
        self._address = address
        self._listener = listener
        self._report = report
        self._is_wanted = is_wanted
        self._lines = [_Line() for _ in range(shared_channels)]
        # Extra consumers come and go under load, so they share no channel with the base ones.
        self._extra_line = _Line()
        self._few_apart = asyncio.Semaphore(_APART_AT_ONCE)
        self._apart: set[asyncio.Task[None]] = set()

    def put(self, attachment: Attachment) -> None:
        """Try *attachment*, now or when its turn comes."""
        if attachment.how is How.SHARED:
            self._put_in_line(attachment, is_answered=False)
            return
        task = asyncio.create_task(self._try_apart(attachment))
        self._apart.add(task)
        task.add_done_callback(self._apart.discard)

    def is_shared(self, channel: WireChannel) -> bool:
        """Whether *channel* is one of the shared ones."""
        return any(line.channel is channel for line in (*self._lines, self._extra_line))

    async def run(self) -> None:
        """Serve the lines, for ever."""
        try:
            async with asyncio.TaskGroup() as group:
                for line in (*self._lines, self._extra_line):
                    group.create_task(self._serve(line))
        finally:
            for task in list(self._apart):
                task.cancel()

    def _put_in_line(self, attachment: Attachment, *, is_answered: bool) -> None:
        line = self._extra_line if attachment.is_extra else min(self._lines, key=lambda each: each.load)
        line.waiting.put_nowait((attachment, is_answered))

    async def _serve(self, line: _Line) -> None:
        while True:
            attachment, is_answered = await line.waiting.get()
            if self._is_wanted(attachment):
                self._report(attachment, await self._try_shared(line, attachment, is_answered=is_answered))

    async def _try_shared(self, line: _Line, attachment: Attachment, *, is_answered: bool) -> Verdict:
        if not _can_be_named(attachment.queue):
            return Verdict.MISSING
        try:
            if not is_answered:
                if line.probe is None or line.probe.is_closed:
                    line.probe = await open_channel(self._connection, self._address)
                await _ask(line.probe, attachment.queue, _PROBE_S)
            if line.channel is None or not line.channel.is_open:
                line.channel = await self._open()
        except BrokerUnavailable as error:
            line.probe = None
            return _verdict(error, otherwise=Verdict.SILENT)
        return await self._consume(line.channel, attachment, otherwise=Verdict.KILLED)

    async def _try_apart(self, attachment: Attachment) -> None:
        async with self._few_apart:
            if not self._is_wanted(attachment):
                return
            if attachment.how is How.ALONE:
                self._report(attachment, await self._try_alone(attachment))
                return
            verdict = await self._ask_apart(attachment)
            if verdict is Verdict.ATTACHED:
                self._put_in_line(attachment, is_answered=True)
            else:
                self._report(attachment, verdict)

    async def _ask_apart(self, attachment: Attachment) -> Verdict:
        """ATTACHED here says that the queue has answered."""
        try:
            probe = await open_channel(self._connection, self._address)
            await _ask(probe, attachment.queue, self._address.rpc_timeout_s)
            await close_channel(probe)
        except BrokerUnavailable as error:
            return _verdict(error, otherwise=Verdict.UNRESPONSIVE)
        return Verdict.ATTACHED

    async def _try_alone(self, attachment: Attachment) -> Verdict:
        try:
            channel = await self._open()
        except BrokerUnavailable:
            return Verdict.UNRESPONSIVE
        return await self._consume(channel, attachment, otherwise=Verdict.UNRESPONSIVE)

    async def _consume(self, channel: WireChannel, attachment: Attachment, *, otherwise: Verdict) -> Verdict:
        try:
            await channel.attach(attachment)
        except BrokerUnavailable as error:
            return _verdict(error, otherwise=otherwise)
        return Verdict.ATTACHED

    async def _open(self) -> WireChannel:
        channel = await WireChannel.opened(self._connection, self._address, self._listener)
        self._listener.opened(channel)
        return channel


def _can_be_named(queue: str) -> bool:
    try:
        return bool(commands.Queue.Declare(queue=queue).marshal())
    except (ValueError, TypeError):  # characters that the client refuses, or more than 255 bytes
        return False


async def _ask(probe: Channel, queue: str, deadline_s: float) -> None:
    """Ask whether *queue* is there. Raises BrokerUnavailable, and *probe* is dead then."""
    await within(probe.rpc(commands.Queue.Declare(queue=queue, passive=True)), deadline_s, f"ask for {queue}")


def _verdict(error: BrokerUnavailable, *, otherwise: Verdict) -> Verdict:
    match error.__cause__:
        case ChannelNotFoundEntity():
            return Verdict.MISSING
        case ChannelAccessRefused() | ChannelLockedResource():
            return Verdict.REFUSED
        case _:
            return otherwise
