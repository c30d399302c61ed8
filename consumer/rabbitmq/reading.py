"""Frames out of a stream, by the chunk: what a delivery is made of is read here, all else by pamqp.

aiormq asks the stream for each frame three times, and pamqp looks at what it got as if it were anything; together
that was a fifth of what an event costs in a consumer. A delivery whose three frames are at hand and in the form that
our relay writes, and RabbitMQ passes on, is one ``Delivered``. Everything else is handed to pamqp frame by frame, so
nothing is read differently here, only sooner; the exchange's name, which pamqp has ideas of, is not read at all.
"""

import struct
from asyncio import StreamReader
from typing import Final, TypeAlias

from aiormq.exceptions import AMQPConnectionError, InvalidFrameError
from pamqp import commands
from pamqp.exceptions import PAMQPException
from pamqp.frame import FrameTypes, unmarshal

from outbox.records import record
from outbox.wire import Message

_CHUNK_BYTES: Final = 65_536
_HEAD_BYTES: Final = 7
_OVERHEAD_BYTES: Final = 8
_END: Final = 0xCE
_METHOD, _HEADER, _BODY = 1, 2, 3
_DELIVER: Final = commands.Basic.Deliver.index.to_bytes(4, "big")

_head: Final = struct.Struct(">BHI").unpack_from
_header: Final = struct.Struct(">HHQH").unpack_from
_HEADER_BYTES: Final = 14
_BASIC: Final = commands.Basic.frame_id
_tag: Final = struct.Struct(">QB").unpack_from
_length: Final = struct.Struct(">I").unpack_from

# The properties in the order they are written in. With any other, pamqp reads the header.
_CONTENT_TYPE, _HEADERS, _DELIVERY_MODE, _MESSAGE_ID, _TYPE, _APP_ID = 0x8000, 0x2000, 0x1000, 0x80, 0x20, 0x08
_OTHERS: Final = 0xFFFF & ~(_CONTENT_TYPE | _HEADERS | _DELIVERY_MODE | _MESSAGE_ID | _TYPE | _APP_ID)
_TEXTS: Final = (_MESSAGE_ID, _TYPE, _APP_ID)
_LONG_TEXT: Final = ord("S")
_DELIVERY_MODES: Final = (1, 2)


@record
class Delivered:
    """A whole delivery: what its three frames say."""

    consumer_tag: str
    delivery_tag: int
    is_redelivered: bool
    routing_key: str
    message: Message


Frame: TypeAlias = FrameTypes | Delivered


class FrameReader:
    """Yields (bytes, channel, frame), as aiormq's own does."""

    def __init__(self, reader: StreamReader) -> None:
        self._reader = reader
        self._buffer = b""
        self._at = 0

    def __aiter__(self) -> "FrameReader":
        return self

    async def __anext__(self) -> tuple[int, int, Frame]:
        """The next frame, or whole delivery.

        Raises:
            AMQPConnectionError: the stream has ended, or the connection is lost.
            InvalidFrameError: what came is no frame.
        """
        while (size := self._whole()) == 0:
            await self._fill()
        if (found := read_delivery(self._buffer, self._at)) is not None:
            size, channel, delivered = found
            self._at += size
            return size, channel, delivered
        data, self._at = self._buffer[self._at : self._at + size], self._at + size
        try:
            return size, *unmarshal(data)[1:]
        except PAMQPException as error:
            raise InvalidFrameError(str(error)) from error

    def _whole(self) -> int:
        """How many bytes the frame at hand has; 0 if not all of them are here."""
        here = len(self._buffer) - self._at
        if here < _HEAD_BYTES:
            return 0
        size = int(_head(self._buffer, self._at)[2]) + _OVERHEAD_BYTES
        return size if here >= size else 0

    async def _fill(self) -> None:
        try:
            data = await self._reader.read(_CHUNK_BYTES)
        except OSError as error:
            raise AMQPConnectionError(f"connection: want more of it, got {error!r}") from error
        rest = self._buffer[self._at :]
        if not data:  # between two frames too: who closes in good order says so before, and is read no further
            raise AMQPConnectionError(f"connection: want another frame, got {len(rest)} bytes and its end")
        self._buffer, self._at = rest + data, 0


class _OtherForm(Exception):
    """It is not in the form that is read here."""


