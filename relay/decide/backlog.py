"""What a relay holds in memory: its cohorts of buckets, the streams of its lanes, and what persisting them means.

A *cohort* is buckets that share a base. A relay that runs steadily has one; buckets that were just taken
over, or whose window was too large to bring along, are cohorts of their own until they have caught up, so
they never hold the others. Bases are stored short of what is on its way, see ``relay.decide.stops``, and while a
large window is published stay as they are for buckets whose lanes are not done with it, see ``relay.decide.pending``.
No clock, no I/O.
"""

import sys
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter
from typing import Final

from outbox.event import Tier
from outbox.naming import Lane
from relay.decide.pending import Pending, Place
from relay.decide.pieces import Part, Piece, Stream, StreamPosition
from relay.decide.stops import Stop, Stops

StreamKey = tuple[str, Tier, str]
"""Group, tier and tenant: a lane's key where making a Lane would cost too much."""

_ALL: Final = sys.maxsize


@dataclass(slots=True, eq=False)
class Cohort:
    """Buckets published up to *base*, save for the streams; each with the groups that are ours."""

    base: str
    members: dict[int, tuple[str, ...]]
    is_busy: bool = False
    """A read of its next window is under way, or its buckets are leaving; nobody else may move the base."""

    @property
    def buckets(self) -> list[int]:
        """What a read of its window asks for."""
        return sorted(self.members)


@dataclass(frozen=True, slots=True, kw_only=True)
class Positions:
    """What one persist writes: bases that moved, streams that moved, and streams that caught up."""

    bases: Sequence[tuple[str, int, str]]
    """Group, bucket, base."""
    streams: Sequence[StreamPosition]
    caught_up: Sequence[StreamKey]
    settled: int
    """How many published rows they go past."""
    settled_of: Mapping[Place, int]
    """How many of these are of the log, by group and bucket."""


