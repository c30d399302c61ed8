"""Whatever is persisted when, a crash loses nothing, and repeats no more than what counts as unpersisted."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from outbox.event import Tier
from relay.decide.backlog import Backlog, Cohort, Positions
from relay.decide.pending import Place
from relay.decide.pieces import Extent, Part, Piece, Row, Sent, Stream, StreamPosition
from tests.unit.relay.rows import row

GROUP, TIER, PLENTY = "default", Tier.STANDARD, 1 << 30
BUCKETS = {"acme": 1, "beta": 1, "zeta": 2}
# Snapshots are numbers. One of the buckets was taken over from somebody who had not come so far.
BASES, NOW = {1: 3, 2: 0}, 3


class Persisting(RuleBasedStateMachine):
    """A backlog, the log it is filled from, and the positions that were stored."""

    def __init__(self) -> None:
        super().__init__()
        self.now = NOW
        self.log: list[tuple[int, str, Row]] = []
        for at in range(1, NOW + 1):
            self._write(at, "zeta")
        self.backlog = Backlog(cohorts=[Cohort(str(base), {bucket: (GROUP,)}) for bucket, base in BASES.items()])
        self.bases, self.streams = dict(BASES), dict[str, StreamPosition]()
        self.under_way: Positions | None = None
        self.flying: list[Sent] = []
        self.published, self.settled = set[int](), set[int]()

    @rule(tenants=st.lists(st.sampled_from(sorted(BUCKETS)), max_size=4))
    def commit(self, tenants: list[str]) -> None:
        self.now += 1
        for tenant in tenants:
            self._write(self.now, tenant)

    @rule(which=st.sampled_from([slice(1), slice(None), slice(1, None)]), is_range=st.booleans())
    def read(self, which: slice, is_range: bool) -> None:
        for one in self.backlog.cohorts[which]:
            self.backlog.add(one.base, str(self.now), self._parts(one, is_range=is_range), one.members)
            one.base = str(self.now)
        self.backlog.merge_cohorts()

    @rule(tenants=st.lists(st.sampled_from(sorted(BUCKETS)), min_size=1, max_size=4))
    def publish_at_once(self, tenants: list[str]) -> None:
        """What a steady relay does all the time."""
        self.commit(tenants)
        self.read(slice(None), is_range=False)
        for stream in self.backlog.streams.values():
            self._publish_all(stream)

    @precondition(lambda self: self.backlog.streams)
    @rule(data=st.data(), rows_max=st.integers(1, 3))
    def publish(self, data: st.DataObject, rows_max: int) -> None:
        stream = data.draw(st.sampled_from(list(self.backlog.streams.values())))
        piece = stream.current()
        if piece is not None and (after := piece.read_after) is not None:
            piece.fill(self._rows(stream.lane.tenant, int(piece.lo), int(piece.hi), after, piece.z)[:rows_max])
        taken = stream.take(rows_max=rows_max, bytes_max=PLENTY)
        self.backlog.published(stream, len(taken))
        self.flying += taken
        self.published.update(sent.row.seq for sent in taken)

    @precondition(lambda self: self.flying)
    @rule(which=st.integers(0, 1000))
    def settle(self, which: int) -> None:
        sent = self.flying.pop(which % len(self.flying))
        sent.is_settled = True
        sent.stream.outstanding -= 1
        assert isinstance(sent.origin, Piece)
        sent.origin.settle()
        self.settled.add(sent.row.seq)

    @rule(
        keep_rows_max=st.sampled_from([0, 2, PLENTY, PLENTY]),
        must_move=st.sets(st.sampled_from([(GROUP, bucket) for bucket in BASES]), max_size=1),
    )
    def begin_to_persist(self, keep_rows_max: int, must_move: set[Place]) -> None:
        self.persist()
        self.under_way = self.backlog.positions(retries=0, keep_rows_max=keep_rows_max, must_move=must_move)

    @rule()
    def persist(self) -> None:
        if self.under_way is None:
            return
        positions, self.under_way = self.under_way, None
        self.bases |= {bucket: int(base) for _, bucket, base in positions.bases}
        for _, _, tenant in positions.caught_up:
            del self.streams[tenant]
        self.streams |= {stream.lane.tenant: stream for stream in positions.streams}
        self.backlog.persisted(positions)

    @invariant()
    def a_crash_loses_nothing(self) -> None:
        assert {one.seq for _, _, one in self.log} - self.settled <= self._again()

    @invariant()
    def a_crash_repeats_what_counts_as_unpersisted_and_no_more(self) -> None:
        assert len(self._again() & self.published) <= self.backlog.unpersisted

    def teardown(self) -> None:
        """Once everything is settled, the positions say so after two more, and room is free again."""
        while self.backlog.streams and any(one.has_more or one.outstanding for one in self.backlog.streams.values()):
            for stream in list(self.backlog.streams.values()):
                self._publish_all(stream)
            while self.flying:
                self.settle(0)
        for _ in range(2):
            self.begin_to_persist(keep_rows_max=PLENTY, must_move=set())
            self.persist()
        assert (self.backlog.unpersisted, self.backlog.is_lagging, self.streams) == (0, False, {})

    def _publish_all(self, stream: Stream) -> None:
        while (piece := stream.current()) is not None:
            if (after := piece.read_after) is not None:
                piece.fill(self._rows(stream.lane.tenant, int(piece.lo), int(piece.hi), after, piece.z))
            taken = stream.take(rows_max=PLENTY, bytes_max=PLENTY)
            self.backlog.published(stream, len(taken))
            self.flying += taken
            self.published.update(sent.row.seq for sent in taken)

    def _write(self, at: int, tenant: str) -> None:
        self.log.append((at, tenant, row(len(self.log) + 1, tenant=tenant)))

    def _rows(self, tenant: str, lo: int, hi: int, after: int = 0, z: int = PLENTY) -> list[Row]:
        return [one for at, of, one in self.log if of == tenant and lo < at <= hi and after < one.seq <= z]

    def _parts(self, cohort: Cohort, *, is_range: bool) -> list[Part]:
        parts = []
        for tenant, bucket in BUCKETS.items():
            rows = self._rows(tenant, int(cohort.base), self.now) if bucket in cohort.members else []
            if rows:
                extent = Extent(len(rows), 2 * len(rows)) if is_range else None
                hand = None if is_range else rows
                parts.append(Part(TIER, tenant, 1, bucket, rows[0].seq - 1, rows[-1].seq, hand, extent))
        return parts

    def _again(self) -> set[int]:
        """What whoever takes over would publish: by the streams, and by the bases for everybody else."""
        again: set[int] = set()
        for tenant, bucket in BUCKETS.items():
            stream = self.streams.get(tenant)
            if stream is None:
                again |= {one.seq for one in self._rows(tenant, self.bases[bucket], self.now)}
            else:
                again |= {
                    one.seq
                    for one in self._rows(tenant, int(stream.lo), int(stream.hi), stream.after, stream.z)
                    + self._rows(tenant, int(stream.hi), self.now)
                }
        return again


TestPersisting = Persisting.TestCase
TestPersisting.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
