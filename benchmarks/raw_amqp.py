"""The ceiling: a raw socket that sends frames prepared beforehand and counts confirms, nothing else."""

import select
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from urllib.parse import unquote, urlsplit

from pamqp import commands, frame
from pamqp.base import Frame
from pamqp.body import ContentBody
from pamqp.header import ContentHeader

from outbox.event import Event
from outbox.topology import EVENTS_EXCHANGE
from outbox.wire import encode

_METHOD = 1
_ACK = (60, 80)
_NACK = (60, 120)
_FRAME_END_BYTES = 1
_SILENCE_S = 60.0


def publish_frames(event: Event, routing_key: str) -> bytes:
    """The three frames that publish *event*, as any correct client would marshal them."""
    message = encode(event)
    properties = commands.Basic.Properties(
        message_id=message.message_id,
        message_type=message.type,
        app_id=message.app_id,
        content_type=message.content_type,
        delivery_mode=2,
        headers={name: str(value) for name, value in message.headers.items()},
    )
    parts: Sequence[Frame | ContentHeader | ContentBody] = (
        commands.Basic.Publish(exchange=EVENTS_EXCHANGE, routing_key=routing_key, mandatory=True),
        ContentHeader(body_size=len(message.body), properties=properties),
        ContentBody(message.body),
    )
    return b"".join(frame.marshal(part, 1) for part in parts)


class RawConnection:
    """One connection with one channel in confirm mode. Blocking; heartbeats are off."""

    def __init__(self, url: str, *, confirms: bool = True) -> None:
        parts = urlsplit(url)
        self._socket = socket.create_connection((parts.hostname or "127.0.0.1", parts.port or 5672), timeout=30)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = b""
        self._low = 0  # every tag up to here is confirmed ...
        self._singles: set[int] = set()  # ... and these above it
        self._socket.sendall(b"AMQP\x00\x00\x09\x01")
        self._expect(commands.Connection.Start)
        login = f"\0{unquote(parts.username or 'guest')}\0{unquote(parts.password or 'guest')}"
        self._send(commands.Connection.StartOk(mechanism="PLAIN", response=login, locale="en_US"), channel=0)
        tune = self._expect(commands.Connection.Tune)
        assert isinstance(tune, commands.Connection.Tune)
        self._send(commands.Connection.TuneOk(tune.channel_max, tune.frame_max, 0), channel=0)
        self._send(commands.Connection.Open(virtual_host=unquote(parts.path[1:]) or "/"), channel=0)
        self._expect(commands.Connection.OpenOk)
        self._send(commands.Channel.Open())
        self._expect(commands.Channel.OpenOk)
        if confirms:
            self._send(commands.Confirm.Select())
            self._expect(commands.Confirm.SelectOk)

    def publish_all(self, frames: Sequence[bytes], *, window: int, batch: int) -> float:
        """Send *frames* with at most *window* unconfirmed, *batch* in one write; returns the seconds it took.

        Confirms are read while the socket is full, as a broker that is slow to read goes on confirming.
        """
        began = time.perf_counter()
        base = self._low + len(self._singles)
        sent = confirmed = 0
        unwritten = memoryview(b"")
        while confirmed < len(frames):
            if not unwritten and sent < len(frames) and sent - confirmed + batch <= window:
                unwritten = memoryview(b"".join(frames[sent : sent + batch]))
                sent = min(sent + batch, len(frames))
            wants_room = [self._socket] if unwritten else []
            readable, writable, _ = select.select([self._socket], wants_room, [], _SILENCE_S)
            assert readable or writable, f"the broker said nothing for {_SILENCE_S} s"
            if writable:
                unwritten = unwritten[self._socket.send(unwritten, socket.MSG_DONTWAIT) :]
            if readable:
                confirmed = self._confirms() - base
        return time.perf_counter() - began

    def close(self) -> None:
        """Close without ceremony."""
        self._socket.close()

    def _confirms(self) -> int:
        """How many are confirmed after one read; the broker confirms in any order, so count singles apart."""
        for method, payload in self._frames():
            if method == _NACK:
                raise AssertionError("the broker refused a publish")
            if method != _ACK:
                raise AssertionError(f"want a confirm, got method {method}")
            tag, is_multiple = struct.unpack(">QB", payload)
            if is_multiple & 1:
                self._low = max(self._low, tag)
                self._singles = {single for single in self._singles if single > tag}
            elif tag > self._low:
                self._singles.add(tag)
        return self._low + len(self._singles)

    def _frames(self) -> Iterator[tuple[tuple[int, int], bytes]]:
        received = self._socket.recv(1 << 16)
        if not received:
            raise ConnectionError("the broker closed the connection")
        self._buffer += received
        position = 0
        while len(self._buffer) - position >= 7:
            kind, _, size = struct.unpack_from(">BHI", self._buffer, position)
            end = position + 7 + size + _FRAME_END_BYTES
            if len(self._buffer) < end:
                break
            if kind == _METHOD:
                class_id, method_id = struct.unpack_from(">HH", self._buffer, position + 7)
                yield (class_id, method_id), self._buffer[position + 11 : end - _FRAME_END_BYTES]
            position = end
        self._buffer = self._buffer[position:]

    def _send(self, method: Frame, *, channel: int = 1) -> None:
        self._socket.sendall(frame.marshal(method, channel))

    def _expect(self, kind: type[Frame]) -> Frame:
        while True:
            consumed, _, value = frame.unmarshal(self._buffer) if len(self._buffer) >= 8 else (0, 0, None)
            if consumed:
                self._buffer = self._buffer[consumed:]
                assert isinstance(value, kind), f"want {kind.name}, got {value}"
                return value
            received = self._socket.recv(1 << 16)
            if not received:
                raise ConnectionError("the broker closed the connection")
            self._buffer += received
