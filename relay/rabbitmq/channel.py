"""One connection's publishing channel: what is sent on it, what is heard of it, and how it ended.

It lives as long as its connection and is then replaced; only *caution* goes on to the next one.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from aiormq import AMQPError, Connection
from pamqp import commands
from pamqp.frame import FrameTypes, marshal
from pamqp.header import ContentHeader
from yarl import URL

from outbox.errors import BrokerUnavailable
from relay.ports import Category, Failed, Outgoing, Settlement
from relay.rabbitmq.apart import Apart
from relay.rabbitmq.caution import Caution, Refusal, refusal, verdict
from relay.rabbitmq.confirms import Confirms
from relay.rabbitmq.frames import Marshaller, TooLarge
from relay.rabbitmq.tap import CHANNEL, Tap, connect

# The broker's words for "I will not take this message": 311, 406 on the channel; 501, 502 on the connection.
# 403 and 404 speak of the exchange, which is every event's: they blame none, and all wait.
_REFUSALS: Final = frozenset({311, 406, 501, 502})
_SILENT_HEARTBEATS: Final = 2
_GOODBYE_S: Final = 1.0


class PublishingChannel:
    """The engine's events on one channel in confirm mode. Implements ``relay.rabbitmq.tap.Listener``."""

    def __init__(self, *, caution: Caution, body_bytes_max: int, write_timeout_s: float, heartbeat_s: int) -> None:
        self._caution = caution
        self._body_bytes_max = body_bytes_max
        self._write_timeout_s = write_timeout_s
        self._heartbeat_s = heartbeat_s
        self._confirms = Confirms()
        self._settled: list[Settlement] = []
        self._news = asyncio.Event()
        self._is_ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._is_ready.add_done_callback(lambda ready: ready.cancelled() or ready.exception())
        self._coming_back: commands.Basic.Return | None = None
        self._loss: str | None = None  # why nothing more will be heard
        self.brokers_words: str | None = None  # with which it closed the channel or the connection
        self._watch: asyncio.TimerHandle | None = None
        self._frames: Marshaller
        self._tap: Tap | None = None
        self._apart: Apart | None = None
        self.connection: Connection | None = None
        self.is_blocked = False

    async def open(self, url: URL) -> Connection:
        """Connect and open the channel. Raises what aiormq and asyncio raise, and BrokerUnavailable."""
        self.connection, self._tap = await connect(url, self)
        frame_bytes_max = self.connection.connection_tune.frame_max or 0
        named = self._caution.body_bytes_max
        body_bytes_max = self._body_bytes_max if named is None else min(named, self._body_bytes_max)
        self._frames = Marshaller(channel=CHANNEL, frame_bytes_max=frame_bytes_max, body_bytes_max=body_bytes_max)
        self._tap.write(marshal(commands.Channel.Open(), CHANNEL) + marshal(commands.Confirm.Select(), CHANNEL))
        await self._is_ready
        self._apart = Apart(self.connection, settled=self._settled_apart, lost=self.lost)
        self._listen_for_silence()
        return self.connection

    async def send(self, batch: Sequence[Outgoing]) -> None:
        """Write *batch*, or what of it may be written yet; see ``relay.ports.Publisher.send``."""
        self._check()
        if self._caution.is_needed:
            self._settled += self._caution.add(batch)
            self._write(self._caution.due(is_idle=self._confirms.is_idle))
        else:
            self._write([outgoing for outgoing in batch if not outgoing.is_apart])
            self._write_apart([outgoing for outgoing in batch if outgoing.is_apart])
        if self._settled:
            self._news.set()
        await self._wait_for_room()

    async def settlements(self, *, timeout_s: float) -> Sequence[Settlement]:
        """What was settled since the last call; see ``relay.ports.Publisher.settlements``."""
        if not self._settled and self._loss is None:
            self._news.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._news.wait()
        if not self._settled:
            self._check()
        settled, self._settled = self._settled, []
        return settled

    @contextmanager
    def unread(self) -> Iterator[None]:
        """Leave what arrives in the socket meanwhile; see ``relay.ports.Publisher.unread``."""
        if self._tap is None:
            yield
            return
        self._tap.pause_reading()
        try:
            yield
        finally:
            self._tap.resume_reading()

    async def close(self) -> None:
        """Close, with a word to the broker if it listens. Safe to repeat."""
        is_alive = self._loss is None and not self.is_blocked
        self.lost("closed")
        if self._apart is not None:
            await self._apart.close()
        if self.connection is None or self._tap is None:
            return
        with suppress(AMQPError, OSError):
            if is_alive:
                async with asyncio.timeout(_GOODBYE_S):
                    await self.connection.close()
        self._tap.abort()
        await asyncio.wait((self.connection.closing,), timeout=_GOODBYE_S)

    def confirmed(self, delivery_tag: int, *, is_multiple: bool, is_ack: bool) -> None:
        """An ack or a nack arrived."""
        self._settled += self._confirms.settled(delivery_tag, is_multiple=is_multiple, is_ack=is_ack)

    def arrived(self, frame: FrameTypes) -> None:
        """Another frame of the channel arrived."""
        match frame:
            case commands.Basic.Return():
                self._coming_back = frame
            case ContentHeader():
                self._returned(frame.properties.message_id or "")
            case commands.Confirm.SelectOk() if not self._is_ready.done():
                self._is_ready.set_result(None)
            case commands.Channel.Close():
                if self._tap is not None:
                    self._tap.write(marshal(commands.Channel.CloseOk(), CHANNEL))
                self._closed_by_broker("the channel", frame)
            case _:
                pass  # Channel.OpenOk, and the body of what came back

    def overheard(self, frame: FrameTypes) -> None:
        """The broker said something of the whole connection."""
        match frame:
            case commands.Connection.Blocked():
                self.is_blocked = True
                self._make_room()
            case commands.Connection.Unblocked():
                self.is_blocked = False
            case commands.Connection.Close():
                self._closed_by_broker("the connection", frame)
            case _:
                pass

    def paused(self) -> None:
        """All that arrived has been told: go on, and wake who waits."""
        if self._caution.is_needed and self._loss is None:
            self._write(self._caution.due(is_idle=self._confirms.is_idle))
        if self._settled:
            self._news.set()

    def lost(self, reason: str) -> None:
        """Nothing more will be heard. The first reason stays."""
        if self._loss is None:
            self._caution.interrupted()
            self._end(reason)

    def _closed_by_broker(self, what: str, close: commands.Channel.Close | commands.Connection.Close) -> None:
        reason = self.brokers_words = f"the broker closed {what}: {close.reply_code} {close.reply_text}"
        if self._loss is None and close.reply_code in _REFUSALS:
            unsettled = list(self._confirms.unsettled())
            if self._apart is not None and isinstance(close, commands.Connection.Close):
                unsettled += self._apart.unsettled()
            self._caution.refused(unsettled, refusal(close.reply_code, close.reply_text, reason=reason))
            self._end(reason)
        self.lost(reason)

    def _end(self, reason: str) -> None:
        self._loss = reason
        if self._watch is not None:
            self._watch.cancel()
        if not self._is_ready.done():
            self._is_ready.set_exception(BrokerUnavailable(reason))
        self._news.set()
        self._make_room()

    def _check(self) -> None:
        if self._loss is not None:
            raise BrokerUnavailable(self._loss)

    def _write(self, batch: Sequence[Outgoing]) -> None:
        frames: list[bytes] = []
        for outgoing in batch:
            published = self._frames.publish(outgoing.lane, outgoing.event)
            if isinstance(published, TooLarge):
                self._settled.append(_too_large(outgoing, published))
            else:
                frames.append(published)
                self._confirms.published(outgoing)
        if frames and self._tap is not None:
            self._tap.write(b"".join(frames))

    def _write_apart(self, batch: Sequence[Outgoing]) -> None:
        for outgoing in batch:
            published = self._frames.publish(outgoing.lane, outgoing.event)
            if isinstance(published, TooLarge):
                self._settled.append(_too_large(outgoing, published))
            elif self._apart is not None:
                self._apart.send(outgoing)

    def _settled_apart(self, outgoing: Outgoing, settled: Settlement | Refusal) -> None:
        if isinstance(settled, Refusal):
            if settled.body_bytes_max is not None:
                self._frames.limit(settled.body_bytes_max)
            settled = verdict(outgoing, settled)
        self._settled.append(settled)
        self._news.set()

    def _returned(self, message_id: str) -> None:
        came_back, self._coming_back = self._coming_back, None
        if came_back is None:
            return
        key = came_back.routing_key or ""
        reason = f"routing key {key}: want a queue bound to it, got {came_back.reply_code} {came_back.reply_text}"
        if not self._confirms.returned(routing_key=key, message_id=message_id, reason=reason):
            # Believing the acks that follow could mark as published what no queue received.
            self.lost("the broker returned what was never published")

    async def _wait_for_room(self) -> None:
        if self._tap is None or self._tap.may_write.is_set() or self.is_blocked:
            return
        try:
            async with asyncio.timeout(self._write_timeout_s):
                await self._tap.may_write.wait()
        except TimeoutError:
            self.lost(f"the socket took nothing for {self._write_timeout_s:g} s")
            self._tap.abort()
        self._check()

    def _make_room(self) -> None:
        if self._tap is not None:
            self._tap.may_write.set()

    def _listen_for_silence(self) -> None:
        """Lose the connection when not even heartbeats arrive; the client alone would take three and more."""
        loop = asyncio.get_running_loop()
        if self._tap is None or self._loss is not None:
            return
        if loop.time() - self._tap.heard_at > _SILENT_HEARTBEATS * self._heartbeat_s:
            self.lost(f"nothing heard for {_SILENT_HEARTBEATS * self._heartbeat_s} s, not even a heartbeat")
            self._tap.abort()
            return
        self._watch = loop.call_later(self._heartbeat_s / 2, self._listen_for_silence)


def _too_large(outgoing: Outgoing, found: TooLarge) -> Failed:
    return Failed(tag=outgoing.tag, category=Category.TOO_LARGE, reason=found.reason)
