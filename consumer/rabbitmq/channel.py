"""One opened channel of the consuming connection: what is attached to it, what it delivered, and settling that.

aiormq would hand every delivery through three queues, a task and two future stores. Here a channel's frames
are looked at where aiormq puts them: deliveries are assembled on the spot, what belongs to a call of ours
goes on to aiormq. All of it runs on the wire thread's loop.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from itertools import count
from typing import Final

from aiormq.channel import Channel
from pamqp import commands
from pamqp.body import ContentBody
from pamqp.frame import marshal
from pamqp.header import ContentHeader

from consumer.ports import Delivery, Receipt
from consumer.rabbitmq.connection import Address, PlainConnection, close_channel, open_channel, within, write
from consumer.rabbitmq.frames import settle_frames
from consumer.rabbitmq.reading import Delivered, Frame
from outbox.errors import BrokerUnavailable
from outbox.wire import Message

_EPOCHS: Final = count(1)
_TAGS: Final = count(1)

_CLOSING: Final = (commands.Channel.Close, commands.Channel.CloseOk)


class How(Enum):
    """How an attachment is tried."""

    SHARED = "shared"  # in line, on a shared channel
    APART = "apart"  # it was slow to answer: asked again apart, and if still slow attached on a channel of its own
    ALONE = "alone"  # it killed a channel: attached on one of its own


@dataclass(slots=True, eq=False, kw_only=True)
class Attachment:
    """One try to consume from a queue.

    *tag* is never used twice: up to 3.10.8 a quorum queue that sees a tag again on a channel, while
    deliveries of its former user are under way, crashes the channel (rabbitmq/rabbitmq-server#5927).
    """

    queue: str
    prefetch: int
    is_extra: bool
    how: How = How.SHARED
    tag: str = field(default_factory=lambda: f"fairpost-{next(_TAGS)}")
    channel: "WireChannel | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """Who is told what happens to a channel. Each is called on the wire thread's loop and returns at once."""

    opened: Callable[["WireChannel"], None]
    delivered: Callable[[Delivery], None]
    cancelled: Callable[[Attachment], None]  # by the broker
    emptied: Callable[["WireChannel"], None]  # the last attachment and the last unsettled delivery are gone
    died: Callable[["WireChannel"], None]  # once


class WireChannel:
    """An open channel. *epoch* is its own within the process."""

    def __init__(self, connection: PlainConnection, amqp: Channel, listener: Listener, rpc_s: float) -> None:
        self.epoch = next(_EPOCHS)
        self.is_open = True
        self.has_delivered = False
        self.attachments: dict[str, Attachment] = {}
        self._unsettled: dict[int, None] = {}  # delivery tags, ascending: the order they came in
        self._connection = connection
        self._amqp = amqp
        self._listener = listener
        self._rpc_s = rpc_s
        self._prefetch = 0
        self._closing: asyncio.Task[None] | None = None
        _Intake(self, amqp)
        amqp.closing.add_done_callback(lambda _: self.die())

    @classmethod
    async def opened(cls, connection: PlainConnection, address: Address, listener: Listener) -> "WireChannel":
        """A new channel. Raises BrokerUnavailable."""
        amqp = await open_channel(connection, address)
        return cls(connection, amqp, listener, address.rpc_timeout_s)

    async def attach(self, attachment: Attachment) -> None:
        """Consume; one call at a time. Raises BrokerUnavailable, and the channel is dead then."""
        try:
            if attachment.prefetch != self._prefetch:
                # The prefetch in force when a consumer begins is the consumer's own; a later one does not move it.
                await self._ask(commands.Basic.Qos(prefetch_count=attachment.prefetch, global_=False))
                self._prefetch = attachment.prefetch
            # Before the call: deliveries may come ahead of its answer.
            self.attachments[attachment.tag] = attachment
            await self._ask(commands.Basic.Consume(queue=attachment.queue, consumer_tag=attachment.tag))
            attachment.channel = self
        except BaseException:
            self.attachments.pop(attachment.tag, None)
            self.die()
            raise

    def cancel(self, attachment: Attachment) -> None:
        """Ask the broker to deliver no more to *attachment*; it is gone from ``attachments`` once it has answered.

        Never before ``attach`` has returned: a quorum queue of RabbitMQ 3.10 that is cancelled before it has
        answered the consume crashes the channel, and with it the connection.
        """
        if self.is_open:
            self._write(marshal(commands.Basic.Cancel(consumer_tag=attachment.tag), self._amqp.number))

    def settle(self, tags: Iterable[int], *, requeue: bool) -> bytes:
        """The frames that settle *tags*, in ascending order; those that are not unsettled here are left out."""
        if not self.is_open:
            return b""
        held = sorted({tag for tag in tags if tag in self._unsettled})
        frames = settle_frames(held, unsettled=self._unsettled, channel=self._amqp.number, requeue=requeue)
        for tag in held:
            del self._unsettled[tag]
        if held and not self._unsettled and not self.attachments:
            self._listener.emptied(self)
        return frames

    def die(self, *, is_closed_by_broker: bool = False) -> None:
        """Count as closed from now on, and close if it is not. Safe to repeat."""
        if not self.is_open:
            return
        self.is_open = False
        if not is_closed_by_broker and not self._amqp.is_closed:
            self._closing = asyncio.create_task(close_channel(self._amqp))
        self._listener.died(self)

    # What the intake tells.

    def delivered(self, delivered: Delivered) -> None:
        """A whole delivery has arrived."""
        attachment = self.attachments.get(delivered.consumer_tag)
        tag = delivered.delivery_tag
        if not self.is_open:
            return  # the broker hands it out again
        if attachment is None:
            # Of a consumer that was cancelled. It goes back: nobody would settle it, and a later acknowledgement of
            # everything before it would speak for it too.
            self._write(settle_frames([tag], unsettled=(), channel=self._amqp.number, requeue=True))
            return
        self._unsettled[tag] = None
        self.has_delivered = True
        self._listener.delivered(
            Delivery(
                queue=attachment.queue,
                receipt=Receipt(epoch=self.epoch, tag=tag),
                message=delivered.message,
                routing_key=delivered.routing_key,
                is_redelivered=delivered.is_redelivered,
            )
        )

    def cancelled(self, tag: str | None) -> None:
        """The broker has cancelled a consumer by itself."""
        # RabbitMQ 4.3.0 to 4.3.6 hear no answer and keep a consumer that a quorum queue has timed out, until it is
        # cancelled from here too; all others know nothing of it any more, and say that it is cancelled.
        answer = commands.Basic.CancelOk if self._connection.accept_consumer_cancel_ok else commands.Basic.Cancel
        self._write(marshal(answer(consumer_tag=tag or ""), self._amqp.number))
        attachment = self.attachments.pop(tag or "", None)
        if attachment is not None:
            self._listener.cancelled(attachment)

    def cancel_answered(self, tag: str | None) -> None:
        """The broker has done what ``cancel`` asked."""
        if self.attachments.pop(tag or "", None) is not None and not self.attachments and not self._unsettled:
            self._listener.emptied(self)

    async def _ask(self, frame: commands.Basic.Qos | commands.Basic.Consume) -> None:
        await within(self._amqp.rpc(frame), self._rpc_s, frame.name)
        if not self.is_open:
            raise BrokerUnavailable(f"{frame.name}: want an open channel, got it closed")

    def _write(self, frames: bytes) -> None:
        write(self._connection, frames)


class _Intake:
    """Stands where aiormq keeps a channel's incoming frames: takes what is ours, passes on the rest."""

    def __init__(self, channel: WireChannel, amqp: Channel) -> None:
        self._channel = channel
        self._frames = amqp.frames
        self._deliver: commands.Basic.Deliver | None = None
        self._header: ContentHeader | None = None
        self._parts: list[bytes] = []
        self._missing_bytes = 0
        self.get = self._frames.get
        self.task_done = self._frames.task_done
        amqp.frames = self  # type: ignore[assignment]  # aiormq calls put, get and task_done, and nothing else

    async def put(self, item: tuple[int, Frame]) -> None:
        """Take one frame, or a whole delivery; aiormq's reader calls this."""
        # Late answers to a channel that is dead would fill a queue that nobody empties, and stop the connection.
        if not self._takes(item[1]) and (self._channel.is_open or isinstance(item[1], _CLOSING)):
            await self._frames.put(item)

    def _takes(self, frame: Frame) -> bool:
        match frame:
            case Delivered():
                self._channel.delivered(frame)
            case commands.Basic.Deliver():
                self._deliver = frame
            case ContentHeader():
                self._begin(frame)
            case ContentBody():
                self._go_on(frame)
            case commands.Basic.Cancel():
                self._channel.cancelled(frame.consumer_tag)
            case commands.Basic.CancelOk():
                self._channel.cancel_answered(frame.consumer_tag)
            case commands.Channel.Close():
                self._channel.die(is_closed_by_broker=True)
                return False
            case _:
                return False
        return True

    def _begin(self, header: ContentHeader) -> None:
        self._header = header
        self._missing_bytes = header.body_size or 0
        self._parts.clear()
        self._end_if_whole()

    def _go_on(self, body: ContentBody) -> None:
        self._parts.append(body.value)
        self._missing_bytes -= len(body.value)
        self._end_if_whole()

    def _end_if_whole(self) -> None:
        if self._missing_bytes <= 0 and self._deliver is not None and self._header is not None:
            self._channel.delivered(_delivered(self._deliver, self._header, b"".join(self._parts)))
            self._deliver = self._header = None


def _delivered(deliver: commands.Basic.Deliver, header: ContentHeader, body: bytes) -> Delivered:
    properties = header.properties
    return Delivered(
        consumer_tag=deliver.consumer_tag or "",
        delivery_tag=deliver.delivery_tag or 0,
        is_redelivered=bool(deliver.redelivered),
        routing_key=deliver.routing_key or "",
        message=Message(
            message_id=properties.message_id or "",
            type=properties.message_type or "",
            app_id=properties.app_id or "",
            content_type=properties.content_type or "",
            headers=properties.headers or {},
            body=body,
        ),
    )
