"""What an event is expected to cost, and what it did."""

import pytest

from consumer.decide.costs import QUANTUM, Costs, cost_of, quantum_of


def test_before_anything_was_measured_an_event_costs_a_quantum() -> None:
    assert Costs(["a"]).expected("a") == QUANTUM


def test_the_expected_cost_of_a_type_follows_what_its_events_took_and_no_other_types() -> None:
    costs = Costs(["slow", "quick", "never"])
    for _ in range(60):
        assert costs.learn("slow", 2.0) == 2_000
        costs.learn("quick", 0.0003)

    assert costs.expected("slow") == pytest.approx(2_000, rel=0.01)
    assert costs.expected("quick") == 1
    assert costs.expected("never") == QUANTUM


def test_one_outlier_moves_the_expectation_by_an_eighth() -> None:
    costs = Costs(["a"])
    costs.learn("a", 0.01 + 8.0)
    assert costs.expected("a") == QUANTUM + 1_000


@pytest.mark.parametrize("took_s", [0.0, 0.000_01, -0.5])
def test_a_start_is_never_free(took_s: float) -> None:
    costs = Costs(["a"])
    for _ in range(100):
        assert costs.learn("a", took_s) == 1
    assert cost_of(took_s) == costs.expected("a") == 1


def test_types_that_nobody_handles_take_no_memory() -> None:
    costs = Costs(["a"])
    for number in range(1000):
        costs.learn(f"made-up-{number}", 5.0)
    assert costs.expected("made-up-1") == QUANTUM
    assert costs._expected.keys() == {"a"}


@pytest.mark.parametrize(("slots", "want"), [(2, 10), (10, 10), (100, 100), (1000, 1000)])
def test_a_turn_is_a_millisecond_of_all_slots_and_never_less_than_an_unknown_event(slots: int, want: int) -> None:
    assert quantum_of(slots) == want
