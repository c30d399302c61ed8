"""Frames out of a stream, by the chunk: what a delivery is made of is read here, all else by pamqp.

aiormq asks the stream for each frame three times, and pamqp looks at what it got as if it were anything; together
that was a fifth of what an event costs in a consumer. What is not in the form that our relay writes, and RabbitMQ
passes on, is handed to pamqp as it is, so nothing is read differently here, only sooner.
"""

import struct
from asyncio import StreamReader
from typing import Final

from aiormq.exceptions import AMQPConnectionError, InvalidFrameError
from pamqp import commands
from pamqp.body import ContentBody
from pamqp.common import FieldTable
from pamqp.exceptions import PAMQPException
from pamqp.frame import FrameTypes, unmarshal
from pamqp.header import ContentHeader

_CHUNK_BYTES: Final = 65_536
_HEAD_BYTES: Final = 7
_OVERHEAD_BYTES: Final = 8
_END: Final = 0xCE
_METHOD, _HEADER, _BODY = 1, 2, 3
_DELIVER: Final = commands.Basic.Deliver.index

_head: Final = struct.Struct(">BHI").unpack_from
_method: Final = struct.Struct(">IB").unpack_from
_header: Final = struct.Struct(">HHQH").unpack_from
_HEADER_BYTES: Final = 14
_tag: Final = struct.Struct(">QB").unpack_from
_length: Final = struct.Struct(">I").unpack_from

# The properties in the order they are written in. With any other, pamqp reads the header.
_CONTENT_TYPE, _HEADERS, _DELIVERY_MODE, _MESSAGE_ID, _TYPE, _APP_ID = 0x8000, 0x2000, 0x1000, 0x80, 0x20, 0x08
_OTHERS: Final = 0xFFFF & ~(_CONTENT_TYPE | _HEADERS | _DELIVERY_MODE | _MESSAGE_ID | _TYPE | _APP_ID)
_TEXTS: Final = ((_MESSAGE_ID, "message_id"), (_TYPE, "message_type"), (_APP_ID, "app_id"))
_LONG_TEXT: Final = ord("S")


class FrameReader:
    """Yields (bytes, channel, frame), as aiormq's own does."""

    def __init__(self, reader: StreamReader) -> None:
        self._reader = reader
        self._buffer = b""
        self._at = 0

    def __aiter__(self) -> "FrameReader":
        return self

    async def __anext__(self) -> tuple[int, int, FrameTypes]:
        """The next frame.

        Raises:
            AMQPConnectionError: the stream has ended, or the connection is lost.
            InvalidFrameError: what came is no frame.
        """
        while (size := self._whole()) == 0:
            await self._fill()
        data, self._at = self._buffer[self._at : self._at + size], self._at + size
        try:
            channel, frame = read_frame(data)
        except PAMQPException as error:
            raise InvalidFrameError(str(error)) from error
        return size, channel, frame

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


def read_frame(data: bytes) -> tuple[int, FrameTypes]:
    """The channel and the frame in *data*, which is one whole frame. Raises PAMQPException."""
    kind, channel, _ = _head(data)
    frame: FrameTypes | None = None
    if data[-1] == _END:
        try:
            if kind == _BODY and len(data) > _OVERHEAD_BYTES:
                return channel, ContentBody(data[_HEAD_BYTES:-1])
            if kind == _HEADER:
                frame = _read_header(data)
            elif kind == _METHOD and _method(data, _HEAD_BYTES)[0] == _DELIVER:
                frame = _read_deliver(data)
        except (struct.error, IndexError, UnicodeDecodeError):
            pass  # whatever is wrong with it, pamqp says so
    return (channel, frame) if frame is not None else unmarshal(data)[1:]


def _read_deliver(data: bytes) -> FrameTypes:
    consumer_tag, at = _short_text(data, _HEAD_BYTES + 4)
    delivery_tag, bits = _tag(data, at)
    exchange, at = _short_text(data, at + 9)
    routing_key, _ = _short_text(data, at)
    return commands.Basic.Deliver(consumer_tag, delivery_tag, bool(bits & 1), exchange, routing_key)


def _read_header(data: bytes) -> FrameTypes | None:
    _, weight, body_size, flags = _header(data, _HEAD_BYTES)
    if flags & _OTHERS:
        return None
    properties = commands.Basic.Properties()
    at = _read_properties(data, _HEAD_BYTES + _HEADER_BYTES, flags, properties)
    # Else there was more than text in its table, or a length in it was wrong.
    return ContentHeader(weight, body_size, properties) if at == len(data) - 1 else None


def _read_properties(data: bytes, at: int, flags: int, properties: commands.Basic.Properties) -> int:
    """Where they end; -1 if they are not for us to read."""
    if flags & _CONTENT_TYPE:
        properties.content_type, at = _short_text(data, at)
    if flags & _HEADERS:
        properties.headers, at = _table(data, at)
        if properties.headers is None:
            return -1
    if flags & _DELIVERY_MODE:
        properties.delivery_mode, at = data[at], at + 1
    for flag, name in _TEXTS:
        if flags & flag:
            text, at = _short_text(data, at)
            setattr(properties, name, text)
    return at


def _short_text(data: bytes, at: int) -> tuple[str, int]:
    end = at + 1 + data[at]
    return data[at + 1 : end].decode(), end


def _table(data: bytes, at: int) -> tuple[FieldTable | None, int]:
    """The table at *at* and where it ends; None if it holds anything but text."""
    end = at + 4 + _length(data, at)[0]
    at += 4
    found: FieldTable = {}
    while at < end:
        name, at = _short_text(data, at)
        if data[at] != _LONG_TEXT:
            return None, end
        value_at = at + 5
        at = value_at + _length(data, at + 1)[0]
        found[name] = data[value_at:at].decode()
    return (found if at == end else None), end