@dataclass(slots=True, eq=False)
class Backlog:
    """Everything read and not yet persisted, and everything known to be unread."""

    cohorts: list[Cohort] = field(default_factory=list)
    streams: dict[StreamKey, Stream] = field(default_factory=dict)
    unpersisted: int = 0
    """How many rows were published past the stored positions, deferred ones among them; as many come again after a
    crash."""
    is_lagging: bool = False
    """Whether the last positions that were asked for are not the latest: ask again soon, also when nothing happens."""
    _windows: int = 0
    """How many windows were taken in."""
    _pending: Pending = field(default_factory=Pending)
    _streams_of: dict[Place, dict[StreamKey, Stream]] = field(default_factory=dict)
    _published: Counter[Place] = field(default_factory=Counter)
    """How many rows of the log were published past the stored positions."""
    _stops: Stops = field(default_factory=Stops)
    _ended: dict[Place, Counter[int]] = field(default_factory=dict)
    """How many of them were settled of pieces that are gone, by the number of their window."""
    _stored_streams: dict[StreamKey, StreamPosition] = field(default_factory=dict)
    _stored_bases: dict[tuple[str, int], str] = field(default_factory=dict)

    def stream_of(self, lane: Lane, *, tenant_hash: int, bucket: int) -> Stream:
        """The stream of *lane*, made if there is none."""
        return self.streams.get(_key(lane)) or self._begin(lane, tenant_hash, bucket)

    def _begin(self, lane: Lane, tenant_hash: int, bucket: int) -> Stream:
        key = _key(lane)
        stream = self.streams[key] = Stream(lane=lane, tenant_hash=tenant_hash, bucket=bucket)
        self._streams_of.setdefault((lane.group, bucket), {})[key] = stream
        return stream

    def published(self, stream: Stream, rows: int) -> None:
        """So many rows of *stream* were taken to be published."""
        self.unpersisted += rows
        self._published[stream.lane.group, stream.bucket] += rows

    def add(
        self,
        lo: str,
        hi: str,
        parts: Sequence[Part],
        members: Mapping[int, Sequence[str]],
        *,
        without: Collection[StreamKey] = (),
    ) -> list[Stream]:
        """Take in window ``(lo, hi]`` of the buckets in *members*, for each of their groups; return what has grown.

        That is in the order of *parts*, and where these were too many to bring along in the order of buckets.
        """
        grown: list[Stream] = []
        self._windows += 1
        counted: dict[Place, list[int]] = {}
        is_counted = bool(parts) and parts[0].extent is not None
        for part in sorted(parts, key=attrgetter("bucket")) if is_counted else parts:
            for group in members[part.bucket]:
                key = (group, part.tier, part.tenant)
                if key in without:
                    continue
                stream = self.streams.get(key) or self._begin(Lane(*key), part.tenant_hash, part.bucket)
                stream.add(
                    Piece(lo, hi, part.after, part.z, part.rows, part.extent, slots=part.slots, window=self._windows)
                )
                grown.append(stream)
                if part.extent is not None:
                    counted.setdefault((group, part.bucket), []).append(part.extent.rows)
        self._pending.expect(counted)
        return grown

    def resume(self, position: StreamPosition) -> Stream:
        """Take up a stored stream where it stands."""
        stream = self.stream_of(position.lane, tenant_hash=position.tenant_hash, bucket=position.bucket)
        stream.add(Piece(lo=position.lo, hi=position.hi, after=position.after, z=position.z))
        self._stored_streams[_key(position.lane)] = position
        return stream

    def merge_cohorts(self) -> None:
        """Make one of all cohorts that stand at the same base."""
        merged: dict[str, Cohort] = {}
        busy: list[Cohort] = []
        for cohort in self.cohorts:
            if cohort.is_busy:
                busy.append(cohort)
            elif cohort.base in merged:
                members = merged[cohort.base].members
                for bucket, groups in cohort.members.items():
                    members[bucket] = tuple(sorted({*members.get(bucket, ()), *groups}))
            else:
                merged[cohort.base] = cohort
        self.cohorts = [*merged.values(), *busy]

    def part(self, places: Collection[tuple[str, int]]) -> list[Cohort]:
        """Put these groups' buckets into cohorts of their own, which keep their base, and return those."""
        self._pending.forget(places)
        parted: list[Cohort] = []
        for cohort in self.cohorts:
            mine: dict[int, tuple[str, ...]] = {}
            for bucket, groups in cohort.members.items():
                going = tuple(group for group in groups if (group, bucket) in places)
                if going:
                    mine[bucket] = going
            if not mine:
                continue
            for bucket, going in mine.items():
                staying = tuple(group for group in cohort.members[bucket] if group not in going)
                if staying:
                    cohort.members[bucket] = staying
                else:
                    del cohort.members[bucket]
            parted.append(Cohort(base=cohort.base, members=mine, is_busy=True))
        self.cohorts = [cohort for cohort in self.cohorts if cohort.members] + parted
        return parted

    def forget(self, places: Collection[tuple[str, int]], parted: Collection[Cohort]) -> None:
        """These groups' buckets, which make up the *parted* cohorts, are another's: what is known of them is void."""
        self.cohorts = [cohort for cohort in self.cohorts if cohort not in parted]
        for place in places:
            # What was published of it and not settled comes again elsewhere: it takes up no room here.
            self.unpersisted -= self._published.pop(place, 0)
            for key in self._streams_of.pop(place, ()):
                del self.streams[key]
            self._stored_bases.pop(place, None)
            self._ended.pop(place, None)
            self._stops.forget(place)
        for key in [key for key, stored in self._stored_streams.items() if (key[0], stored.bucket) in places]:
            del self._stored_streams[key]

    def positions(self, *, retries: int, keep_rows_max: int = 0, must_move: Collection[Place] = ()) -> Positions:
        """What has to be stored now. Every stored base then means: all settled up to here, save for the streams.

        Args:
            retries: how many deferred rows are unsettled; they too come again after a crash.
            keep_rows_max: bases may stay, or stop before windows that their lanes are not done with, while what is
                settled and would come again all the same is no more than this. All move to the latest where it is 0.
            must_move: these do, come what may.
        """
        kept = self._kept(keep_rows_max, must_move)
        unsettled = self._unsettled(kept)
        stops = self._stops.look(
            {place: streams.values() for place, streams in unsettled.items()},
            self._ended,
            self._published,
            windows=self._windows,
            rows_max=keep_rows_max - self._pending.settled,
            must_move=must_move,
        )
        again = Counter({place: rows for place, rows in self._published.items() if place in kept})
        behind: dict[StreamKey, StreamPosition] = {}
        for place, streams in unsettled.items():
            latest = stops[place].latest if place in stops else _ALL
            for key, stream in streams.items():
                if stream.pieces[0].window <= latest:
                    behind[key] = stream.position()
                    again[place] += stream.unpersisted
                else:
                    again[place] += stream.published
        for place, rows in self._forget_ended(kept, stops).items():
            again[place] += rows
        stored = self._stored_streams
        self.is_lagging = bool(stops) or any(self._published[place] for place in kept)
        return Positions(
            bases=self._bases(kept, stops),
            streams=[position for key, position in behind.items() if stored.get(key) != position],
            caught_up=[
                key for key, position in stored.items() if key not in behind and (key[0], position.bucket) not in kept
            ],
            settled=self.unpersisted - retries - again.total(),
            settled_of={place: rows - again[place] for place, rows in self._published.items()},
        )

    def _kept(self, rows_max: int, must_move: Collection[Place]) -> Collection[Place]:
        """The places whose base stays as it is stored."""
        self._pending.forget(must_move if rows_max else list(self._pending.places))
        self._pending.look(self._published, self._outstanding, rows_max=rows_max)
        return self._pending.places

    def _outstanding(self, place: Place) -> int:
        return sum([stream.outstanding for stream in self._streams_of[place].values()])

    def _unsettled(self, kept: Collection[Place]) -> dict[Place, dict[StreamKey, Stream]]:
        """The streams of which anything is, save for places that are *kept*; forgets what is settled of all."""
        unsettled = {
            place: self._unsettled_of(place, streams)
            for place, streams in self._streams_of.items()
            if streams and place not in kept
        }
        return {place: streams for place, streams in unsettled.items() if streams}

    def _unsettled_of(self, place: Place, streams: dict[StreamKey, Stream]) -> dict[StreamKey, Stream]:
        unsettled: dict[StreamKey, Stream] = {}
        idle: list[StreamKey] = []
        ended = self._ended.get(place)
        for key, stream in streams.items():
            for piece in stream.drop_done():
                if ended is None:
                    ended = self._ended[place] = Counter()
                ended[piece.window] += piece.taken
            if stream.pieces:
                unsettled[key] = stream
            elif stream.is_idle:
                idle.append(key)
        for key in idle:
            del streams[key], self.streams[key]
        return unsettled

    def _forget_ended(self, kept: Collection[Place], stops: Mapping[Place, Stop]) -> dict[Place, int]:
        """Forget what bases will be past of pieces that are gone; return how many rows each place still has of them."""
        left: dict[Place, int] = {}
        for place in [place for place in self._ended if place not in kept]:
            ended = self._ended.pop(place)
            if place not in stops:
                continue
            rows_at = Counter({at: rows for at, rows in ended.items() if at > stops[place].latest})
            if rows_at:
                self._ended[place] = rows_at
                left[place] = rows_at.total()
        return left

    def _bases(self, kept: Collection[Place], stops: Mapping[Place, Stop]) -> list[tuple[str, int, str]]:
        """The bases that are not stored as they should be, by their snapshots."""
        moved: dict[str, list[tuple[str, int, str]]] = {}
        for cohort in self.cohorts:
            for bucket, groups in cohort.members.items():
                for group in groups:
                    place = (group, bucket)
                    if place in kept:
                        continue
                    stop = stops.get(place)
                    base = cohort.base if stop is None else stop.base
                    self._stops.passed(place, self._windows if stop is None else stop.latest)
                    if self._stored_bases.get(place) != base:
                        moved.setdefault(base, []).append((group, bucket, base))
        return list(chain.from_iterable(moved.values()))

    def persisted(self, positions: Positions) -> None:
        """*positions* are stored; what was published since they were asked for is not."""
        for position in positions.streams:
            self._stored_streams[_key(position.lane)] = position
        for key in positions.caught_up:
            del self._stored_streams[key]
        for group, bucket, base in positions.bases:
            self._stored_bases[group, bucket] = base
        self._published -= Counter(positions.settled_of)
        self.unpersisted -= positions.settled


def _key(lane: Lane) -> StreamKey:
    # A lane is one, by its type.
    return lane
