"""Frames are read as aiormq and pamqp read them, however the stream is cut, and whatever stands in them."""

import asyncio
import contextlib
import random
from datetime import UTC, datetime
from typing import Any

import pytest
from aiormq.connection import Connection, FrameReceiver
from aiormq.exceptions import AMQPConnectionError, InvalidFrameError
from pamqp import commands
from pamqp.body import ContentBody
from pamqp.frame import marshal
from pamqp.header import ContentHeader
from pamqp.heartbeat import Heartbeat

from consumer.rabbitmq.connection import PlainConnection
from consumer.rabbitmq.reading import FrameReader
from outbox.wire import encode
from tests.support.engine import an_event

OURS = encode(an_event())
PROPERTIES = [
    commands.Basic.Properties(
        content_type=OURS.content_type,
        headers={name: str(value) for name, value in OURS.headers.items()},
        delivery_mode=2,
        message_id=OURS.message_id,
        message_type=OURS.type,
        app_id=OURS.app_id,
    ),
    commands.Basic.Properties(),
    commands.Basic.Properties(headers={}),
    commands.Basic.Properties(headers={"text": "zoë 😀", "": ""}, message_id="x" * 255),
    commands.Basic.Properties(headers={"count": 3, "flag": True, "none": None, "deep": {"list": [1, "a"]}}),
    commands.Basic.Properties(headers={"x-death": [{"reason": "full"}]}, timestamp=datetime(2026, 1, 1, tzinfo=UTC)),
    commands.Basic.Properties(content_encoding="gzip", priority=3, correlation_id="c", reply_to="r", expiration="1"),
]
FRAMES: list[Any] = [
    *(ContentHeader(0, size, properties) for size in (0, 1, 2**40) for properties in PROPERTIES),
    *(ContentBody(body) for body in (b"x", b"\xce" * 9, bytes(range(256)) * 300)),
    commands.Basic.Deliver("tag", 1, False, "outbox.events", "billing.standard.acme"),
    commands.Basic.Deliver("", 2**63 - 1, True, "", "k" * 255),
    commands.Basic.Cancel(consumer_tag="tag"),
    commands.Basic.ConsumeOk("tag"),
    commands.Channel.Close(404, "no queue", 60, 20),
    commands.Channel.CloseOk(),
    Heartbeat(),
]
STREAM = b"".join(marshal(frame, number % 3) for number, frame in enumerate(FRAMES) if frame.name != "Heartbeat")


async def read(kind: type[FrameReader] | type[FrameReceiver], pieces: list[bytes]) -> list[tuple[int, int, object]]:
    reader = asyncio.StreamReader()
    for piece in pieces:
        reader.feed_data(piece)
    reader.feed_eof()
    found = []
    with contextlib.suppress(AMQPConnectionError):  # that it ends
        async for size, channel, frame in kind(reader):
            found.append((size, channel, _plain(frame)))
    return found


def _plain(frame: Any) -> object:
    match frame:
        case ContentHeader():
            return frame.weight, frame.body_size, dict(frame.properties)
        case ContentBody():
            return frame.value
        case Heartbeat():
            return "heartbeat"
        case _:
            return frame.name, dict(frame)


async def test_what_is_read_is_what_aiormq_reads_however_the_stream_is_cut() -> None:
    stream = STREAM + Heartbeat().marshal() + STREAM
    expected = await read(FrameReceiver, [stream])
    assert len(expected) == 2 * len(FRAMES) - 1
    rng = random.Random(1)
    for longest in (3, 50, 5_000, len(stream)):
        pieces, at = [], 0
        while at < len(stream):
            size = rng.randint(1, longest)
            pieces.append(stream[at : at + size])
            at += size
        assert await read(FrameReader, pieces) == expected


async def test_a_stream_that_ends_is_a_lost_connection() -> None:
    whole = marshal(FRAMES[0], 1)
    for end in (0, 3, 7, len(whole) - 1, len(whole)):
        reader = asyncio.StreamReader()
        reader.feed_data(whole[:end])
        reader.feed_eof()
        frames = FrameReader(reader)
        if end == len(whole):
            await anext(frames)
        with pytest.raises(AMQPConnectionError):
            await anext(frames)


@pytest.mark.parametrize("place", [0, 7, 30, -1])
async def test_what_is_no_frame_is_never_taken_for_one(place: int) -> None:
    frame = bytearray(marshal(ContentHeader(0, 5, PROPERTIES[0]), 1))
    frame[place] = 0xFF
    try:
        expected = await read(FrameReceiver, [bytes(frame)])
    except InvalidFrameError:
        with pytest.raises(InvalidFrameError):
            await read(FrameReader, [bytes(frame)])
    else:
        assert await read(FrameReader, [bytes(frame)]) == expected


def test_the_connection_reads_by_it() -> None:
    """What aiormq's ``connect`` starts, by the name that it starts it by."""
    assert PlainConnection._Connection__reader is not Connection._Connection__reader  # type: ignore[attr-defined]
    assert "_Connection__reader" in Connection.connect.__wrapped__.__code__.co_names  # type: ignore[attr-defined]
