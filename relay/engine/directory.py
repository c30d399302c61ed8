"""Declares lanes on first use, writes them down, and tells their groups: then, when called, and every ten minutes.

What the broker is asked runs beside the engine: a queue takes tens of milliseconds to declare, and no other
lane waits for it. How long one may take is the adapter's to say, which knows when the broker is blocked.
"""

import asyncio
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import structlog

from outbox.naming import Lane, bucket_of, tenant_hash
from relay.decide.pieces import Stream
from relay.limits import Limits
from relay.log import lanes
from relay.log.sessions import Sessions
from relay.ports import Announcement, LaneFault, LaneTopology

log = structlog.get_logger(__name__)

# Few, since the first lane's events wait for the last one's answer.
_DECLARED_AT_ONCE: Final = 8
_ANNOUNCED_AT_ONCE: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What became of lanes that were wanted: *fault* is None for those that stand now."""

    stream: Stream
    fault: LaneFault | None


class Directory:
    """The lanes of one tenure."""

    def __init__(self, topology: LaneTopology, sessions: Sessions, *, limits: Limits) -> None:
        self._topology = topology
        self._sessions = sessions
        self._limits = limits
        self._declared: set[Lane] = set()
        self._places: set[tuple[str, int]] = set()
        self._starts: Mapping[str, datetime] = {}
        self._wanted: dict[Stream, None] = {}
        self._to_announce: deque[Lane] = deque()
        self._asking: asyncio.Task[Sequence[LaneFault]] | None = None
        self._asked_streams: Sequence[Stream] = ()
        self._asked_lanes: Sequence[Lane] = ()
        self._announce_all_at = 0.0

    def is_declared(self, lane: Lane) -> bool:
        """Whether the lane stands, as far as is known: a queue deleted since shows when an event comes back."""
        return lane in self._declared

    @property
    def is_asking(self) -> bool:
        """Whether an answer of the broker is awaited."""
        return self._asking is not None

    def want(self, stream: Stream) -> None:
        """Have the lane declared, also if it was before; ``work`` gives the answer."""
        self._declared.discard(stream.lane)
        self._wanted[stream] = None

    async def take(self, places: Collection[tuple[str, int]], now: float) -> None:
        """These groups and buckets are ours from now on: learn their lanes and tell the groups of them."""
        self._places.update(places)
        async with self._sessions.writing() as connection:
            self._starts = await lanes.group_starts(connection, within_s=self._limits.wait_s)
            self._declared |= await lanes.recorded(connection, within_s=self._limits.wait_s)
        self._declared -= {stream.lane for stream in self._wanted}
        self._announce_all_at = now

    def forget(self, places: Collection[tuple[str, int]]) -> None:
        """These groups and buckets are another's from now on."""
        self._places.difference_update(places)
        for stream in [one for one in self._wanted if (one.lane.group, one.bucket) in places]:
            del self._wanted[stream]

    async def work(self, now: float) -> Sequence[Answer]:
        """Go on with what is to be asked of the broker, never waiting for it; return what was answered.

        Raises:
            BrokerUnavailable: the connection is lost; call ``interrupted``.
        """
        answers: Sequence[Answer] = ()
        if self._asking is not None:
            if not self._asking.done():
                return answers
            answers = await self._answered(self._asking.result())
            self._asking = None
        self._call_the_roll(now)
        if self._wanted:
            self._asked_streams = list(self._wanted)[:_DECLARED_AT_ONCE]
            self._asking = asyncio.create_task(self._declare([stream.lane for stream in self._asked_streams]))
        elif self._to_announce:
            count = min(_ANNOUNCED_AT_ONCE, len(self._to_announce))
            self._asked_lanes = [self._to_announce[index] for index in range(count)]
            self._asking = asyncio.create_task(self._announce(self._asked_lanes))
        return answers

    async def interrupted(self) -> None:
        """The connection is lost: what was asked is asked again on the next."""
        asking, self._asking = self._asking, None
        self._asked_streams, self._asked_lanes = (), ()
        if asking is not None:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    async def _answered(self, faults: Sequence[LaneFault]) -> Sequence[Answer]:
        by_lane = {fault.lane: fault for fault in faults}
        streams, self._asked_streams = self._asked_streams, ()
        for _ in self._asked_lanes:
            self._to_announce.popleft()
        for lane in self._asked_lanes:
            if lane in by_lane:
                log.warning("lane not announced", lane=lane.queue, reason=by_lane[lane].reason)
        self._asked_lanes = ()
        answers = [Answer(stream=stream, fault=by_lane.get(stream.lane)) for stream in streams]
        standing = [answer.stream.lane for answer in answers if answer.fault is None]
        if standing:
            # Written down before anybody is told, so that no lane is known to a group and not to us.
            async with self._sessions.writing() as connection:
                await lanes.record(connection, standing, within_s=self._limits.wait_s)
            self._declared.update(standing)
            self._to_announce.extend(standing)
        for stream in streams:
            self._wanted.pop(stream, None)
        return answers

    def _call_the_roll(self, now: float) -> None:
        called = self._topology.roll_calls()
        if now >= self._announce_all_at:
            self._announce_all_at = now + self._limits.announce_every_s
            called = frozenset(group for group, _ in self._places)
        if called:
            waiting = set(self._to_announce)
            self._to_announce.extend(
                lane
                for lane in self._declared
                if lane.group in called
                and lane not in waiting
                and (lane.group, bucket_of(tenant_hash(lane.tenant))) in self._places
            )

    async def _announce(self, announced: Sequence[Lane]) -> Sequence[LaneFault]:
        return await self._topology.announce(
            [
                Announcement(lane=lane, group_started_at=self._starts[lane.group])
                for lane in announced
                if lane.group in self._starts
            ]
        )

    async def _declare(self, wanted: Sequence[Lane]) -> Sequence[LaneFault]:
        return await self._topology.declare(wanted)
