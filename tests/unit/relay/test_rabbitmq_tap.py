"""The tap takes one channel's frames out of the client's stream; what it leans on in the client is held here."""

import asyncio
import inspect
import random

import pytest
from aiormq import Connection, TransportFactory
from aiormq.abc import ChannelFrame
from pamqp import commands
from pamqp.body import ContentBody
from pamqp.frame import FrameTypes, marshal, unmarshal
from pamqp.header import ContentHeader
from pamqp.heartbeat import Heartbeat

from relay.rabbitmq.tap import CHANNEL, Tap


class Heard:
    """A listener that writes everything down."""

    def __init__(self) -> None:
        self.confirms: list[tuple[int, bool, bool]] = []
        self.frames: list[FrameTypes] = []
        self.of_connection: list[FrameTypes] = []
        self.losses: list[str] = []

    def confirmed(self, delivery_tag: int, *, is_multiple: bool, is_ack: bool) -> None:
        self.confirms.append((delivery_tag, is_multiple, is_ack))

    def arrived(self, frame: FrameTypes) -> None:
        self.frames.append(frame)

    def overheard(self, frame: FrameTypes) -> None:
        self.of_connection.append(frame)

    def paused(self) -> None:
        pass

    def lost(self, reason: str) -> None:
        self.losses.append(reason)


STREAM = b"".join(
    [
        marshal(commands.Connection.OpenOk(), 0),
        marshal(commands.Basic.Ack(1, multiple=False), CHANNEL),
        marshal(Heartbeat(), 0),
        marshal(commands.Queue.DeclareOk("q", 0, 0), 2),
        marshal(commands.Basic.Ack(7, multiple=True), CHANNEL),
        marshal(commands.Basic.Nack(8), CHANNEL),
        marshal(commands.Connection.Blocked("low on memory"), 0),
        marshal(commands.Basic.Return(312, "NO_ROUTE", "outbox.events", "a.b.c"), CHANNEL),
        marshal(ContentHeader(body_size=3, properties=commands.Basic.Properties(message_id="m")), CHANNEL),
        marshal(ContentBody(b"abc"), CHANNEL),
        marshal(commands.Basic.Ack(9), 2),
        marshal(commands.Basic.Ack(10), CHANNEL),
    ]
)
CLIENTS = b"".join(
    [
        marshal(commands.Connection.OpenOk(), 0),
        marshal(Heartbeat(), 0),
        marshal(commands.Queue.DeclareOk("q", 0, 0), 2),
        marshal(commands.Connection.Blocked("low on memory"), 0),
        marshal(commands.Basic.Ack(9), 2),
    ]
)


async def read_all(reader: asyncio.StreamReader) -> bytes:
    reader.feed_eof()
    return await reader.read()


@pytest.mark.parametrize("seed", range(40))
async def test_frames_are_sorted_alike_however_the_network_cuts_them(seed: int) -> None:
    rng = random.Random(seed)
    reader, heard = asyncio.StreamReader(), Heard()
    tap = Tap(reader, heard)
    cuts = sorted(rng.sample(range(1, len(STREAM)), rng.randint(0, 30)))

    for begin, end in zip([0, *cuts], [*cuts, len(STREAM)], strict=True):
        tap.data_received(STREAM[begin:end])

    assert heard.confirms == [(1, False, True), (7, True, True), (8, False, False), (10, False, True)]
    assert [frame.name for frame in heard.frames] == ["Basic.Return", "ContentHeader", "ContentBody"]
    assert [frame.name for frame in heard.of_connection] == ["Connection.Blocked"]
    assert await read_all(reader) == CLIENTS
    assert not heard.losses


async def test_another_protocol_version_goes_to_the_client_unread() -> None:
    reader, heard = asyncio.StreamReader(), Heard()
    tap = Tap(reader, heard)

    tap.data_received(b"AMQP\x00\x01\x00\x00")

    assert await read_all(reader) == b"AMQP\x00\x01\x00\x00"


async def test_the_client_hears_a_heartbeat_while_only_our_frames_arrive() -> None:
    """A broker that sends confirms sends no heartbeats, and the client would call the connection stuck."""
    reader, heard, times = asyncio.StreamReader(), Heard(), iter(range(100, 110))
    tap = Tap(reader, heard, now=lambda: float(next(times)))

    for second in range(1, 6):
        tap.data_received(marshal(commands.Basic.Ack(second), CHANNEL) * 3)

    passed = await read_all(reader)
    assert passed
    assert not passed.replace(marshal(Heartbeat(), 0), b"")
    assert len(heard.confirms) == 15


async def test_an_unreadable_frame_of_our_channel_ends_the_connection() -> None:
    reader, heard = asyncio.StreamReader(), Heard()
    tap = Tap(reader, heard)

    tap.data_received(b"\x01\x00\x01\x00\x00\x00\x04\xff\xff\xff\xff\xce")

    assert len(heard.losses) == 1


async def test_the_client_still_has_the_shape_that_the_tap_leans_on() -> None:
    """Fails when another version of aiormq is installed whose insides differ: read relay/rabbitmq_tap.py then."""
    assert list(inspect.signature(TransportFactory.create).parameters) == ["self", "url", "kwargs"]
    assert "transport_factory" in inspect.signature(Connection.__init__).parameters
    connect = inspect.getsource(Connection.connect)
    assert "self._transport_factory.create(" in connect
    assert "ssl_context_provider=SSLContextProvider(" in connect
    assert connect.count("writer.write(") == 1  # the protocol header; all else is whole frames, by the writer task
    assert "writer.write(channel_frame.payload)" in inspect.getsource(Connection._Connection__writer)  # type: ignore[attr-defined]
    assert "max(self.channels.keys())" in inspect.getsource(Connection.channel)
    connection = Connection("amqp://localhost/?heartbeat=7")
    assert connection.channels == {}
    assert connection.heartbeat_timeout == 7
    assert Connection.HEARTBEAT_GRACE_MULTIPLIER == 3
    assert unmarshal(ChannelFrame.marshall(5, [commands.Basic.Ack(1)]).payload)[1] == 5
    await connection.close()
