"""Slots of the ledger's ring, and what the ledger remembers."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from consumer.decide.horizon import Ring, free_slots, is_within, slot_of

RING = Ring(slots=16, slot_seconds=86_400)
HORIZON = timedelta(days=14)
MIDNIGHT = datetime(2026, 6, 15, tzinfo=UTC)


def test_a_slot_lasts_a_day_and_comes_round_after_sixteen() -> None:
    first = slot_of(MIDNIGHT, RING)
    assert slot_of(MIDNIGHT + timedelta(hours=23, minutes=59, seconds=59), RING) == first
    assert slot_of(MIDNIGHT + timedelta(days=1), RING) == (first + 1) % 16
    assert slot_of(MIDNIGHT + timedelta(days=16), RING) == first


def test_a_slot_does_not_depend_on_the_time_zone_a_time_is_told_in() -> None:
    told = MIDNIGHT.astimezone(timezone(timedelta(hours=14)))
    assert slot_of(told, RING) == slot_of(MIDNIGHT, RING)


@pytest.mark.parametrize("age", [HORIZON, timedelta(), timedelta(minutes=-5)])
def test_the_ends_of_the_horizon_are_within_it(age: timedelta) -> None:
    assert is_within(MIDNIGHT - age, now=MIDNIGHT, horizon=HORIZON)


@pytest.mark.parametrize("age", [HORIZON + timedelta(microseconds=1), timedelta(minutes=-5, microseconds=-1)])
def test_beyond_the_horizon_or_too_far_ahead_is_outside(age: timedelta) -> None:
    assert not is_within(MIDNIGHT - age, now=MIDNIGHT, horizon=HORIZON)


@pytest.mark.parametrize("minutes", range(0, 24 * 60, 97))
def test_no_time_within_the_horizon_lies_in_a_free_slot(minutes: int) -> None:
    now = MIDNIGHT + timedelta(minutes=minutes)
    free = free_slots(now=now, horizon=HORIZON, ring=RING)
    assert len(free) == 1
    for back in range(-5, 14 * 24 * 60, 13):
        assert slot_of(now - timedelta(minutes=back), RING) not in free
    assert slot_of(now - HORIZON, RING) not in free


def test_in_the_last_five_minutes_of_a_day_the_next_slot_is_in_use_already() -> None:
    assert free_slots(now=MIDNIGHT - timedelta(minutes=4), horizon=HORIZON, ring=RING) == frozenset()


def test_the_longest_horizon_still_frees_a_slot_each_day() -> None:
    assert RING.horizon_max == HORIZON
    too_long = HORIZON + timedelta(days=1)
    assert not any(free_slots(now=MIDNIGHT + timedelta(hours=hour), horizon=too_long, ring=RING) for hour in range(24))
