from outbox.event import Tier
from outbox.naming import Lane
from relay.decide.pieces import Extent, Piece, Stream
from relay.decide.together import Together, readable
from tests.unit.relay.rows import row

MOST = Extent(10, 1000)


def stream(tenant: str, rows: int, *, payload_bytes: int = 1, tier: Tier = Tier.STANDARD) -> Stream:
    one = Stream(lane=Lane("default", tier, tenant), tenant_hash=1, bucket=1)
    one.add(Piece("a", "b", 0, 1 << 40, extent=Extent(rows, payload_bytes), slots=1))
    return one


def beside(first: Stream, *, rows_max: int = 10) -> list[str]:
    return [one.lane.tenant for one, _ in readable(first.pieces[0], rows_max=rows_max, bytes_max=1000)]


def put(*streams: Stream) -> None:
    together = Together(MOST)
    for one in streams:
        together.put(one)


def test_small_ones_of_a_tier_are_read_together_up_to_what_a_read_may_bring() -> None:
    first, second, third = stream("first", 5), stream("second", 5), stream("third", 5)
    bulk = stream("bulk", 1, tier=Tier.BULK)
    put(first, bulk, second, third)
    assert beside(first) == beside(second) == ["first", "second"]
    assert (beside(third), beside(bulk)) == (["third"], ["bulk"])


def test_one_that_is_too_large_or_of_unknown_size_is_read_alone() -> None:
    rows, heavy, unknown = stream("rows", 11), stream("heavy", 1, payload_bytes=1001), stream("unknown", 1)
    unknown.pieces[0].unread = None
    put(rows, heavy, unknown)
    assert beside(rows) == beside(heavy) == beside(unknown) == []


def test_those_that_were_read_are_held_or_have_older_ones_before_them_are_not_read_along() -> None:
    first, was_read, held, has_older = stream("first", 1), stream("read", 1), stream("held", 1), stream("older", 1)
    has_older.pieces.insert(0, Piece("0", "a", 0, 1, [row(1)]))
    put(first, was_read, held, has_older)
    was_read.pieces[0].fill([])
    held.held_until = 1.0
    assert beside(first) == ["first"]


def test_what_grew_since_is_read_only_as_far_as_it_fits() -> None:
    first, second = stream("first", 5), stream("second", 5)
    put(first, second)
    assert beside(second, rows_max=9) == []
    assert beside(first, rows_max=9) == ["first"]
