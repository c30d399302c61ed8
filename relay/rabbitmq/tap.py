"""Where our frames leave and enter the client's connection: the only file that leans on aiormq's insides.

aiormq keeps the connection (login, TLS, heartbeats, calls on its own channels) and would spend 25 us on
each confirm. So one channel is ours alone: its frames are taken out of the stream before aiormq parses
them, and ours are written beside aiormq's, which is safe because both write whole frames only.

What we lean on, held by tests/unit/relay/test_rabbitmq_tap.py:
- ``Connection(url, transport_factory=...)`` reads and writes by the pair that ``TransportFactory.create`` returns;
- it hands each ``writer.write`` whole frames;
- ``Connection.channels`` is what a free channel number is chosen from, and a ``None`` in it takes a number;
- its reader calls the connection stuck when no frame reached it for three heartbeats.
"""

import asyncio
import struct
from collections.abc import Callable
from typing import Final, Protocol

from aiormq import SSLContextProvider, TransportFactory
from pamqp import commands
from pamqp.exceptions import PAMQPException
from pamqp.frame import FrameTypes, unmarshal
from yarl import URL

from outbox.shell.amqp import Connection

CHANNEL: Final = 1

_PROTOCOL_HEADER: Final = b"AMQP"
_HEARTBEAT: Final = b"\x08\x00\x00\x00\x00\x00\x00\xce"
_HEARTBEAT_EVERY_S: Final = 1.0
_WRITE_BUFFER_BYTES: Final = 1 << 20
_METHOD: Final = 1
_OVERHEAD_BYTES: Final = 8
_PAYLOAD_AT: Final = 7

_frame_head: Final = struct.Struct(">BHI").unpack_from
_method: Final = struct.Struct(">I").unpack_from
_confirm: Final = struct.Struct(">IQB").unpack_from
_CONFIRM_BYTES: Final = 13
_ACK: Final = commands.Basic.Ack.index
_NACK: Final = commands.Basic.Nack.index
# Nearly all that arrives, and all of one shape: head, delivery tag, bits, end.
_ACK_HEAD: Final = struct.pack(">BHII", _METHOD, CHANNEL, _CONFIRM_BYTES, _ACK)
_acks: Final = struct.Struct(f">{len(_ACK_HEAD)}sQBx").iter_unpack
_ACK_BYTES: Final = _CONFIRM_BYTES + _OVERHEAD_BYTES
_OF_CONNECTION: Final = frozenset(
    method.index for method in (commands.Connection.Blocked, commands.Connection.Unblocked, commands.Connection.Close)
)


class Listener(Protocol):
    """Who is told what arrived. Every method is called on the event loop and returns at once."""

    def confirmed(self, delivery_tag: int, *, is_multiple: bool, is_ack: bool) -> None:
        """An ack or a nack of our channel."""

    def arrived(self, frame: FrameTypes) -> None:
        """Any other frame of our channel."""

    def overheard(self, frame: FrameTypes) -> None:
        """Blocked, Unblocked or Close of the connection; the client gets it too."""

    def paused(self) -> None:
        """Everything that has arrived so far has been told."""

    def lost(self, reason: str) -> None:
        """Nothing will arrive any more."""


