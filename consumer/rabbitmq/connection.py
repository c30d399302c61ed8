"""Connections to RabbitMQ as both consumer adapters open them: plain ones, with deadlines, one error for all.

What we lean on inside aiormq, held by tests/unit/consumer/test_rabbitmq_channel.py: the class attributes
below, ``Connection.write_queue``, ``Connection.channels``, and the reader that ``connect`` starts.
"""

import asyncio
import contextlib
from collections.abc import Awaitable
from dataclasses import dataclass
from itertools import count
from typing import Final, TypeVar, cast

import aiormq
from aiormq.abc import ChannelFrame
from aiormq.channel import Channel
from aiormq.connection import FrameReceiver
from yarl import URL

from consumer.rabbitmq.reading import FrameReader
from outbox.errors import BrokerUnavailable, ConfigError
from outbox.shell.amqp import Connection, broker_error

T = TypeVar("T")
_CLOSE_S: Final = 3.0
_CLOSE_CHANNEL_S: Final = 60.0
_CLIENT_ERRORS: Final = (aiormq.exceptions.AMQPError, OSError, RuntimeError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a broker is and how it is spoken to. *url* is ``amqp[s]://user:password@host/vhost``."""

    url: str
    name: str
    connect_timeout_s: float = 10.0
    rpc_timeout_s: float = 5.0
    heartbeat_s: int = 10

    def __post_init__(self) -> None:
        try:
            url = URL(self.url)
        except ValueError:
            url = URL()
        if url.scheme not in {"amqp", "amqps"} or not url.host:
            # What came is not repeated: it may hold a password.
            raise ConfigError("broker URL: want amqp[s]://user:password@host[:port]/vhost, got another text")

    def __str__(self) -> str:
        return str(URL(self.url).with_user(None).with_query(None))


class PlainConnection(Connection):
    """aiormq's connection with two of its constants changed."""

    # Unbounded. aiormq drops its answer to a channel's close when the queue is full, and the channel's number
    # can never be used again; and what we write is bounded already, by what we may hold unsettled.
    FRAME_BUFFER_SIZE = 0
    # Two missed heartbeats, as the protocol has it; three and the checking interval make it 3.5 heartbeats.
    HEARTBEAT_GRACE_MULTIPLIER = 2

    async def _Connection__reader(self, frame_receiver: FrameReceiver) -> None:
        """Read as aiormq does, but frames by the chunk."""
        await super()._Connection__reader(FrameReader(frame_receiver.reader))  # type: ignore[misc]


async def connect(address: Address) -> PlainConnection:
    """Open a connection. Raises BrokerUnavailable within the connect timeout; the sentence holds no password."""
    url = URL(address.url).update_query({"heartbeat": str(address.heartbeat_s), "name": address.name})
    connection = PlainConnection(url)
    await within(connection.connect(), address.connect_timeout_s, f"connect to {address}")
    return connection


async def open_channel(connection: PlainConnection, address: Address, *, has_confirms: bool = False) -> Channel:
    """Open a channel with the lowest free number. Raises BrokerUnavailable."""
    # aiormq takes the highest number and one, which climbs past the broker's limit as channels come and go.
    number = next(number for number in count(1) if number not in connection.channels)
    opening = connection.channel(number, publisher_confirms=has_confirms)
    return cast("Channel", await within(opening, address.rpc_timeout_s, f"open channel {number}"))


async def close_channel(channel: Channel) -> None:
    """Close in good order, or give up after some heartbeats; its number stays taken until the broker answers."""
    with contextlib.suppress(BrokerUnavailable):
        await within(channel.close(), _CLOSE_CHANNEL_S, "close channel")


def write(connection: PlainConnection, frames: bytes) -> None:
    """Send whole *frames* after all that was written before; never waits."""
    connection.write_queue.put_nowait(ChannelFrame(payload=frames, should_close=False))


async def written(connection: PlainConnection, deadline_s: float) -> None:
    """Wait until all that was written before has left for the socket. Raises BrokerUnavailable."""
    passed = asyncio.get_running_loop().create_future()
    connection.write_queue.put_nowait(ChannelFrame(payload=b"", should_close=False, drain_future=passed))
    await within(passed, deadline_s, "write")


async def close(connection: PlainConnection) -> None:
    """Close in good order, or drop it after a short deadline. Never raises."""
    # What does not close in time is as good as closed: without heartbeats the broker drops it.
    with contextlib.suppress(BrokerUnavailable):
        await within(connection.close(), _CLOSE_S, "close")


async def within(call: Awaitable[T], deadline_s: float, what: str) -> T:
    """Return what *call* returns. Raises BrokerUnavailable for every way in which it can fail, *deadline_s* included.

    aiormq ends the calls of a channel that closes by cancelling them; here that is a failure too, unless the
    task that waits was cancelled itself.
    """
    try:
        async with asyncio.timeout(deadline_s):
            return await call
    except TimeoutError:
        raise BrokerUnavailable(f"{what}: want an answer within {deadline_s:g} s, got none") from None
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise BrokerUnavailable(f"{what}: want an answer, got the channel closed") from None
    except _CLIENT_ERRORS as error:
        raise broker_error(what, error) from error
