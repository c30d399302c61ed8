"""Whose turn it is, decided from a position."""

from datetime import UTC, datetime, timedelta

import pytest

from consumer.decide.order import Position, Turn, decide
from outbox.event import Ordering

NOW = datetime(2026, 6, 15, 12, tzinfo=UTC)
HORIZON = timedelta(days=14)
RECENT = NOW - timedelta(minutes=1)
ANCIENT = NOW - HORIZON - timedelta(seconds=1)


def turn(
    number: int,
    at: int | None,
    *,
    is_first: bool = False,
    previous_time: datetime | None = RECENT,
    started_at: datetime | None = None,
    ledger_time: datetime = NOW,
) -> Turn:
    return decide(
        Ordering(key="k", number=number, is_first=is_first, previous_time=None if is_first else previous_time),
        Position(number=at, now=NOW, group_started_at=started_at),
        ledger_time=ledger_time,
        horizon=HORIZON,
    )


def test_an_event_is_ready_once_its_predecessor_was_handled() -> None:
    assert turn(8, 7) is Turn.READY


@pytest.mark.parametrize("at", [None, 5, 6])
def test_an_event_is_early_while_its_predecessor_was_not_handled(at: int | None) -> None:
    assert turn(8, at) is Turn.EARLY


@pytest.mark.parametrize("at", [8, 9, 1000])
def test_a_number_that_was_passed_is_late_even_if_it_is_marked_first(at: int) -> None:
    assert turn(8, at) is Turn.LATE
    assert turn(8, at, is_first=True) is Turn.LATE


@pytest.mark.parametrize("at", [None, 3])
def test_a_first_event_is_ready_at_any_lower_position(at: int | None) -> None:
    """A key that was purged in the app's database starts again, higher."""
    assert turn(500, at, is_first=True) is Turn.READY


def test_a_predecessor_older_than_the_group_counts_as_handled() -> None:
    assert turn(8, None, started_at=RECENT + timedelta(seconds=1)) is Turn.ORPHAN
    assert turn(8, None, started_at=RECENT) is Turn.EARLY


def test_a_predecessor_older_than_the_horizon_counts_as_handled() -> None:
    assert turn(8, None, previous_time=ANCIENT) is Turn.ORPHAN
    assert turn(8, 3, previous_time=ANCIENT) is Turn.ORPHAN
    assert turn(8, None, previous_time=NOW - HORIZON) is Turn.EARLY


def test_without_its_predecessors_time_an_event_goes_by_its_own() -> None:
    assert turn(8, None, previous_time=None) is Turn.EARLY
    assert turn(8, None, previous_time=None, ledger_time=ANCIENT) is Turn.ORPHAN


def test_an_event_may_run_when_it_is_neither_early_nor_busy() -> None:
    assert {one for one in Turn if one.may_run} == {Turn.READY, Turn.ORPHAN, Turn.LATE}