def read_delivery(data: bytes, at: int) -> tuple[int, int, Delivered] | None:
    """The delivery that begins at *at*: its size in bytes, its channel, and what it is.

    None if there is none, if not all of it is at hand, or if anything of it is not as our relay would have it.
    """
    if data[at] != _METHOD or data[at + _HEAD_BYTES : at + _HEAD_BYTES + 4] != _DELIVER:
        return None
    try:
        return _read_delivery(data, at)
    except (_OtherForm, struct.error, IndexError, UnicodeDecodeError):
        return None  # whatever is wrong with it, pamqp says so


def _read_delivery(data: bytes, at: int) -> tuple[int, int, Delivered]:
    _, channel, deliver_bytes = _head(data, at)
    header_at = at + deliver_bytes + _OVERHEAD_BYTES
    kind, header_channel, header_bytes = _head(data, header_at)
    body_at = header_at + header_bytes + _OVERHEAD_BYTES
    if kind != _HEADER or header_channel != channel or data[header_at - 1] != _END or data[body_at - 1] != _END:
        raise _OtherForm
    frame, weight, body_size, flags = _header(data, header_at + _HEAD_BYTES)
    if frame != _BASIC or weight or flags & _OTHERS:
        raise _OtherForm
    body, end = _body(data, body_at, channel, body_size) if body_size else (b"", body_at)
    message = _message(data, header_at + _HEAD_BYTES + _HEADER_BYTES, flags, body, end=body_at - 1)
    consumer_tag, tag_at = _short_text(data, at + _HEAD_BYTES + 4)
    delivery_tag, bits = _tag(data, tag_at)
    exchange_at = tag_at + 9
    routing_key, deliver_end = _short_text(data, exchange_at + 1 + data[exchange_at])
    if deliver_end != header_at - 1:
        raise _OtherForm
    delivered = Delivered(
        consumer_tag=consumer_tag,
        delivery_tag=delivery_tag,
        is_redelivered=bool(bits & 1),
        routing_key=routing_key,
        message=message,
    )
    return end - at, channel, delivered


def _body(data: bytes, at: int, channel: int, size: int) -> tuple[bytes, int]:
    """The body of *size* bytes whose frame begins at *at*, and where that ends."""
    kind, its_channel, its_size = _head(data, at)
    end = at + its_size + _OVERHEAD_BYTES
    if kind != _BODY or its_channel != channel or its_size != size or data[end - 1] != _END:
        raise _OtherForm  # another channel's frame came between, or it has several parts
    return data[at + _HEAD_BYTES : end - 1], end


def _message(data: bytes, at: int, flags: int, body: bytes, *, end: int) -> Message:
    """The message with *body* whose properties are from *at* to *end*."""
    content_type = ""
    headers: dict[str, str] = {}
    if flags & _CONTENT_TYPE:
        content_type, at = _short_text(data, at)
    if flags & _HEADERS:
        headers, at = _table(data, at)
    if flags & _DELIVERY_MODE:
        if data[at] not in _DELIVERY_MODES:
            raise _OtherForm
        at += 1
    texts = []
    for flag in _TEXTS:
        text = ""
        if flags & flag:
            text, at = _short_text(data, at)
        texts.append(text)
    if at != end:
        raise _OtherForm  # a length in it was wrong
    message_id, message_type, app_id = texts
    return Message(
        message_id=message_id,
        type=message_type,
        app_id=app_id,
        content_type=content_type,
        headers=headers,
        body=body,
    )


def _short_text(data: bytes, at: int) -> tuple[str, int]:
    end = at + 1 + data[at]
    return data[at + 1 : end].decode(), end


def _table(data: bytes, at: int) -> tuple[dict[str, str], int]:
    """The table at *at*, which holds nothing but text, and where it ends."""
    end = at + 4 + _length(data, at)[0]
    at += 4
    found: dict[str, str] = {}
    while at < end:
        kind_at = at + 1 + data[at]
        if data[kind_at] != _LONG_TEXT:
            raise _OtherForm
        value_at = kind_at + 5
        value_end = value_at + _length(data, kind_at + 1)[0]
        found[data[at + 1 : kind_at].decode()] = data[value_at:value_end].decode()
        at = value_end
    if at != end:
        raise _OtherForm
    return found, end
