"""Declares lanes on first use, writes them down, and tells their groups: then, when called, and every ten minutes.

What the broker is asked runs beside the engine: a queue takes tens of milliseconds to declare, and no other
lane waits for it. One that does not answer promptly is asked again apart, where it is waited for alone.

After a loss of the connection no lane is known to be well any more. Each is asked for before anything is sent
to it, since one whose queue hangs would take all that is sent behind it along.
"""

import asyncio
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import structlog

from outbox.naming import Lane, bucket_of, tenant_hash
from relay.decide.backlog import StreamKey
from relay.decide.pieces import Stream
from relay.limits import Limits
from relay.log import lanes
from relay.log.sessions import Sessions
from relay.ports import Announcement, LaneFault, LaneTopology

log = structlog.get_logger(__name__)

# Few where they have to be made, since the first lane's events wait for the last one's answer.
_DECLARED_AT_ONCE: Final = 8
_ASKED_AT_ONCE: Final = 64
_ANNOUNCED_AT_ONCE: Final = 100
# A queue that is well answers in milliseconds, and one that is made in tens of them.
_PROMPT_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What became of lanes that were wanted: *fault* is None for those that stand now."""

    stream: Stream
    fault: LaneFault | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    streams: Sequence[Stream]
    answer: asyncio.Task[Sequence[LaneFault]]


class Directory:
    """The lanes of one tenure."""

    def __init__(self, topology: LaneTopology, sessions: Sessions, *, limits: Limits) -> None:
        self._topology = topology
        self._sessions = sessions
        self._limits = limits
        self._recorded: set[Lane] = set()
        self._declared: set[Lane] = set()
        self._doubted: set[Lane] = set()
        self._silent: set[Lane] = set()
        self._has_lost = False
        self._places: set[tuple[str, int]] = set()
        self._starts: Mapping[str, datetime] = {}
        self._wanted: dict[Stream, None] = {}
        self._leaving: set[Lane] = set()
        self._postponed: dict[Stream, None] = {}
        self._to_announce: deque[Lane] = deque()
        self._asking: _Question | None = None
        self._asking_apart: _Question | None = None
        self._announcing: asyncio.Task[Sequence[LaneFault]] | None = None
        self._announced: Sequence[Lane] = ()
        self._announce_all_at = 0.0

    def is_declared(self, lane: Lane) -> bool:
        """Whether the lane stands and answers, as far as is known: one deleted since shows when an event comes back."""
        return lane in self._declared

    def is_open(self, lane: Lane) -> bool:
        """Whether anything new may be published to the lane: it is declared, and is not being off-boarded."""
        return lane in self._declared and lane not in self._leaving

    @property
    def leaving(self) -> Collection[Lane]:
        """The lanes that are being off-boarded."""
        return self._leaving

    @property
    def beside(self) -> Collection[asyncio.Task[object]]:
        """What is being asked of the broker."""
        asking = [question.answer for question in self._questions()]
        return asking if self._announcing is None else [*asking, self._announcing]

    def want(self, stream: Stream) -> None:
        """Have the lane declared, also if it was before; ``work`` gives the answer.

        One that is being off-boarded is declared when that has ended, save where something of it is unsettled.
        """
        if stream.lane in self._leaving and not stream.outstanding:
            self._postponed[stream] = None
            return
        self._declared.discard(stream.lane)
        self._wanted[stream] = None

    async def take(self, places: Collection[tuple[str, int]], now: float) -> None:
        """These groups and buckets are ours from now on: learn their lanes and tell the groups of them."""
        self._places.update(places)
        async with self._sessions.writing() as connection:
            self._starts = await lanes.group_starts(connection, within_s=self._limits.wait_s)
            self._recorded |= await lanes.recorded(connection, within_s=self._limits.wait_s)
        if not self._has_lost:
            self._declared |= self._recorded - {stream.lane for stream in self._wanted}
        self._announce_all_at = now

    def forget(self, places: Collection[tuple[str, int]]) -> None:
        """These groups and buckets are another's from now on."""
        self._places.difference_update(places)
        for streams in (self._wanted, self._postponed):
            for stream in [one for one in streams if (one.lane.group, one.bucket) in places]:
                del streams[stream]

    async def heed(self, token: int, streams: Mapping[StreamKey, Stream]) -> None:
        """Publish nothing new to lanes that are being off-boarded, and tell of ours that have nothing unsettled.

        Not before that may a queue be deleted: the broker confirms what is on its way to one that it deletes. Where
        events have come for a lane meanwhile it is declared again once it is gone.
        """
        async with self._sessions.writing() as connection:
            were, self._leaving = self._leaving, await lanes.leaving(connection, within_s=self._limits.wait_s)
            if were - self._leaving:
                # Gone, or kept after all.
                self._recorded |= await lanes.recorded(connection, within_s=self._limits.wait_s)
            # One that is being asked for would be bound again.
            asked = {stream.lane for question in self._questions() for stream in question.streams}
            quiet = {lane for lane in self._leaving - asked if not _outstanding(streams, lane)}
            for stream in [one for one in self._wanted if one.lane in quiet]:
                del self._wanted[stream]
                self._postponed[stream] = None
            self._recorded -= quiet
            self._declared -= quiet
            ours = [lane for lane in quiet if self._is_ours(lane)]
            if ours:
                await lanes.quiet(connection, token, ours, within_s=self._limits.wait_s)
        for stream in [one for one in self._postponed if one.lane not in self._leaving]:
            del self._postponed[stream]
            self.want(stream)

    async def work(self, now: float) -> Sequence[Answer]:
        """Go on with what is to be asked of the broker, never waiting for it; return what was answered.

        Raises:
            BrokerUnavailable: the connection is lost; call ``interrupted``.
        """
        answered = [question for question in self._questions() if question.answer.done()]
        # What failed speaks first: nobody would hear of an answer that was taken in before.
        faults = [fault for question in answered for fault in question.answer.result()]
        if self._announcing is not None and self._announcing.done():
            self._told(self._announcing.result())
            self._announcing = None
        answers: Sequence[Answer] = ()
        if answered:
            answers = await self._take_in([stream for question in answered for stream in question.streams], faults)
            self._asking = None if self._asking in answered else self._asking
            self._asking_apart = None if self._asking_apart in answered else self._asking_apart
        self._call_the_roll(now)
        self._go_on_asking()
        if self._announcing is None and self._to_announce:
            count = min(_ANNOUNCED_AT_ONCE, len(self._to_announce))
            self._announced = [self._to_announce.popleft() for _ in range(count)]
            self._announcing = asyncio.create_task(self._announce(self._announced))
        return answers

    async def interrupted(self) -> None:
        """The connection is lost: what was asked is asked again on the next."""
        asking = self.beside
        self._to_announce.extendleft(reversed(self._announced))
        self._asking = self._asking_apart = self._announcing = None
        self._announced = ()
        self._doubted |= self._declared
        self._declared.clear()
        self._has_lost = True
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)

    def doubt(self, lane: Lane) -> None:
        """*lane* may be unwell: it counts as declared again once it has answered."""
        self._declared.discard(lane)
        self._doubted.add(lane)

    def _go_on_asking(self) -> None:
        """Ask for lanes that are wanted, those that were silent apart from the others."""
        if self._asking is None:
            prompt = [stream for stream in self._wanted if stream.lane not in self._silent]
            has_new = any(stream.lane not in self._recorded for stream in prompt[:_ASKED_AT_ONCE])
            self._asking = self._ask(prompt[: _DECLARED_AT_ONCE if has_new else _ASKED_AT_ONCE], _PROMPT_S)
        if self._asking_apart is None:
            silent = [stream for stream in self._wanted if stream.lane in self._silent]
            self._asking_apart = self._ask(silent[:_DECLARED_AT_ONCE], self._limits.wait_s)

    def _questions(self) -> list[_Question]:
        return [question for question in (self._asking, self._asking_apart) if question is not None]

    def _ask(self, streams: Sequence[Stream], patience_s: float) -> _Question | None:
        if not streams:
            return None
        declaring = self._topology.declare([stream.lane for stream in streams], patience_s=patience_s)
        return _Question(streams=streams, answer=asyncio.ensure_future(declaring))

    async def _take_in(self, asked: Sequence[Stream], faults: Sequence[LaneFault]) -> Sequence[Answer]:
        by_lane = {fault.lane: fault for fault in faults}
        standing = [stream.lane for stream in asked if stream.lane not in by_lane]
        if standing:
            # Written down before anybody is told, so that no lane is known to a group and not to us.
            async with self._sessions.writing() as connection:
                new = await lanes.record(connection, standing, within_s=self._limits.wait_s)
            self._to_announce.extend(lane for lane in standing if lane in new or lane not in self._doubted)
        self._recorded.update(standing)
        self._declared.update(standing)
        self._doubted.difference_update(standing)
        self._silent -= {stream.lane for stream in asked}
        self._silent |= {fault.lane for fault in faults if fault.is_silent}
        # Only now, since buckets may have gone to another while that was written.
        still_wanted = [stream for stream in asked if stream in self._wanted]
        for stream in still_wanted:
            del self._wanted[stream]
        return [Answer(stream=stream, fault=by_lane.get(stream.lane)) for stream in still_wanted]

    def _told(self, faults: Sequence[LaneFault]) -> None:
        for fault in faults:
            log.warning("lane not announced", lane=fault.lane.queue, reason=fault.reason)
        self._announced = ()

    def _call_the_roll(self, now: float) -> None:
        called = self._topology.roll_calls()
        if now >= self._announce_all_at:
            self._announce_all_at = now + self._limits.announce_every_s
            called = frozenset(group for group, _ in self._places)
        if called:
            waiting = {*self._to_announce, *self._announced}
            self._to_announce.extend(
                lane for lane in self._recorded if lane.group in called and lane not in waiting and self._is_ours(lane)
            )

    def _is_ours(self, lane: Lane) -> bool:
        return (lane.group, bucket_of(tenant_hash(lane.tenant))) in self._places

    async def _announce(self, announced: Sequence[Lane]) -> Sequence[LaneFault]:
        return await self._topology.announce(
            [
                Announcement(lane=lane, group_started_at=self._starts[lane.group])
                for lane in announced
                if lane.group in self._starts and lane not in self._leaving
            ]
        )


def _outstanding(streams: Mapping[StreamKey, Stream], lane: Lane) -> int:
    stream = streams.get((lane.group, lane.tier, lane.tenant))
    return 0 if stream is None else stream.outstanding
