from outbox.event import Tier
from outbox.naming import Lane
from relay.decide.pieces import Piece, Sent, Stream
from tests.unit.relay.rows import row

LANE = Lane(group="default", tier=Tier.STANDARD, tenant="acme")
PLENTY = 1 << 30


def stream_of(*pieces: Piece) -> Stream:
    stream = Stream(lane=LANE, tenant_hash=1, bucket=1)
    for piece in pieces:
        stream.add(piece)
    return stream


def in_hand(lo: str, hi: str, *seqs: int) -> Piece:
    return Piece(lo=lo, hi=hi, after=seqs[0] - 1, z=seqs[-1], rows=[row(seq) for seq in seqs])


def take(stream: Stream, rows_max: int = 100) -> list[Sent]:
    return stream.take(rows_max=rows_max, bytes_max=PLENTY)


def settle(*sents: Sent) -> None:
    for sent in sents:
        sent.is_settled = True
        assert isinstance(sent.origin, Piece)
        sent.origin.settle()
        sent.stream.outstanding -= 1


def seqs(sents: list[Sent]) -> list[int]:
    return [sent.row.seq for sent in sents]


def test_the_position_is_the_end_of_the_settled_prefix_whatever_settles_first() -> None:
    stream = stream_of(in_hand("a", "b", 10, 11, 15))
    first, second, third = take(stream)
    settle(third, second)
    assert stream.drop_done() == []
    position = stream.position()
    assert (position.after, position.z) == (9, 15)
    settle(first)
    assert len(stream.drop_done()) == 1
    assert stream.is_idle


def test_a_later_window_waits_until_the_earlier_one_is_published() -> None:
    stream = stream_of(in_hand("a", "b", 20, 21), in_hand("b", "c", 5))
    assert seqs(take(stream, 1)) == [20]
    assert seqs(take(stream)) == [21, 5]
    assert not stream.has_more


def test_only_the_first_unsettled_window_is_stored_and_all_beyond_it_counts_as_unpersisted() -> None:
    stream = stream_of(in_hand("a", "b", 1, 2), in_hand("b", "c", 3, 4))
    one, two, three, four = take(stream)
    settle(two, three, four)
    assert stream.drop_done() == []
    position = stream.position()
    assert (position.lo, position.hi, position.after) == ("a", "b", 0)
    assert stream.unpersisted == 4
    settle(one)
    assert len(stream.drop_done()) == 2
    assert stream.unpersisted == 0


def test_untouched_windows_are_joined_so_that_a_lane_that_is_behind_keeps_three_pieces() -> None:
    stream = stream_of(in_hand("a", "b", 1, 2))
    take(stream, 1)
    for number in range(10, 30):
        stream.add(in_hand(f"s{number}", f"s{number + 1}", number))
    assert len(stream.pieces) == 3
    last = stream.pieces[-1]
    assert (last.lo, last.hi, last.read_after, last.z) == ("s11", "s30", 10, 29)


def test_a_window_that_was_begun_is_never_joined() -> None:
    stream = stream_of(in_hand("a", "b", 1, 2), in_hand("b", "c", 3, 4))
    take(stream, 3)
    for number in range(10, 15):
        stream.add(in_hand(f"s{number}", f"s{number + 1}", number))
    assert [piece.taken for piece in stream.pieces] == [2, 1, 0, 0]
    assert seqs(take(stream)) == [4, 10]


def test_a_range_is_read_a_chunk_at_a_time_and_never_passed_over_unread() -> None:
    piece = Piece(lo="a", hi="b", after=4, z=9)
    stream = stream_of(piece, in_hand("b", "c", 20))
    assert take(stream) == []
    assert piece.read_after == 4
    piece.fill([row(5), row(7)])
    assert piece.read_after is None
    assert seqs(take(stream)) == [5, 7]
    assert piece.read_after == 7
    piece.fill([row(9)])
    assert seqs(take(stream)) == [9, 20]


def test_a_range_with_nothing_left_to_read_is_over() -> None:
    piece = Piece(lo="a", hi="b", after=4, z=9)
    piece.fill([])
    assert piece.is_done
    assert not piece.has_more


def test_a_chunk_is_bounded_in_bytes_but_a_single_row_above_the_bound_still_goes() -> None:
    stream = stream_of(
        Piece(lo="a", hi="b", after=0, z=3, rows=[row(1, size_bytes=5000), row(2), row(3)]),
    )
    assert seqs(stream.take(rows_max=100, bytes_max=1000)) == [1]
    assert seqs(stream.take(rows_max=100, bytes_max=1000)) == [2]
    assert seqs(stream.take(rows_max=100, bytes_max=2000)) == [3]
