"""What budgets and breakers decide by: the recent past of a handler, tenant by tenant."""

import itertools
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from consumer import Breaker, Budget
from consumer.decide.recent import Recent, Tally, Trip

BREAKER = Breaker(calls_min=20, failure_percent=50, window_s=30)


def spent(recent: Recent, tenant: str, tries: int, now: float) -> int:
    return sum(recent.spend_retry(tenant, now) for _ in range(tries))


def run(recent: Recent, tenant: str, now: float, *, good: int = 0, bad: int = 0) -> None:
    for has_failed in itertools.chain(itertools.repeat(False, good), itertools.repeat(True, bad)):
        recent.count(tenant, now, is_new=True, has_failed=has_failed)


# ------------------------------------------------------------------ what a budget allows


def test_a_quiet_tenant_has_ten_retries_a_minute() -> None:
    recent = Recent(Budget(), None)

    assert spent(recent, "acme", 50, 0.0) == 10
    assert spent(recent, "acme", 50, 59.0) == 0
    assert spent(recent, "acme", 50, 119.0) >= 9


def test_a_busy_tenant_has_a_fifth_of_its_recent_events() -> None:
    recent = Recent(Budget(), None)
    run(recent, "acme", 0.0, good=1000)

    assert spent(recent, "acme", 500, 1.0) == 200


def test_retries_are_no_traffic_that_earns_retries() -> None:
    recent = Recent(Budget(), None)
    for _ in range(1000):
        recent.count("acme", 0.0, is_new=False, has_failed=True)

    assert spent(recent, "acme", 500, 1.0) == 10


def test_a_tenants_retries_cost_no_other() -> None:
    recent = Recent(Budget(), None)
    spent(recent, "noisy", 500, 0.0)

    assert spent(recent, "quiet", 500, 0.0) == 10


def test_without_a_budget_there_is_no_bound() -> None:
    assert spent(Recent(None, None), "acme", 10_000, 0.0) == 10_000


@settings(deadline=None)
@given(
    percent=st.floats(0, 100),
    least=st.integers(0, 30),
    moves=st.lists(st.tuples(st.floats(0, 20), st.integers(0, 200), st.integers(0, 60)), max_size=40),
)
def test_retries_keep_to_the_budget_whatever_comes_when(
    percent: float, least: int, moves: list[tuple[float, int, int]]
) -> None:
    recent = Recent(Budget(percent=percent, per_minute_min=least), None)
    now, events, granted = 0.0, [(0.0, 0)], [(0.0, 0)]
    for step, came, wanted in moves:
        now += step
        run(recent, "acme", now, good=came)
        events.append((now, came))
        granted.append((now, spent(recent, "acme", wanted, now)))

    # The window is at least the last minute of fixed bounds, and reaches back two at most.
    for end, _ in granted:
        within = sum(count for at, count in granted if end - 60 < at <= end)
        traffic = sum(count for at, count in events if end - 180 < at <= end)
        assert within <= 2 * max(least, traffic * percent / 100)
    total = sum(count for _, count in granted)
    assert total <= (now / 60 + 2) * max(least, sum(count for _, count in events) * percent / 100)


def test_the_number_of_tenants_makes_it_remember_only_so_much() -> None:
    recent = Recent(Budget(), BREAKER, tenants_max=100)
    for number in range(10_000):
        run(recent, f"t{number}", 0.0, good=1)

    assert len(recent) == 100


def test_those_seen_longest_ago_are_forgotten_first() -> None:
    recent = Recent(Budget(per_minute_min=1), None, tenants_max=2)
    for tenant in ("a", "b", "a", "c"):
        spent(recent, tenant, 1, 0.0)

    assert Counter({tenant: spent(recent, tenant, 1, 0.0) for tenant in ("a", "c", "b")}) == {"a": 0, "c": 0, "b": 1}


# ------------------------------------------------------------------ when a breaker opens


def test_it_opens_for_all_where_most_attempts_of_many_tenants_fail() -> None:
    recent = Recent(None, BREAKER)
    for number in range(20):
        run(recent, f"t{number}", 0.0, bad=1)

    assert recent.trip("t1", 0.5) == Trip(tenant=None)


def test_it_does_not_open_before_there_were_enough_attempts() -> None:
    recent = Recent(None, BREAKER)
    run(recent, "acme", 0.0, bad=10)
    run(recent, "zeta", 0.0, bad=9)
    assert recent.trip("acme", 0.5) is None
    run(recent, "zeta", 0.6, bad=1)
    assert recent.trip("acme", 1.0) == Trip(tenant=None)


def test_one_tenant_that_floods_with_failures_is_paused_alone() -> None:
    recent = Recent(None, BREAKER)
    run(recent, "noisy", 0.0, bad=10_000)
    for number in range(3):
        run(recent, f"t{number}", 0.0, good=1)

    assert recent.trip("noisy", 0.5) == Trip(tenant="noisy")


def test_a_tenant_that_is_the_only_one_is_paused_alone() -> None:
    recent = Recent(None, BREAKER)
    run(recent, "acme", 0.0, good=9, bad=10)
    assert recent.trip("acme", 0.5) is None
    run(recent, "acme", 0.5, bad=1)
    assert recent.trip("acme", 1.0) == Trip(tenant="acme")


def test_half_is_not_most() -> None:
    recent = Recent(None, BREAKER)
    run(recent, "acme", 0.0, good=50, bad=50)

    assert recent.trip("acme", 0.5) is None


def test_what_was_before_the_window_says_nothing() -> None:
    recent = Recent(None, BREAKER)
    run(recent, "acme", 0.0, bad=100)
    run(recent, "acme", 61.0, bad=1)

    assert recent.trip("acme", 61.0) is None


def test_attempts_that_say_nothing_of_the_handler_count_for_neither_side() -> None:
    recent = Recent(None, BREAKER)
    for _ in range(100):
        recent.count("acme", 0.0, is_new=True, has_failed=None)
    run(recent, "acme", 0.0, bad=20)

    assert recent.trip("acme", 0.5) == Trip(tenant="acme")


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0, 40), st.integers(0, 50)), max_size=60))
def test_a_tally_counts_at_least_the_fixed_stretch_and_at_most_two(moves: list[tuple[float, int]]) -> None:
    tally, now, counted = Tally(30, 0.0), 0.0, []
    for step, count in moves:
        now += step
        tally.add(now, all=count, some=count // 2)
        counted.append((now, count))
        total, some = tally.read(now)
        assert some <= total
        assert total <= sum(count for at, count in counted if at > now - 60) + 1e-6
        assert total >= counted[-1][1] - 1e-6
