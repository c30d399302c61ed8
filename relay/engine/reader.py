"""Fills the backlog from the log: steadily, after a takeover, and beside all that where a window is large."""

import asyncio
from collections.abc import Collection, Coroutine, Sequence
from dataclasses import dataclass
from typing import Final

from outbox.naming import Lane
from relay.decide.backlog import Cohort, StreamKey
from relay.decide.holdings import Holdings
from relay.decide.pieces import Extent, Part, Piece, Stream
from relay.decide.together import Together
from relay.gauges import Gauges
from relay.limits import Limits
from relay.log import heavy, ranges, ringlog
from relay.log.leases import Taken
from relay.log.sessions import Sessions

_BYTES_MIN: Final = 1
# A task whose connection was severed ends with the next turn of the event loop.
_SEVERED_S: Final = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class _Surveyed:
    """A cohort's window, too large to bring along."""

    cohort: Cohort
    hi: str
    parts: Sequence[Part]


@dataclass(frozen=True, slots=True, kw_only=True)
class _CaughtUp:
    """What waits in buckets that were taken, up to *hi*."""

    taken: Taken
    hi: str
    behind: Sequence[ringlog.Behind]
    windows: Sequence[tuple[Cohort, Sequence[Part]]]
    """Buckets by the base they were stored with, and what is new since."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Polled:
    """What one look at the log found."""

    has_found: bool
    has_scheduled: bool
    has_deferred: bool
    has_moves: bool


class Reader:
    """Reads on a connection of the tenure's own; large windows on one more, opened when there is one."""

    def __init__(self, sessions: Sessions, holdings: Holdings, *, limits: Limits, gauges: Gauges) -> None:
        self._sessions = sessions
        self._backlog = holdings.backlog
        self._offer = holdings.offer
        self._limits = limits
        self._gauges = gauges
        self._beside: set[asyncio.Task[_Surveyed | _CaughtUp]] = set()
        self._has_plans = False
        self._bounds = ringlog.Bounds(rows=limits.cap, bytes=limits.cap_bytes, seconds=limits.wait_s)
        self._large = ringlog.Bounds(rows=limits.cap, bytes=limits.cap_bytes, seconds=limits.survey_s)

    @property
    def beside(self) -> Collection[asyncio.Task[object]]:
        """The reads of large windows that are under way."""
        return self._beside

    async def poll(self, *, look_as: ringlog.Look | None) -> Polled:
        """Read what has become visible since the bases, and move them.

        Args:
            look_as: also ask what is due, and what has changed among the relays, for whom.
        """
        if not self._has_plans:
            self._has_plans = True
            await heavy.make_plans(self._sessions.hot, within_s=self._limits.wait_s)
        hi: str | None = None
        polled = Polled(has_found=False, has_scheduled=False, has_deferred=False, has_moves=False)
        for cohort in [one for one in self._backlog.cohorts if not one.is_busy]:
            window = await ringlog.window(
                self._sessions.hot,
                cohort.base,
                hi,
                cohort.buckets,
                self._bounds,
                look_as=look_as if hi is None else None,
            )
            polled = Polled(
                has_found=polled.has_found or window.parts is None or bool(window.parts),
                has_scheduled=polled.has_scheduled or window.has_scheduled,
                has_deferred=polled.has_deferred or window.has_deferred,
                has_moves=polled.has_moves or window.has_moves,
            )
            hi = window.hi
            parts = window.parts
            if parts is None:
                parts = await self._without_heavy(cohort, hi, window.heavy)
            if parts is None:
                cohort.is_busy = True
                self._start(self._survey(cohort, hi))
                self._gauges.surveys += 1
                continue
            self._take_in(cohort, hi, parts)
        self._backlog.merge_cohorts()
        return polled

    async def fill(self, stream: Stream, piece: Piece, *, rows_max: int, bytes_max: int) -> None:
        """Read the next rows of *piece*, which has none in hand."""
        after = piece.read_after
        if after is not None:
            bounds = ringlog.Bounds(rows=rows_max, bytes=max(_BYTES_MIN, bytes_max), seconds=self._limits.wait_s)
            piece.fill(await ranges.rows_of(self._sessions.hot, stream, piece, after, bounds))

    async def fill_all(self, pieces: Sequence[tuple[Stream, Piece]]) -> None:
        """Read the rows of all these *pieces*, of which nothing was read."""
        found = await ranges.rows_of_all(self._sessions.hot, pieces, within_s=self._limits.wait_s)
        for (_, piece), rows in zip(pieces, found, strict=True):
            piece.fill(rows)

    def catch_up(self, taken: Taken) -> None:
        """Begin to read what waits in buckets that were just taken. Until that is done, nothing moves in them."""
        self._start(self._read_taken(taken))

    def collect(self) -> None:
        """Take in what was read beside. Raises what went wrong there."""
        for task in [task for task in self._beside if task.done()]:
            self._beside.remove(task)
            match task.result():
                case _Surveyed() as surveyed:
                    surveyed.cohort.is_busy = False
                    self._take_in(surveyed.cohort, surveyed.hi, surveyed.parts)
                case _CaughtUp() as caught_up:
                    self._resume(caught_up)

    async def close(self) -> None:
        """Stop reading. Whoever wants that at once severs the sessions before: the driver asks the server to stop.

        One that is connecting, which nothing severs, is cancelled.
        """
        if self._beside:
            await asyncio.wait(self._beside, timeout=_SEVERED_S)
        for task in self._beside:
            task.cancel()
        await asyncio.gather(*self._beside, return_exceptions=True)
        self._beside.clear()

    def _start(self, reading: Coroutine[None, None, _Surveyed | _CaughtUp]) -> None:
        self._beside.add(asyncio.create_task(reading))

    async def _without_heavy(self, cohort: Cohort, hi: str, tenants: Sequence[str]) -> Sequence[Part] | None:
        """The parts of a window too large, where a few tenants make it so; then nobody waits for a survey."""
        parts = await heavy.parts_around(self._sessions.hot, cohort.base, hi, cohort.buckets, tenants, self._bounds)
        self._gauges.set_aside += parts is not None
        return parts

    async def _survey(self, cohort: Cohort, hi: str) -> _Surveyed:
        async with self._sessions.aside() as connection:
            parts = await ringlog.survey(connection, cohort.base, hi, cohort.buckets, within_s=self._limits.survey_s)
        return _Surveyed(cohort=cohort, hi=hi, parts=parts)

    async def _read_taken(self, taken: Taken) -> _CaughtUp:
        seconds = self._limits.survey_s
        async with self._sessions.aside() as connection:
            hi = await ringlog.snapshot(connection, within_s=self._limits.wait_s)
            places = [(group, bucket) for group, bucket, _ in taken.bases]
            behind = await ringlog.behind(connection, hi, places, within_s=seconds) if taken.streams else ()
            windows: list[tuple[Cohort, Sequence[Part]]] = []
            for cohort in _cohorts(taken):
                window = await ringlog.window(connection, cohort.base, hi, cohort.buckets, self._large)
                parts = window.parts
                if parts is None:
                    parts = await heavy.parts_around(
                        connection, cohort.base, hi, cohort.buckets, window.heavy, self._large
                    )
                if parts is None:
                    parts = await ringlog.survey(connection, cohort.base, hi, cohort.buckets, within_s=seconds)
                windows.append((cohort, parts))
        return _CaughtUp(taken=taken, hi=hi, behind=behind, windows=windows)

    def _take_in(self, cohort: Cohort, hi: str, parts: Sequence[Part]) -> None:
        self._have_grown(self._backlog.add(cohort.base, hi, parts, cohort.members))
        cohort.base = hi

    def _have_grown(self, streams: Sequence[Stream]) -> None:
        together = Together(Extent(self._limits.batch, self._limits.chunk_bytes))
        for stream in streams:
            together.put(stream)
            self._offer(stream)

    def _resume(self, caught_up: _CaughtUp) -> None:
        """Stored streams first: a lane that has one gets all it is owed through it, and nothing through the window."""
        resumed: dict[StreamKey, Stream] = {}
        for position in caught_up.taken.streams:
            resumed[_key(position.lane)] = self._backlog.resume(position)
        for behind in caught_up.behind:
            stream = resumed[behind.group, behind.tier, behind.tenant]
            stream.add(Piece(lo=stream.pieces[-1].hi, hi=caught_up.hi, after=behind.after, z=behind.z))
        for stream in resumed.values():
            self._offer(stream)
        for cohort, parts in caught_up.windows:
            self._have_grown(self._backlog.add(cohort.base, caught_up.hi, parts, cohort.members, without=resumed))
            cohort.base = caught_up.hi
            self._backlog.cohorts.append(cohort)
        self._backlog.merge_cohorts()


def _cohorts(taken: Taken) -> list[Cohort]:
    """The taken buckets by their stored base."""
    by_base: dict[str, dict[int, tuple[str, ...]]] = {}
    for group, bucket, base in taken.bases:
        members = by_base.setdefault(base, {})
        members[bucket] = (*members.get(bucket, ()), group)
    return [Cohort(base=base, members=members) for base, members in by_base.items()]


def _key(lane: Lane) -> StreamKey:
    return lane.group, lane.tier, lane.tenant
