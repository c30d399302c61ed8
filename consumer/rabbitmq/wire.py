"""What runs in the wire thread: the consuming connection, kept open for ever, and everything attached to it.

It keeps what is wanted and lives with what happens: a lost connection is opened again, a lost channel's
queues are attached again, a queue that is gone is given up. The engine's side posts commands and hears
events; neither side ever waits for the other.
"""

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import structlog
from tenacity import AsyncRetrying, wait_random_exponential

from consumer.ports import LostBecause
from consumer.rabbitmq.attach import Attacher, Verdict
from consumer.rabbitmq.channel import Attachment, How, Listener, WireChannel
from consumer.rabbitmq.connection import Address, PlainConnection, close, connect, write, written
from consumer.threaded.talk import Attach, ChannelLost, Command, Connected, Detach, Event, QueueLost, Settle, Stop
from consumer.threaded.thread import Mailbox
from outbox.errors import BrokerUnavailable

_log: Final = structlog.get_logger(__name__)
_RECONNECT_MAX_S: Final = 3.0
# A connection that lived shorter counts as a failed attempt, so that one which dies at once is not opened in a hurry.
_STABLE_S: Final = 5.0
_AGAIN_S: Final = (0.05, 0.25)
_UNRESPONSIVE_AGAIN_S: Final = (2.0, 4.0)


