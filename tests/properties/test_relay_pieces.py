"""Any lane, any windows, any order of confirms, crashes anywhere: nothing is lost, and order holds."""

from dataclasses import dataclass, field
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from outbox.event import Tier
from outbox.naming import Lane
from relay.decide.pieces import Piece, Row, Sent, Stream, StreamPosition
from tests.unit.relay.rows import row

LANE = Lane(group="default", tier=Tier.STANDARD, tenant="acme")
PLENTY = 1 << 30


@dataclass(slots=True)
class Log:
    """What became visible between snapshots ``s0``, ``s1``, ...; numbers of one window may lie anywhere."""

    windows: list[list[int]]

    def rows(self, lo: str, hi: str, after: int, z: int) -> list[Row]:
        inside = self.windows[int(lo[1:]) : int(hi[1:])]
        return [row(seq) for seq in sorted(seq for window in inside for seq in window if after < seq <= z)]

    def piece(self, lo: int, hi: int, *, is_range: bool) -> Piece | None:
        inside = sorted(seq for window in self.windows[lo:hi] for seq in window)
        if not inside:
            return None
        rows = None if is_range else [row(seq) for seq in inside]
        return Piece(lo=f"s{lo}", hi=f"s{hi}", after=inside[0] - 1, z=inside[-1], rows=rows)


def new_stream() -> Stream:
    return Stream(lane=LANE, tenant_hash=1, bucket=1)


@dataclass(slots=True)
class Relay:
    """One lane's memory, the position stored for it, and what reached the broker."""

    log: Log
    stored: StreamPosition | None = None
    stored_base: int = 0
    base: int = 0
    stream: Stream = field(default_factory=new_stream)
    flying: list[Sent] = field(default_factory=list)
    arrived: list[int] = field(default_factory=list)

    def poll(self, *, is_range: bool) -> None:
        if self.base < len(self.log.windows):
            self._add(self.log.piece(self.base, self.base + 1, is_range=is_range))
            self.base += 1

    def publish(self, rows_max: int) -> None:
        piece = self.stream.current()
        if piece is not None and piece.read_after is not None:
            piece.fill(self.log.rows(piece.lo, piece.hi, piece.read_after, piece.z)[:rows_max])
        taken = self.stream.take(rows_max=rows_max, bytes_max=PLENTY)
        self.flying += taken
        self.arrived += [sent.row.seq for sent in taken]
        assert self.stream.is_in_order()

    def settle(self, index: int) -> None:
        if self.flying:
            sent = self.flying.pop(index % len(self.flying))
            sent.is_settled = True
            assert isinstance(sent.origin, Piece)
            sent.origin.settle()
            self.stream.outstanding -= 1

    def persist(self) -> None:
        self.stream.drop_done()
        self.stored = self.stream.position() if self.stream.pieces else None
        self.stored_base = self.base

    def crash(self, now: int) -> None:
        """Another relay takes over at snapshot *now* and reads the stored position."""
        self.flying.clear()
        self.stream = new_stream()
        self.base = max(now, self.stored_base)
        if self.stored is None:
            self._add(self.log.piece(self.stored_base, self.base, is_range=now % 2 == 0))
            return
        at = self.stored
        self._add(Piece(lo=at.lo, hi=at.hi, after=at.after, z=at.z))
        self._add(self.log.piece(int(at.hi[1:]), self.base, is_range=True))

    def _add(self, piece: Piece | None) -> None:
        if piece is not None:
            self.stream.add(piece)


@st.composite
def logs(draw: st.DrawFn) -> Log:
    sizes = draw(st.lists(st.integers(0, 6), min_size=1, max_size=8))
    numbers = draw(st.permutations(range(1, sum(sizes) + 1)))
    windows, start = [], 0
    for size in sizes:
        windows.append(sorted(numbers[start : start + size]))
        start += size
    return Log(windows)


ACTIONS = st.one_of(
    st.tuples(st.just("poll"), st.integers(0, 1)),
    st.tuples(st.just("publish"), st.integers(1, 4)),
    st.tuples(st.just("settle"), st.integers(0, 20)),
    st.tuples(st.just("persist"), st.just(0)),
    st.tuples(st.just("crash"), st.integers(0, 8)),
)


def act(relay: Relay, action: str, number: int) -> None:
    match action:
        case "poll":
            relay.poll(is_range=bool(number))
        case "publish":
            relay.publish(number)
        case "settle":
            relay.settle(number)
        case "persist":
            relay.persist()
        case _:
            relay.crash(min(number, len(relay.log.windows)))


@given(log=logs(), actions=st.lists(ACTIONS, max_size=60))
def test_every_event_arrives_and_after_what_it_depends_on(log: Log, actions: list[tuple[str, int]]) -> None:
    relay = Relay(log)
    for action, number in actions:
        act(relay, action, number)
    while relay.base < len(log.windows) or not relay.stream.is_idle:
        relay.poll(is_range=False)
        relay.publish(3)
        relay.settle(0)
        relay.persist()

    place = {seq: relay.arrived.index(seq) for window in log.windows for seq in window}  # raises if one is lost
    window_of = {seq: number for number, window in enumerate(log.windows) for seq in window}
    for earlier, later in combinations(sorted(place), 2):
        # Whatever serialised behind another has the higher number and is not visible before it.
        if window_of[earlier] <= window_of[later]:
            assert place[earlier] < place[later]


@given(log=logs(), confirms=st.lists(st.integers(0, 20), max_size=40))
def test_what_is_settled_before_the_stored_position_is_never_published_again(log: Log, confirms: list[int]) -> None:
    relay = Relay(log)
    for _ in log.windows:
        relay.poll(is_range=False)
    relay.publish(100)
    for index in confirms:
        relay.settle(index)
    unsettled = {sent.row.seq for sent in relay.flying}
    unpersisted_before = relay.stream.unpersisted
    relay.persist()
    assert relay.stream.unpersisted <= unpersisted_before
    bound = relay.stream.unpersisted
    published = len(relay.arrived)
    relay.crash(relay.base)
    while not relay.stream.is_idle:
        relay.publish(100)
        relay.settle(0)
        relay.persist()
    again = relay.arrived[published:]
    # Joined windows may hold what was not published at all; what was, comes again within the bound.
    assert unsettled <= set(again)
    assert sum(seq in relay.arrived[:published] for seq in again) <= bound
