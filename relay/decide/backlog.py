"""What a relay holds in memory: its cohorts of buckets, the streams of its lanes, and what persisting them means.

A *cohort* is buckets that share a base. A relay that runs steadily has one; buckets that were just taken
over, or whose window was too large to bring along, are cohorts of their own until they have caught up, so
they never hold the others. While a large window is published, bases stay stored as they are for buckets whose
lanes are not done with it; see ``relay.decide.pending``. No clock, no I/O.
"""

import sys
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final, NamedTuple

from outbox.event import Tier
from outbox.naming import Lane
from relay.decide.pending import Pending, Place
from relay.decide.pieces import Part, Piece, Stream, StreamPosition

StreamKey = tuple[str, Tier, str]
"""Group, tier and tenant: a lane's key where making a Lane would cost too much."""

_ALL: Final = sys.maxsize


class Mark(NamedTuple):
    """A base, and how many windows had been taken in when a cohort stood there."""

    base: str
    windows: int


@dataclass(slots=True, eq=False)
class Cohort:
    """Buckets published up to *base*, save for the streams; each with the groups that are ours."""

    base: str
    members: dict[int, tuple[str, ...]]
    is_busy: bool = False
    """A read of its next window is under way, or its buckets are leaving; nobody else may move the base."""
    mark: "Mark | None" = None
    """Where it stood when positions were last asked for."""

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
    _ended: Counter[tuple[Place, int]] = field(default_factory=Counter)
    """How many of them were settled of pieces that are gone, by the number of their window."""
    _stored_streams: dict[StreamKey, StreamPosition] = field(default_factory=dict)
    _stored_bases: dict[tuple[str, int], str] = field(default_factory=dict)

    def stream_of(self, lane: Lane, *, tenant_hash: int, bucket: int) -> Stream:
        """The stream of *lane*, made if there is none."""
        key = (lane.group, lane.tier, lane.tenant)
        stream = self.streams.get(key)
        if stream is None:
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
                stream = self.streams.get(key)
                if stream is None:
                    lane = Lane(group=group, tier=part.tier, tenant=part.tenant)
                    stream = self.stream_of(lane, tenant_hash=part.tenant_hash, bucket=part.bucket)
                stream.add(Piece(lo, hi, part.after, part.z, part.rows, part.extent, window=self._windows))
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
                # Where one of them stood before, the other did not.
                merged[cohort.base].mark = None
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
        for key in [key for key, stored in self._stored_streams.items() if (key[0], stored.bucket) in places]:
            del self._stored_streams[key]
        self._ended = Counter({(place, at): rows for (place, at), rows in self._ended.items() if place not in places})

    def positions(
        self, *, retries: int, may_lag: bool = False, keep_rows_max: int = 0, must_move: Collection[Place] = ()
    ) -> Positions:
        """What has to be stored now. Every stored base then means: all settled up to here, save for the streams.

        With *may_lag* the bases may be those of the last call. What was published since would come again after a
        crash; but hardly anything from before is still unsettled, so no lane needs a stream for what is merely on its
        way, and none is written now to be deleted the next time.

        Args:
            retries: how many deferred rows are unsettled; they too come again after a crash.
            keep_rows_max: buckets that are not done with a large window keep their stored base while what is settled
                of it, and would come again all the same, is no more than this. All move where it is 0.
            must_move: these do, come what may.
        """
        kept = self._kept(keep_rows_max, must_move)
        unsettled = self._unsettled(kept)
        marks = self._marks(may_lag=may_lag and bool(unsettled))
        latest = marks[0].windows if self.is_lagging else _ALL
        behind = {key: stream.position() for key, stream in unsettled.items() if stream.pieces[0].window <= latest}
        self._ended = Counter({(place, at): rows for (place, at), rows in self._ended.items() if at > latest})
        again = Counter({place: rows for place, rows in self._published.items() if place in kept})
        for (place, _), rows in self._ended.items():
            again[place] += 0 if place in kept else rows
        for key, stream in unsettled.items():
            again[key[0], stream.bucket] += stream.unpersisted if key in behind else stream.published
        stored = self._stored_streams
        self.is_lagging = self.is_lagging or any(self._published[place] for place in kept)
        return Positions(
            bases=[
                (group, bucket, mark.base)
                for cohort, mark in zip(self.cohorts, marks, strict=True)
                for bucket, groups in cohort.members.items()
                for group in groups
                if self._stored_bases.get((group, bucket)) != mark.base and (group, bucket) not in kept
            ],
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

    def _unsettled(self, kept: Collection[Place]) -> dict[StreamKey, Stream]:
        """The streams of which anything is, save for places that are *kept*; forgets what is settled of all."""
        unsettled: dict[StreamKey, Stream] = {}
        for place, streams in self._streams_of.items():
            if place in kept:
                continue
            idle: list[StreamKey] = []
            for key, stream in streams.items():
                for piece in stream.drop_done():
                    self._ended[place, piece.window] += piece.taken
                if stream.pieces:
                    unsettled[key] = stream
                elif stream.is_idle:
                    idle.append(key)
            for key in idle:
                del streams[key], self.streams[key]
        return unsettled

    def _marks(self, *, may_lag: bool) -> list[Mark]:
        """What to store of each cohort; only one that is alone and at rest can lag."""
        marks = [Mark(cohort.base, self._windows) for cohort in self.cohorts]
        before = self.cohorts[0].mark if may_lag and len(marks) == 1 and not self.cohorts[0].is_busy else None
        self.is_lagging = before is not None and before.base != marks[0].base
        for cohort, mark in zip(self.cohorts, marks, strict=True):
            cohort.mark = mark
        return [before] if before is not None and self.is_lagging else marks

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
    return lane.group, lane.tier, lane.tenant
