"""Publishes what the backlog has, and sends again what a lost or silent connection leaves unknown, in its order."""

import asyncio
import math
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from typing import Final, TypeVar

import structlog

from outbox.backoff import Jitter, backoff_s
from outbox.errors import BrokerUnavailable
from relay.decide.holdings import Holdings
from relay.decide.pieces import Retry, Row, Sent, Stream
from relay.decide.together import readable
from relay.decide.turns import WEIGHTS
from relay.engine.directory import Directory
from relay.engine.outcomes import Outcomes
from relay.engine.reader import Reader
from relay.gauges import Gauges
from relay.limits import Limits
from relay.log.deferred import Claimed, Due
from relay.ports import Outgoing, Publisher

log = structlog.get_logger(__name__)
T = TypeVar("T")

# One lane may have with the broker as much as is still free of the window, times its tier's weight over the
# greatest: so silent lanes always leave room to the others, a busy one never fills the broker's socket on its own,
# and lanes that are all busy share the window by weight. Nor may it have more than its pace allows.
_WEIGHT_MAX: Final = max(WEIGHTS.values())
_JUDGE_EVERY_S: Final = 0.25
_REOPEN_BASE_S: Final = 0.1
_REOPEN_CAP_S: Final = 5.0


class Sender:
    """One tenure's side of the broker. It opens the publisher anew at the start and after every loss."""

    def __init__(  # noqa: PLR0913 (what it works with; a bag of it would hide that)
        self,
        publisher: Publisher,
        holdings: Holdings,
        *,
        reader: Reader,
        directory: Directory,
        outcomes: Outcomes,
        keep: Callable[[], Awaitable[None]],
        limits: Limits,
        gauges: Gauges,
        rng: random.Random,
    ) -> None:
        """Args:
        keep: renews the leases if it is time, and raises LeaseLost if one is another's.
        """
        self._publisher = publisher
        self._backlog = holdings.backlog
        self._flight = holdings.flight
        self._turns = holdings.turns
        self._offer = holdings.offer
        self._is_leaving = holdings.is_leaving
        self._reader = reader
        self._directory = directory
        self._outcomes = outcomes
        self._keep = keep
        self._limits = limits
        self._gauges = gauges
        self._rng = rng
        self._is_open = False
        self._is_blocked = False
        self._losses = 0
        self._open_at = 0.0
        self._judge_at = 0.0
        self._sent = 0

    @property
    def is_open(self) -> bool:
        """Whether there is a connection."""
        return self._is_open

    @property
    def may_publish(self) -> bool:
        """Whether the broker takes messages now."""
        return self._is_open and not self._is_blocked

    @property
    def sent(self) -> int:
        """How many messages it has handed to the broker, those sent again included."""
        return self._sent

    @property
    def has_room(self) -> bool:
        """Whether more may be published before the next persist."""
        return self._backlog.unpersisted < self._limits.window

    @property
    def waits_for_broker(self) -> bool:
        """Whether the window is full, and more of it is yet to be confirmed than a persist would make room for."""
        news = self._outcomes.news
        return not self.has_room and news < min(self._limits.window // 4, len(self._flight) - self._outcomes.held_rows)

    @property
    def has_work(self) -> bool:
        """Whether something could be published right now."""
        return self.may_publish and self.has_room and len(self._turns) > 0

    def next_due(self) -> float:
        """When the broker's side has something to do by itself, in monotonic seconds."""
        if not self._is_open:
            return self._open_at
        return math.inf if self._is_blocked else self._outcomes.next_due()

    async def tend(self, now: float) -> None:
        """Open the connection if there is none; else judge its silence, declare lanes, and send again what is due."""
        if not self._is_open:
            if now >= self._open_at:
                await self._open(now)
            return
        was_blocked, self._is_blocked = self._is_blocked, self._publisher.is_blocked
        if self._is_blocked != was_blocked:
            log.warning("broker blocked" if self._is_blocked else "broker unblocked")
            self._flight.resumed(now)
        if self._is_blocked:
            return
        if now >= self._judge_at:
            self._judge_at = now + _JUDGE_EVERY_S
            if self._outcomes.judge(now):
                self._losses = 0  # it was silent for long enough
                raise BrokerUnavailable(f"broker: want confirms within {self._limits.confirm_s:g} s, got none")
        self._outcomes.answered(await self._directory.work(now), now)
        again = self._outcomes.due_again(now)
        if again:
            await self._send(again, is_again=True)

    async def publish(self, *, rows_max: int) -> None:
        """Publish what turns, window and budgets allow now: one batch, with no lane's second turn in it.

        Before more than *rows_max* rows comes what was committed meanwhile.
        """
        limits, turns = self._limits, self._turns
        batch: list[Sent] = []
        served: set[Stream] = set()
        room = min(limits.window - self._backlog.unpersisted, limits.batch, rows_max)
        room_bytes = limits.batch_bytes
        while room > 0 and room_bytes > 0 and (stream := turns.take(but=served)) is not None:
            served.add(stream)
            bytes_max = min(limits.chunk_bytes, room_bytes)
            rows_max = self._rows_max(stream, room)
            taken = stream.take(rows_max=rows_max, bytes_max=bytes_max) if rows_max > 0 else []
            while rows_max > 0 and not taken and await self._read(stream, rows_max, room=room, bytes_max=bytes_max):
                taken = stream.take(rows_max=rows_max, bytes_max=bytes_max)
            turns.charge(stream, stream.lane.tier, len(taken))
            if taken:
                self._backlog.published(stream, len(taken))
                batch += taken
                room -= len(taken)
                room_bytes -= sum([sent.row.size_bytes for sent in taken])
                self._offer(stream)
        if batch:
            await self._send(batch)

    def choose(self, due: Sequence[Due]) -> Sequence[Due]:
        """Those of *due* that may be published now; what must wait is left for the next look."""
        room, room_bytes = self._limits.window - self._backlog.unpersisted, self._limits.batch_bytes
        chosen: list[Due] = []
        for one in due:
            stream = self._backlog.stream_of(one.lane, tenant_hash=one.tenant_hash, bucket=one.bucket)
            if stream.held_until is not None or self._is_leaving(stream):
                continue
            if not self._directory.is_open(one.lane):
                self._directory.want(stream)
                continue
            if stream.outstanding and not self._flight.is_proven(one.lane):
                continue
            room_bytes -= one.payload_bytes
            if len(chosen) >= room or (chosen and room_bytes < 0):
                break
            chosen.append(one)
        return chosen

    async def retry(self, claimed: Sequence[Claimed]) -> None:
        """Publish deferred events that were claimed."""
        batch: list[Sent] = []
        for one in claimed:
            stream = self._backlog.stream_of(one.lane, tenant_hash=one.tenant_hash, bucket=one.bucket)
            self._outcomes.unsettled_retries += 1
            self._backlog.unpersisted += 1
            stream.outstanding += 1
            batch.append(Sent(Row(0, one.event), stream, Retry(one.attempts)))
        if batch:
            await self._send(batch)

    async def hear(self, timeout_s: float) -> int:
        """Wait up to *timeout_s* for the broker's answers, and apply them; return how many there were."""
        settlements = await self._publisher.settlements(timeout_s=timeout_s)
        if settlements:
            self._losses = 0
            self._outcomes.hear(settlements, time.monotonic())
        return len(settlements)

    def unread(self) -> AbstractContextManager[None]:
        """Let the broker's answers gather within it."""
        return self._publisher.unread()

    async def lost(self, error: BrokerUnavailable, now: float) -> None:
        """The connection is of no use any more. What is unsettled stays, and is sent again on the next one."""
        self._losses += 1
        self._open_at = now + backoff_s(
            self._losses, base_s=_REOPEN_BASE_S, cap_s=_REOPEN_CAP_S, jitter=Jitter.FULL, rng=self._rng
        )
        if self._is_open:
            self._gauges.broker_losses += 1
            log.warning("broker lost", reason=str(error), unsettled=len(self._flight))
        elif self._losses == 1:
            log.warning("broker unreachable", reason=str(error))
        self._is_open = self._is_blocked = False
        await self._directory.interrupted()
        # Its confirms would be taken for those of rows that are sent again under other tags.
        await self._publisher.close()

    async def close(self) -> None:
        """Close the connection, whatever is unsettled."""
        await self._directory.interrupted()
        await self._publisher.close()

    def show(self) -> None:
        """Write the gauges."""
        gauges = self._gauges
        gauges.is_broker_up = self._is_open
        gauges.is_blocked = self._is_blocked
        gauges.in_flight = len(self._flight)
        gauges.unpersisted = self._backlog.unpersisted
        gauges.streams = len(self._backlog.streams)
        gauges.held_lanes = self._outcomes.held
        gauges.faulty_lanes = self._outcomes.faulty

    async def _open(self, now: float) -> None:
        await self._within(self._publisher.open(), "a connection")
        self._is_open = True
        log.info("broker connected")
        self._outcomes.reconnected()
        self._flight.resumed(now)

    def _rows_max(self, stream: Stream, room: int) -> int:
        """How many rows the lane may have of its turn; none where it must wait, and is offered again when it need not.

        One row may go to a lane that is not proven, and the rest of a turn as soon as that is confirmed.
        """
        if not stream.has_more or stream.held_until is not None or self._is_leaving(stream):
            return 0
        if not self._directory.is_open(stream.lane):
            self._directory.want(stream)
            return 0
        return min(self._limits.chunk, room, self._allowed(stream) - stream.outstanding)

    async def _read(self, stream: Stream, rows_max: int, *, room: int, bytes_max: int) -> bool:
        """Read on where a range is next; False where none is, or where it is better to wait."""
        piece = stream.current()
        if piece is None or stream.outstanding > self._allowed(stream) // 2:
            # A read for a few rows costs as much as one for many; the next confirm offers the lane again.
            return False
        await self._keep()
        several = readable(piece, rows_max=self._limits.batch, bytes_max=self._limits.chunk_bytes)
        if len(several) > 1:
            await self._reader.fill_all(several)
        else:
            # Nor is it worth while for the few that are left of a window: the rest is in hand when there is room again.
            is_proven = self._flight.is_proven(stream.lane)
            rows_min = self._limits.chunk // 8 if is_proven else min(self._limits.chunk, room)
            await self._reader.fill(stream, piece, rows_max=max(rows_max, rows_min), bytes_max=bytes_max)
        return True

    def _allowed(self, stream: Stream) -> int:
        """How many rows the lane may have with the broker."""
        if not self._flight.is_proven(stream.lane):
            return 1
        free = self._limits.window - self._backlog.unpersisted
        return max(1, min(free * WEIGHTS[stream.lane.tier] // _WEIGHT_MAX, int(stream.pace.room)))

    async def _send(self, sents: Sequence[Sent], *, is_again: bool = False) -> None:
        # All are launched before any is sent: if the connection is lost half-way they keep their order.
        self._flight.launch(sents, time.monotonic())
        apart = self._outcomes.try_first(sents)
        sents = [sent for sent in sents if not sent.is_nacked]
        self._sent += len(sents)
        self._gauges.published += len(sents)
        self._gauges.resent += len(sents) if is_again else 0
        for start in range(0, len(sents), self._limits.batch):
            batch = [
                Outgoing(tag=sent.tag, lane=sent.stream.lane, event=sent.row.event, is_apart=sent.stream in apart)
                for sent in sents[start : start + self._limits.batch]
            ]
            # A slow broker takes longer than a lease for all of them; and one who was replaced sends no more.
            await self._keep()
            await self._within(self._publisher.send(batch), f"{len(batch)} messages taken")

    async def _within(self, talk: Awaitable[T], what: str) -> T:
        seconds = self._limits.wait_s
        try:
            async with asyncio.timeout(seconds):
                return await talk
        except TimeoutError:
            raise BrokerUnavailable(f"broker: want {what} within {seconds:g} s") from None
