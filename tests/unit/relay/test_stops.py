from collections.abc import Sequence

from outbox.event import Tier
from relay.decide.backlog import Backlog, Cohort, Positions
from relay.decide.pieces import Part, Sent
from relay.decide.stops import PATIENCE
from tests.unit.relay.rows import row, settle

MEMBERS = {1: ("default",), 2: ("default",)}
BUCKET_OF = {"acme": 1, "beta": 1, "zeta": 2}
PLENTY = 1 << 30


class Steady:
    """A backlog that reads windows a to b, b to c and so on, and publishes all of each."""

    def __init__(self) -> None:
        self.backlog = Backlog(cohorts=[Cohort("a", dict(MEMBERS))])
        self.seq = 0
        self.persist()

    def commit(self, *tenants: str, each: int = 1) -> list[Sent]:
        cohort, sents = self.backlog.cohorts[0], list[Sent]()
        base = chr(ord(cohort.base) + 1)
        for stream in self.backlog.add(cohort.base, base, [self._part(one, each) for one in tenants], MEMBERS):
            taken = stream.take(rows_max=PLENTY, bytes_max=PLENTY)
            self.backlog.published(stream, len(taken))
            sents += taken
        cohort.base = base
        return sents

    def persist(self, *, rows_max: int = PLENTY, must_move: Sequence[int] = ()) -> Positions:
        positions = self.backlog.positions(
            retries=0, keep_rows_max=rows_max, must_move=[("default", bucket) for bucket in must_move]
        )
        self.backlog.persisted(positions)
        return positions

    def _part(self, tenant: str, each: int) -> Part:
        first = self.seq + 1
        self.seq += each
        rows = [row(seq, tenant=tenant) for seq in range(first, self.seq + 1)]
        return Part(Tier.STANDARD, tenant, 1, BUCKET_OF[tenant], first - 1, self.seq, rows)


def bases(positions: Positions) -> dict[int, str]:
    return {bucket: base for _, bucket, base in positions.bases}


def rows_of(positions: Positions) -> list[tuple[str, str]]:
    return [(one.lane.tenant, one.lo) for one in positions.streams]


def test_a_base_stops_before_the_window_that_a_lane_is_not_done_with_and_no_lane_gets_a_row() -> None:
    steady = Steady()
    settle(*steady.commit("acme", "zeta"))
    sents = steady.commit("acme", "zeta")
    later = steady.commit("acme", "zeta")
    settle(sents[1], *later)
    positions = steady.persist()
    assert (bases(positions), rows_of(positions)) == ({1: "b", 2: "d"}, [])
    assert (steady.backlog.unpersisted, steady.backlog.is_lagging) == (2, True)
    settle(sents[0])
    assert bases(steady.persist()) == {1: "d"}
    assert (steady.backlog.unpersisted, steady.backlog.is_lagging) == (0, False)


def test_a_lane_that_stays_unsettled_gets_its_row_and_the_others_go_on_without_it() -> None:
    steady = Steady()
    silent = steady.commit("acme")
    for _ in range(PATIENCE):
        settle(*steady.commit("beta"))
        assert rows_of(steady.persist()) == []
    on_its_way = steady.commit("beta")
    positions = steady.persist()
    assert rows_of(positions) == [("acme", "a")]
    assert bases(positions)[1] == on_its_way[0].origin.lo  # type: ignore[union-attr]
    settle(*on_its_way)
    assert rows_of(steady.persist()) == []
    assert (steady.backlog.unpersisted, steady.backlog.is_lagging) == (1, False)
    settle(*silent)
    assert [tenant for *_, tenant in steady.persist().caught_up] == ["acme"]


def test_a_base_never_goes_back_for_what_a_lane_with_a_row_has_got_since() -> None:
    steady = Steady()
    (slow,) = steady.commit("acme")
    assert bases(steady.persist(must_move=[1])) == {1: "b", 2: "b"}
    (next_one,) = steady.commit("acme")
    assert bases(steady.persist(must_move=[1])) == {1: "c", 2: "c"}
    steady.commit("beta")
    settle(slow)
    positions = steady.persist()
    assert (bases(positions), rows_of(positions)) == ({2: "d"}, [("acme", "b")])
    settle(next_one)
    assert [tenant for *_, tenant in steady.persist().caught_up] == ["acme"]


def test_more_that_is_settled_than_may_come_again_moves_the_base_of_who_has_most() -> None:
    steady = Steady()
    sents = steady.commit("acme", "zeta", each=4)
    settle(*sents[1:4], *sents[6:])
    positions = steady.persist(rows_max=4)
    assert (bases(positions), rows_of(positions)) == ({1: "b"}, [("acme", "a")])
    assert steady.backlog.unpersisted == 4 + 4


def test_a_lane_with_much_that_is_settled_gets_its_row_at_once() -> None:
    steady = Steady()
    sents = steady.commit("acme", each=40)
    settle(*sents[:20])
    assert rows_of(steady.persist()) == []
    settle(sents[20])
    assert rows_of(steady.persist()) == [("acme", "a")]
    assert steady.backlog.unpersisted == 40 - 21


def test_all_bases_move_to_the_latest_when_nothing_may_come_again() -> None:
    steady = Steady()
    steady.commit("acme", "zeta")
    positions = steady.persist(rows_max=0)
    assert (bases(positions), rows_of(positions)) == ({1: "b", 2: "b"}, [("acme", "a"), ("zeta", "a")])


def test_buckets_are_moved_by_their_bases_so_that_a_statement_moves_all_of_one() -> None:
    backlog = Backlog(
        cohorts=[Cohort("a", {1: ("default",)}), Cohort("b", {2: ("default",)}), Cohort("a", {3: ("x",)})]
    )
    assert [base for *_, base in backlog.positions(retries=0).bases] == ["a", "a", "b"]
