"""Attaching to queues on one connection, so that no queue's trouble is another's.

Many queues share a few channels, and a queue that cannot be attached takes its whole channel with it: one
that is missing makes the broker close it, one without a leader makes it hang. So every queue is asked for
first, on a channel where nothing can be lost. Only one that answers promptly is attached on a shared
channel; the others are asked again apart, and then attached each on a channel of its own.

What is left: a queue that begins to hang between its answer and its attaching. Its channel is given up at the
deadline and the other queues go to a new one, but the broker frees the old one's consumers, and up to a
prefetch of each of its queues, only when the hanging queue answers or fails (quorum: within 30 s).
"""

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from aiormq.channel import Channel
from aiormq.exceptions import ChannelAccessRefused, ChannelLockedResource, ChannelNotFoundEntity
from pamqp import commands

from consumer.rabbitmq.channel import Attachment, How, Listener, WireChannel
from consumer.rabbitmq.connection import Address, PlainConnection, close_channel, open_channel, within
from outbox.errors import BrokerUnavailable

# A queue that is well answers in milliseconds. For a quorum queue without a leader the broker itself answers,
# after waiting 250 ms for the leader, that the queue is there and empty: only the time it took tells.
_PROMPT_S: Final = 0.2
# Of those that wait apart, how many are asked at a time; each may take its whole deadline.
_APART_AT_ONCE: Final = 16
# A broker allows 2,047 channels on a connection; queues beyond these wait until they answer promptly.
_ALONE_MAX: Final = 256


class Verdict(Enum):
    """How a try ended."""

    ATTACHED = "attached"
    PROMPT = "prompt"  # asked apart, it answered as one that is well
    MISSING = "missing"
    REFUSED = "refused"
    SLOW = "slow"  # it did not answer promptly
    KILLED = "killed"  # it did, yet the channel died of the attaching, or hung
    UNRESPONSIVE = "unresponsive"  # apart or alone, and still no answer within the deadline


@dataclass(slots=True, eq=False)
class _Line:
    """A shared channel, a channel to ask on, and what waits for them; one at a time."""

    waiting: asyncio.Queue[Attachment] = field(default_factory=asyncio.Queue)
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
        self._alone: list[WireChannel] = []
        self._round_trip_s = math.inf  # what an answer takes that no queue is asked for

    def put(self, attachment: Attachment) -> None:
        """Try *attachment*, now or when its turn comes."""
        if attachment.how is How.SHARED:
            line = self._extra_line if attachment.is_extra else min(self._lines, key=lambda each: each.load)
            line.waiting.put_nowait(attachment)
            return
        task = asyncio.create_task(self._serve_apart(attachment))
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

    async def _serve(self, line: _Line) -> None:
        while True:
            attachment = await line.waiting.get()
            if self._is_wanted(attachment):
                self._report(attachment, await self._try_shared(line, attachment))

    async def _serve_apart(self, attachment: Attachment) -> None:
        async with self._few_apart:
            if self._is_wanted(attachment):
                self._report(attachment, await self._try_apart(attachment))

    async def _try_shared(self, line: _Line, attachment: Attachment) -> Verdict:
        if not _can_be_named(attachment.queue):
            return Verdict.MISSING
        try:
            if line.probe is None:
                line.probe = await self._open_probe()
            await _ask(line.probe, attachment.queue, self._prompt_s)
        except BrokerUnavailable as error:
            line.probe = None
            return _verdict(error, otherwise=Verdict.SLOW)
        try:
            if line.channel is None or not line.channel.is_open:
                line.channel = await self._open()
        except BrokerUnavailable:
            return Verdict.SLOW
        return await self._consume(line.channel, attachment, otherwise=Verdict.KILLED)

    async def _try_apart(self, attachment: Attachment) -> Verdict:
        try:
            if attachment.how is How.APART and await self._answers_promptly(attachment.queue):
                return Verdict.PROMPT
            self._alone = [channel for channel in self._alone if channel.is_open]
            if len(self._alone) >= _ALONE_MAX:
                return Verdict.UNRESPONSIVE
            channel = await self._open()
        except BrokerUnavailable as error:
            return _verdict(error, otherwise=Verdict.UNRESPONSIVE)
        self._alone.append(channel)
        return await self._consume(channel, attachment, otherwise=Verdict.UNRESPONSIVE)

    async def _answers_promptly(self, queue: str) -> bool:
        """Ask on a channel of its own. Raises BrokerUnavailable: it does not answer, or there is none."""
        probe = await self._open_probe()
        began = time.monotonic()
        await _ask(probe, queue, self._address.rpc_timeout_s)
        took_s = time.monotonic() - began
        await close_channel(probe)
        return took_s < self._prompt_s

    @property
    def _prompt_s(self) -> float:
        return _PROMPT_S + self._round_trip_s

    async def _open_probe(self) -> Channel:
        began = time.monotonic()
        probe = await open_channel(self._connection, self._address)
        self._round_trip_s = min(self._round_trip_s, time.monotonic() - began)
        return probe

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
