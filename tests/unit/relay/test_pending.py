from collections.abc import Iterable

from outbox.event import Tier
from relay.decide import stops
from relay.decide.backlog import Backlog, Cohort, Positions
from relay.decide.pending import PATIENCE
from relay.decide.pieces import Extent, Part, Piece, Sent
from tests.unit.relay.rows import row

BUCKETS, LANES, EACH = 4, 5, 2
ALL = BUCKETS * LANES * EACH
PLENTY = 1 << 30


def surveyed(*, each: int = EACH) -> Backlog:
    """A backlog that has met window (a, b], too large to bring along: as much of each lane, five lanes a bucket."""
    backlog = Backlog(cohorts=[Cohort("a", {bucket: ("default",) for bucket in range(BUCKETS)})])
    for _ in range(2 * PATIENCE):  # it may have been quiet for long
        persist(backlog)
    parts = [
        Part(Tier.STANDARD, f"{lane}-{bucket}", 1, bucket, 0, PLENTY, None, Extent(each, each))
        for lane in range(LANES)
        for bucket in range(BUCKETS)
    ]
    backlog.add("a", "b", parts, backlog.cohorts[0].members)
    backlog.cohorts[0].base = "b"
    return backlog


def publish(backlog: Backlog, lanes: Iterable[str]) -> list[Sent]:
    sents: list[Sent] = []
    for tenant in lanes:
        stream = backlog.streams["default", Tier.STANDARD, tenant]
        piece = stream.current()
        assert piece is not None
        piece.fill([row(1, tenant=tenant), row(PLENTY, tenant=tenant)])
        taken = stream.take(rows_max=EACH, bytes_max=PLENTY)
        backlog.published(stream, len(taken))
        sents += taken
    return sents


def settle(sents: Iterable[Sent]) -> None:
    for sent in sents:
        sent.is_settled = True
        sent.stream.outstanding -= 1
        assert isinstance(sent.origin, Piece)
        sent.origin.settle()


def persist(backlog: Backlog, *, rows_max: int = PLENTY) -> Positions:
    positions = backlog.positions(retries=0, keep_rows_max=rows_max)
    backlog.persisted(positions)
    return positions


def of_bucket(bucket: int) -> list[str]:
    return [f"{lane}-{bucket}" for lane in range(LANES)]


def stored(positions: Positions) -> tuple[list[int], list[str]]:
    """The buckets whose bases are moved, and the tenants that get a stream row."""
    return [bucket for _, bucket, _ in positions.bases], sorted(one.lane.tenant for one in positions.streams)


def test_lanes_of_a_large_window_take_their_turns_bucket_by_bucket() -> None:
    backlog = surveyed()
    assert [stream.bucket for stream in backlog.streams.values()] == sorted([*range(BUCKETS)] * LANES)


def test_a_large_window_of_many_lanes_is_published_without_a_stream_row_for_any() -> None:
    backlog = surveyed()
    assert stored(persist(backlog)) == ([], [])
    for bucket in range(BUCKETS):
        *most, last = publish(backlog, of_bucket(bucket))
        settle(most)
        assert stored(persist(backlog)) == ([], [])
        assert (backlog.unpersisted, backlog.is_lagging) == (LANES * EACH, True)
        settle([last])
        assert stored(persist(backlog)) == ([bucket], [])
        assert (backlog.unpersisted, backlog.is_lagging) == (0, False)
    assert backlog.streams == {}


def test_lanes_with_much_of_it_are_not_waited_for() -> None:
    few, much = surveyed(each=20), surveyed(each=21)
    for _ in range(stops.PATIENCE):
        assert [stored(persist(one)) for one in (few, much)] == [([], []), ([], [])]
    assert stored(persist(few)) == ([], [])
    assert len(persist(much).streams) == BUCKETS * LANES


def test_more_that_is_settled_than_may_come_again_moves_the_base_of_who_has_most() -> None:
    backlog = surveyed()
    settle(publish(backlog, of_bucket(0)[:3]) + publish(backlog, of_bucket(1)[:1]))
    assert stored(persist(backlog, rows_max=8)) == ([], [])
    assert stored(persist(backlog, rows_max=7)) == ([0], ["3-0", "4-0"])
    assert backlog.unpersisted == EACH


def test_lanes_that_keep_silent_get_their_rows_and_their_buckets_wait_no_more() -> None:
    backlog = surveyed()
    settle(publish(backlog, of_bucket(2)[1:]))
    publish(backlog, of_bucket(2)[:1])
    for _ in range(PATIENCE):
        assert stored(persist(backlog)) == ([], [])
    assert stored(persist(backlog)) == ([2], ["0-2"])
    assert backlog.unpersisted == EACH


def test_lanes_that_never_begin_get_their_rows_once_nobody_else_has_a_turn() -> None:
    backlog = surveyed()
    for bucket in range(1, BUCKETS):
        settle(publish(backlog, of_bucket(bucket)))
        assert stored(persist(backlog)) == ([bucket], [])
    for _ in range(PATIENCE):
        assert stored(persist(backlog)) == ([], [])
    assert stored(persist(backlog)) == ([0], of_bucket(0))


def test_a_bucket_that_must_move_does_and_the_others_wait_on() -> None:
    backlog = surveyed()
    sents = publish(backlog, [*of_bucket(0)[:1], *of_bucket(1)[:1]])
    positions = backlog.positions(retries=0, keep_rows_max=PLENTY, must_move=[("default", 1)])
    assert stored(positions) == ([1], of_bucket(1))
    backlog.persisted(positions)
    settle(sents)
    assert backlog.unpersisted == len(sents)


def test_a_bucket_that_leaves_goes_with_streams_for_what_is_left() -> None:
    backlog = surveyed()
    settle(publish(backlog, of_bucket(3)[:1]))
    parted = backlog.part([("default", 3)])
    positions = backlog.positions(retries=0, keep_rows_max=PLENTY, must_move=[("default", 3)])
    assert stored(positions) == ([3], of_bucket(3)[1:])
    backlog.persisted(positions)
    backlog.forget([("default", 3)], parted)
    assert (backlog.unpersisted, len(backlog.streams)) == (0, (BUCKETS - 1) * LANES)


def test_the_last_positions_of_all_keep_nothing_back() -> None:
    backlog = surveyed()
    settle(publish(backlog, of_bucket(0)))
    persist(backlog)
    assert stored(persist(backlog, rows_max=0)) == ([1, 2, 3], sorted(one for n in (1, 2, 3) for one in of_bucket(n)))
    assert backlog.unpersisted == 0