class Wire:
    """The connection and its wishes. Everything but *commands* is used on the wire thread's loop alone."""

    def __init__(self, address: Address, *, shared_channels: int, tell: Callable[[Sequence[Event]], None]) -> None:
        """*tell* is given what happened, in order, some at a time; it returns at once."""
        self.commands: Mailbox[Command] = Mailbox(self._obey)
        self._address = address
        self._shared_channels = shared_channels
        self._tell_all = tell
        self._events: list[Event] = []
        self._wanted: dict[tuple[str, bool], Attachment] = {}  # by queue and whether it is the extra one
        self._told_unresponsive: set[str] = set()
        self._channels: dict[int, WireChannel] = {}  # by epoch, the open ones
        self._connection: PlainConnection | None = None
        self._attacher: Attacher | None = None
        self._stopping = asyncio.Event()
        self._listener = Listener(
            opened=self._on_opened,
            delivered=self._tell,
            cancelled=self._on_cancelled,
            emptied=self._on_emptied,
            died=self._on_died,
        )

    async def run(self) -> None:
        """Stay connected until told to stop; then write what was settled and close."""
        self.commands.open(asyncio.get_running_loop())
        staying = asyncio.create_task(self._stay_connected())
        stopping = asyncio.create_task(self._stopping.wait())
        await asyncio.wait({staying, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if self._connection is not None:
            await self._close(self._connection)
        for task in (staying, stopping):
            task.cancel()
        await asyncio.gather(staying, stopping, return_exceptions=True)
        if not self._stopping.is_set():
            staying.result()  # raises what it failed of

    # Commands.

    def _obey(self, commands: Sequence[Command]) -> None:
        settled: dict[tuple[int, bool], list[int]] = {}
        for command in commands:
            match command:
                case Settle():
                    for receipt in command.receipts:
                        settled.setdefault((receipt.epoch, command.requeue), []).append(receipt.tag)
                case Attach():
                    self._attach(command)
                case Detach():
                    self._detach(command)
                case Stop():
                    self._stopping.set()
        self._settle(settled)

    def _settle(self, settled: Mapping[tuple[int, bool], Sequence[int]]) -> None:
        frames = []
        for (epoch, requeue), tags in settled.items():
            channel = self._channels.get(epoch)
            if channel is not None:  # else it is gone, and the broker has handed these out again
                frames.append(channel.settle(tags, requeue=requeue))
        if self._connection is not None and any(frames):
            write(self._connection, b"".join(frames))

    def _attach(self, command: Attach) -> None:
        if (command.queue, command.is_extra) not in self._wanted:
            self._begin(Attachment(queue=command.queue, prefetch=command.prefetch, is_extra=command.is_extra))

    def _detach(self, command: Detach) -> None:
        attachment = self._wanted.pop((command.queue, command.is_extra), None)
        if not command.is_extra:
            self._told_unresponsive.discard(command.queue)
        if attachment is not None and attachment.channel is not None:
            self._cancel(attachment.channel, attachment)

    def _cancel(self, channel: WireChannel, attachment: Attachment) -> None:
        channel.cancel(attachment)

        def die_if_unanswered() -> None:
            if attachment.tag in channel.attachments:
                channel.die()

        asyncio.get_running_loop().call_later(self._address.rpc_timeout_s, die_if_unanswered)

    # What is wanted, and how each try went.

    def _begin(self, attachment: Attachment) -> None:
        self._wanted[attachment.queue, attachment.is_extra] = attachment
        if self._attacher is not None:
            self._attacher.put(attachment)

    def _begin_again(self, attachments: Sequence[Attachment], *, within_s: tuple[float, float]) -> None:
        """Try anew, a little later; those that are detached by then stay so."""

        def begin() -> None:
            for each in attachments:
                if self._is_wanted(each):
                    self._begin(_anew(each, how=each.how))

        asyncio.get_running_loop().call_later(random.uniform(*within_s), begin)  # noqa: S311 (jitter, no secret)

    def _is_wanted(self, attachment: Attachment) -> bool:
        return self._wanted.get((attachment.queue, attachment.is_extra)) is attachment

    def _report(self, attachment: Attachment, verdict: Verdict) -> None:
        if self._is_wanted(attachment):
            self._judge(attachment, verdict)
        elif attachment.channel is not None:
            self._cancel(attachment.channel, attachment)  # detached while it was being attached

    def _judge(self, attachment: Attachment, verdict: Verdict) -> None:
        match verdict:
            case Verdict.ATTACHED:
                self._told_unresponsive.discard(attachment.queue)
            case Verdict.MISSING:
                self._lose(attachment.queue, LostBecause.MISSING, extra=(False, True))
            case Verdict.REFUSED:
                self._lose(attachment.queue, LostBecause.REFUSED, extra=(attachment.is_extra,))
            case Verdict.PROMPT:
                self._begin(_anew(attachment, how=How.SHARED))
            case Verdict.SLOW:
                self._begin(_anew(attachment, how=How.APART))
            case Verdict.KILLED:
                self._begin(_anew(attachment, how=How.ALONE))
            case Verdict.UNRESPONSIVE:
                self._tell_unresponsive(attachment)
                self._begin_again([attachment], within_s=_UNRESPONSIVE_AGAIN_S)

    def _lose(self, queue: str, because: LostBecause, *, extra: Sequence[bool]) -> None:
        for is_extra in extra:
            self._wanted.pop((queue, is_extra), None)
        self._told_unresponsive.discard(queue)
        if False in extra:
            self._tell(QueueLost(queue=queue, because=because))
        else:
            _log.warning("extra consumer refused", queue=queue, because=because.value)

    def _tell_unresponsive(self, attachment: Attachment) -> None:
        if not attachment.is_extra and attachment.queue not in self._told_unresponsive:
            self._told_unresponsive.add(attachment.queue)
            self._tell(QueueLost(queue=attachment.queue, because=LostBecause.UNRESPONSIVE))

    # What happens to channels.

    def _on_opened(self, channel: WireChannel) -> None:
        self._channels[channel.epoch] = channel

    def _on_cancelled(self, attachment: Attachment) -> None:
        _log.warning("consumer cancelled by the broker", queue=attachment.queue)
        self._begin_again([attachment], within_s=_AGAIN_S)

    def _on_emptied(self, channel: WireChannel) -> None:
        if self._attacher is None or not self._attacher.is_shared(channel):
            channel.die()

    def _on_died(self, channel: WireChannel) -> None:
        self._channels.pop(channel.epoch, None)
        if channel.has_delivered:
            self._tell(ChannelLost(epoch=channel.epoch))
        # What was being attached has no channel yet; its verdict says how it goes on.
        lost = [each for each in channel.attachments.values() if each.channel is channel and self._is_wanted(each)]
        if lost and self._attacher is not None:
            _log.warning("channel lost", queues=len(lost))
            self._begin_again(lost, within_s=_AGAIN_S)

    # The connection.

    async def _stay_connected(self) -> None:
        while not self._stopping.is_set():
            # Whatever it failed of, the client's fault or ours: nobody else would ever connect again.
            attempts = AsyncRetrying(wait=wait_random_exponential(multiplier=0.1, max=_RECONNECT_MAX_S))
            await attempts(self._connect_and_serve)

    async def _connect_and_serve(self) -> None:
        """Return when a connection that lived long has ended. Raises BrokerUnavailable: it did not, or not long."""
        try:
            connection = await connect(self._address)
        except BrokerUnavailable as error:
            _log.warning("broker not reached", reason=str(error))
            raise
        except Exception as error:
            _log.error("connecting failed", exc_info=error)
            raise
        began = asyncio.get_running_loop().time()
        try:
            await self._serve(connection)
        finally:
            await close(connection)
        if asyncio.get_running_loop().time() - began < _STABLE_S:
            raise BrokerUnavailable("connection: want it to last, got it closed at once")

    async def _serve(self, connection: PlainConnection) -> None:
        attacher = Attacher(
            connection,
            self._address,
            self._listener,
            report=self._report,
            is_wanted=self._is_wanted,
            shared_channels=self._shared_channels,
        )
        self._connection, self._attacher = connection, attacher
        self._tell(Connected(is_connected=True))
        for each in list(self._wanted.values()):
            self._begin(_anew(each, how=How.SHARED))
        working = asyncio.create_task(attacher.run())
        try:
            await asyncio.wait({working, connection.closing}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._connection = self._attacher = None
            working.cancel()
            (ended,) = await asyncio.gather(working, return_exceptions=True)
            if isinstance(ended, Exception):
                _log.error("attaching failed", exc_info=ended)
            for channel in list(self._channels.values()):
                channel.die()
            self._tell(Connected(is_connected=False))

    async def _close(self, connection: PlainConnection) -> None:
        try:
            await written(connection, self._address.rpc_timeout_s)
        except BrokerUnavailable as error:
            _log.warning("last settlements not written", reason=str(error))
        await close(connection)

    # Events.

    def _tell(self, event: Event) -> None:
        if not self._events:
            # aiormq reads all that has arrived in one go; this runs after it, so one wake-up carries it all.
            asyncio.get_running_loop().call_soon(self._flush)
        self._events.append(event)

    def _flush(self) -> None:
        events, self._events = self._events, []
        self._tell_all(events)


def _anew(attachment: Attachment, *, how: How) -> Attachment:
    return Attachment(queue=attachment.queue, prefetch=attachment.prefetch, is_extra=attachment.is_extra, how=how)
