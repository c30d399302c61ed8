"""Positions said again in another cluster's numbers show the same rows as before."""

from hypothesis import given, settings
from hypothesis import strategies as st

from outbox_admin.rebase_plan import Classes, Snapshot

START = 1000


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Snapshot], int]:
    """Snapshots that one cluster could have given, in order, and the next transaction's number."""
    following = START + draw(st.integers(0, 6))
    running = set(range(START, following))
    taken = []
    # Between two looks, so many begin and these end, counted from the youngest.
    for begun, ended in draw(
        st.lists(st.tuples(st.integers(0, 3), st.sets(st.integers(0, 5), max_size=3)), max_size=8)
    ):
        running |= set(range(following, following + begun))
        following += begun
        running -= {xid for at, xid in enumerate(sorted(running, reverse=True)) if at in ended}
        # As PostgreSQL does it: one above the highest number that has ended.
        xmax = max({*range(START - 1, following)} - running) + 1
        taken.append(Snapshot(xmax, frozenset(xid for xid in running if xid < xmax)))
    return taken, following


def any_snapshot(xmax: st.SearchStrategy[int]) -> st.SearchStrategy[Snapshot]:
    return xmax.flatmap(
        lambda top: st.frozensets(st.integers(max(3, top - 12), top - 1), max_size=5).map(lambda r: Snapshot(top, r))
    )


now_snapshots = any_snapshot(st.integers(500, 3000))


def stamp_of(classes: Classes, xid: int, now: Snapshot) -> int:
    """The number that a row of *xid* gets; rows that no snapshot shows get one that was given out after *now*."""
    return [*classes.rebased(now).stamps, now.xmax + 7][classes.class_of(xid)]


@settings(max_examples=100, deadline=None)
@given(histories(), now_snapshots)
def test_each_position_shows_the_rows_it_showed_and_no_other(
    history: tuple[list[Snapshot], int], now: Snapshot
) -> None:
    taken, following = history
    classes = Classes.of([str(snapshot) for snapshot in taken])
    here = dict(zip(classes.texts, map(Snapshot.parsed, classes.rebased(now).texts), strict=True))
    for snapshot in taken:
        for xid in range(START - 5, following + 5):
            assert here[str(snapshot)].shows(stamp_of(classes, xid, now)) == snapshot.shows(xid)


@settings(max_examples=100, deadline=None)
@given(st.lists(any_snapshot(st.integers(50, 90)), max_size=8), now_snapshots)
def test_positions_that_contradict_each_other_show_no_row_that_they_did_not(
    taken: list[Snapshot], now: Snapshot
) -> None:
    classes = Classes.of([str(snapshot) for snapshot in taken])
    here = dict(zip(classes.texts, map(Snapshot.parsed, classes.rebased(now).texts), strict=True))
    for snapshot in taken:
        for xid in range(3, 100):
            assert snapshot.shows(xid) or not here[str(snapshot)].shows(stamp_of(classes, xid, now))


@settings(max_examples=100, deadline=None)
@given(histories(), now_snapshots)
def test_no_position_shows_what_runs_now_or_begins_later(history: tuple[list[Snapshot], int], now: Snapshot) -> None:
    rebased = Classes.of([str(snapshot) for snapshot in history[0]]).rebased(now)
    for text in rebased.texts:
        assert not any(Snapshot.parsed(text).shows(xid) for xid in [*now.running, now.xmax, now.xmax + 1])


def test_a_position_that_shows_nothing_is_none_of_them() -> None:
    assert Classes.of(["1:1:", "700:702:700"]).texts == ["700:702:700"]
