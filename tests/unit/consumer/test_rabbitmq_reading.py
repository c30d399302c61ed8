"""Frames are read as aiormq and pamqp read them, however the stream is cut, and whatever stands in them."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from itertools import product
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
from consumer.rabbitmq.reading import Delivered, FrameReader
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


def deliveries() -> list[tuple[int, Any]]:
    """Frames of deliveries of every kind, on channels 1 and 2, each with its channel."""
    frames: list[tuple[int, Any]] = []
    for number, (properties, parts) in enumerate(product(PROPERTIES, [[], [b"x"], [b"\xce" * 900], [b"one", b"two"]])):
        channel = 1 + number % 2
        deliver = commands.Basic.Deliver(f"tag-{channel}", number + 1, bool(number % 3), "outbox.events", "a.b.zoë")
        header = ContentHeader(0, sum(map(len, parts)), properties)
        frames += [(channel, deliver), (channel, header), *((channel, ContentBody(part)) for part in parts)]
        if number % 4 == 0:  # what is of another channel may come between
            frames.insert(-1, (3 - channel, commands.Basic.Cancel(consumer_tag="other")))
        if number % 5 == 0:
            frames.append((0, Heartbeat()))
    return frames


async def assembled(kind: type[FrameReader] | type[FrameReceiver], pieces: list[bytes]) -> list[object]:
    """What was delivered, and what came beside, in the order in which it was whole."""
    found: list[object] = []
    begun: dict[int, list[Any]] = {}
    async for _, channel, frame in _frames(kind, pieces):
        match frame:
            case Delivered(message=message):
                fields = (message.message_id, message.type, message.app_id, message.content_type, message.headers)
                key = (frame.consumer_tag, frame.delivery_tag, frame.is_redelivered, frame.routing_key)
                found.append((channel, key, fields, message.body))
                continue
            case commands.Basic.Deliver():
                begun[channel] = [frame]
            case ContentHeader() | ContentBody():
                begun[channel].append(frame)
            case _:
                found.append((channel, frame.name))
                continue
        parts = begun[channel]
        if len(parts) > 1 and parts[1].body_size == sum(len(part.value) for part in parts[2:]):
            of = parts[1].properties
            texts = (of.message_id or "", of.message_type or "", of.app_id or "", of.content_type or "")
            key = (parts[0].consumer_tag, parts[0].delivery_tag, parts[0].redelivered, parts[0].routing_key)
            body = b"".join(part.value for part in begun.pop(channel)[2:])
            found.append((channel, key, (*texts, of.headers or {}), body))
    return found


async def _frames(kind: type[FrameReader] | type[FrameReceiver], pieces: list[bytes]) -> AsyncIterator[Any]:
    reader = asyncio.StreamReader()
    for piece in pieces:
        reader.feed_data(piece)
    reader.feed_eof()
    with contextlib.suppress(AMQPConnectionError):  # that it ends
        async for found in kind(reader):
            yield found


async def test_a_delivery_is_what_its_frames_say_however_the_stream_is_cut() -> None:
    frames = [marshal(frame, channel) for channel, frame in deliveries()]
    expected = await assembled(FrameReceiver, [b"".join(frames)])
    assert len(expected) > len(PROPERTIES) * 4
    rng = random.Random(2)
    for longest in (1, 40, 2_000, 1_000_000):
        pieces, stream = [], b"".join(frames)
        while stream:
            size = rng.randint(1, longest)
            pieces.append(stream[:size])
            stream = stream[size:]
        assert await assembled(FrameReader, pieces) == expected


async def test_what_our_relay_sends_is_read_in_one_go() -> None:
    deliver, header = commands.Basic.Deliver("tag", 1, False, "outbox.events", "k"), ContentHeader(0, 1, PROPERTIES[0])
    stream = b"".join(marshal(frame, 1) for frame in (deliver, header, ContentBody(b"x"))) * 10

    found = [frame async for _, _, frame in _frames(FrameReader, [stream])]
    assert [type(frame) for frame in found] == [Delivered] * 10
    assert found[0].message == replace(OURS, body=b"x")


@pytest.mark.parametrize("seed", range(4))
async def test_a_delivery_with_a_wrong_byte_anywhere_is_read_as_before(seed: int) -> None:
    rng = random.Random(seed)
    deliver, header = commands.Basic.Deliver("tag", 1, False, "ex", "k"), ContentHeader(0, 3, PROPERTIES[0])
    good = b"".join(marshal(frame, 1) for frame in (deliver, header, ContentBody(b"abc")))
    # Not the tag's sign, which pamqp reads one into, nor the exchange, which nobody asks for.
    tag, exchange = good.index(b"tag") + 3, good.index(b"\x02ex") + 1
    for place in set(range(len(good))) - {tag, exchange, exchange + 1}:
        bad = bytearray(good)
        bad[place] ^= 1 << rng.randrange(8)
        assert await _outcome(FrameReader, bytes(bad)) == await _outcome(FrameReceiver, bytes(bad)), place


async def _outcome(kind: type[FrameReader] | type[FrameReceiver], stream: bytes) -> object:
    try:
        return await assembled(kind, [stream])
    except InvalidFrameError:
        return "no frame"
    except (KeyError, IndexError, AttributeError):
        return "no delivery"


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