class Tap(asyncio.StreamReaderProtocol):
    """The protocol under the client's reader and writer."""

    def __init__(
        self, reader: asyncio.StreamReader, listener: Listener, *, now: Callable[[], float] | None = None
    ) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(reader, loop=loop)
        self._listener = listener
        self._now = now or loop.time
        self._transport: asyncio.Transport | None = None
        self._rest = b""  # of a frame that has not wholly arrived
        self._is_amqp = True
        self.heard_at = self._client_heard_at = self._now()
        self.may_write = asyncio.Event()
        self.may_write.set()

    def write(self, data: bytes) -> None:
        """Send whole frames; ``may_write`` tells when the socket has room again."""
        if self._transport is not None:
            self._transport.write(data)

    def abort(self) -> None:
        """Drop the connection without a word."""
        if self._transport is not None:
            self._transport.abort()

    def pause_reading(self) -> None:
        """Read nothing until ``resume_reading``."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read what has arrived."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin; asyncio calls this."""
        super().connection_made(transport)
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 create_connection makes no other
        transport.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """End; asyncio calls this."""
        super().connection_lost(exc)
        self.may_write.set()
        self._listener.lost(f"connection lost: {exc or 'closed by the other side'}")

    def pause_writing(self) -> None:
        """The socket is full; asyncio calls this."""
        super().pause_writing()
        self.may_write.clear()

    def resume_writing(self) -> None:
        """The socket has room; asyncio calls this."""
        super().resume_writing()
        self.may_write.set()

    def data_received(self, data: bytes) -> None:
        """Sort what arrived: our channel's frames to the listener, the rest to the client."""
        self.heard_at = self._now()
        if self._rest:
            data = self._rest + data
        if data.startswith(_PROTOCOL_HEADER) or not self._is_amqp:
            # The other side speaks another version; the client says so better than we can.
            self._is_amqp, self._rest = False, b""
            super().data_received(data)
            return
        self._rest = data[self._sort(data) :]
        self._listener.paused()

    def _sort(self, data: bytes) -> int:
        """Hand out the whole frames in *data* and return where the last one ends."""
        end = len(data)
        at = client_from = taken = 0
        while end - at >= _OVERHEAD_BYTES:
            kind, channel, size = _frame_head(data, at)
            after = at + size + _OVERHEAD_BYTES
            if after > end:
                break
            if channel == CHANNEL:
                self._pass(data[client_from:at])
                taken += 1
                if data.startswith(_ACK_HEAD, at):
                    after = self._take_acks(data, at)
                else:
                    self._take(data, at, after)
                client_from = after
            elif channel == 0 and kind == _METHOD and _method(data, at + _PAYLOAD_AT)[0] in _OF_CONNECTION:
                self._tell(data[at:after], self._listener.overheard)
            at = after
        self._pass(data[client_from:at])
        if taken and self.heard_at - self._client_heard_at >= _HEARTBEAT_EVERY_S:
            # The broker sends no heartbeat while it sends confirms, which the client does not see.
            self._pass(_HEARTBEAT)
        return at

    def _pass(self, frames: bytes) -> None:
        if frames:
            self._client_heard_at = self.heard_at
            super().data_received(frames)

    def _take_acks(self, data: bytes, at: int) -> int:
        """Hand out the whole acks that follow each other from *at* on, and return where the last one ends."""
        whole = (len(data) - at) // _ACK_BYTES * _ACK_BYTES
        for head, delivery_tag, bits in _acks(memoryview(data)[at : at + whole]):
            if head != _ACK_HEAD:
                break
            self._listener.confirmed(delivery_tag, is_multiple=bool(bits & 1), is_ack=True)
            at += _ACK_BYTES
        return at

    def _take(self, data: bytes, at: int, after: int) -> None:
        if after - at == _CONFIRM_BYTES + _OVERHEAD_BYTES:
            method, delivery_tag, bits = _confirm(data, at + _PAYLOAD_AT)
            if method == _NACK:
                self._listener.confirmed(delivery_tag, is_multiple=bool(bits & 1), is_ack=False)
                return
        self._tell(data[at:after], self._listener.arrived)

    def _tell(self, frame: bytes, hear: Callable[[FrameTypes], None]) -> None:
        try:
            _, _, unmarshalled = unmarshal(frame)
        except (PAMQPException, ValueError) as error:
            self._listener.lost(f"unreadable frame: {error}")
            self.abort()
            return
        hear(unmarshalled)


class _TappedTransport(TransportFactory):
    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self.tap: Tap | None = None

    async def create(self, url: URL, **kwargs: object) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        provider = kwargs["ssl_context_provider"]
        assert isinstance(provider, SSLContextProvider)  # noqa: S101 else aiormq changed, which its test tells
        context = await provider.get_context() if url.scheme == "amqps" else None
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(loop=loop)
        transport, self.tap = await loop.create_connection(
            lambda: Tap(reader, self._listener), url.host or "", url.port or 0, ssl=context
        )
        return reader, asyncio.StreamWriter(transport, self.tap, reader, loop)


async def connect(url: URL, listener: Listener) -> tuple[Connection, Tap]:
    """Connect and log in; channel ``CHANNEL`` is the caller's to open. Raises what aiormq and asyncio raise."""
    factory = _TappedTransport(listener)
    connection = Connection(url, transport_factory=factory)
    connection.channels[CHANNEL] = None
    try:
        await connection.connect()
    except BaseException:
        if factory.tap is not None:
            factory.tap.abort()
        raise
    assert factory.tap is not None  # noqa: S101 connect has called create
    return connection, factory.tap
