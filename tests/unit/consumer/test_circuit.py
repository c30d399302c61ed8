"""A breaker's way back from open to closed."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consumer import Breaker
from consumer.decide.circuit import Circuit, Phase

BREAKER = Breaker(open_s=10, open_max_s=35, probes=3, ramp_s=10)


def probing(breaker: Breaker = BREAKER) -> Circuit:
    circuit = Circuit(breaker, 0.0)
    circuit.advance(breaker.open_s)
    return circuit


def ramping(breaker: Breaker = BREAKER) -> Circuit:
    """One whose probes have succeeded at second 10."""
    circuit = probing(breaker)
    for ident in range(breaker.probes):
        circuit.started(ident)
        circuit.succeeded(ident, 10.0)
    return circuit


def test_an_open_breaker_lets_nothing_start_until_its_time_is_over() -> None:
    circuit = Circuit(BREAKER, 0.0)

    circuit.advance(9.99)
    assert (circuit.has_room(9.99), circuit.is_paused()) == (False, True)
    assert circuit.next_s(4.0) == pytest.approx(6.0)
    circuit.advance(10.0)
    assert (circuit.has_room(10.0), circuit.is_paused()) == (True, False)


def test_exactly_as_many_probes_start_as_were_declared() -> None:
    circuit = probing()

    for ident in range(3):
        assert circuit.has_room(10.0)
        circuit.started(ident)
    assert (circuit.has_room(10.0), circuit.is_paused()) == (False, True)
    circuit.succeeded(0, 11.0)
    assert not circuit.has_room(11.0)


def test_a_probe_that_never_got_to_the_handler_makes_room_for_another() -> None:
    circuit = probing()
    for ident in range(3):
        circuit.started(ident)

    circuit.left(1)

    assert circuit.has_room(11.0)


def test_each_time_it_opens_again_it_stays_open_for_twice_as_long_up_to_its_bound() -> None:
    circuit = Circuit(BREAKER, 0.0)
    waits, now = [], 0.0
    for ident in range(5):
        waits.append(circuit.wait_s(now))
        now += circuit.wait_s(now)
        circuit.advance(now)
        circuit.started(ident)
        circuit.failed(ident, now)

    assert waits == [10, 20, 35, 35, 35]


def test_what_started_before_it_opened_says_nothing_of_now() -> None:
    circuit = probing()
    circuit.started(7)

    circuit.failed(1, 10.5)
    circuit.succeeded(2, 10.5)

    assert circuit.phase is Phase.PROBING
    assert circuit.has_room(10.5)


def test_it_opens_again_where_most_of_the_ramp_fails_and_not_for_a_single_failure() -> None:
    circuit = ramping()
    for ident in range(10, 13):
        circuit.started(ident)
    circuit.failed(10, 11.0)
    assert not circuit.is_paused()
    circuit.failed(11, 11.0)
    circuit.failed(12, 11.0)
    assert circuit.phase is Phase.OPEN
    assert circuit.wait_s(11.0) == 20


def test_it_closes_when_the_ramp_is_over() -> None:
    circuit = ramping()

    circuit.advance(19.99)
    assert circuit.next_s(19.99) == pytest.approx(0.01)
    circuit.advance(20.0)
    assert circuit.phase is Phase.CLOSED
    assert circuit.has_room(20.0)


def test_without_a_ramp_everything_starts_after_the_probes() -> None:
    circuit = ramping(Breaker(open_s=10, open_max_s=10, ramp_s=0))

    assert circuit.has_room(10.0)
    assert circuit.next_s(10.0) == 0.0
    circuit.advance(10.0)
    assert circuit.phase is Phase.CLOSED


@settings(deadline=None)
@given(
    probes=st.integers(1, 50),
    ramp_s=st.floats(0.5, 120),
    steps=st.lists(st.floats(0, 5), min_size=1, max_size=60),
)
def test_whatever_waits_starts_at_a_bounded_rate_that_doubles_ten_times(
    probes: int, ramp_s: float, steps: list[float]
) -> None:
    breaker = Breaker(open_s=10, open_max_s=10, probes=probes, ramp_s=ramp_s)
    circuit = ramping(breaker)
    ident, now = 1000, 10.0
    for step in steps:
        began = ident
        while circuit.phase is Phase.RAMPING and circuit.has_room(now) and ident - began < 20_000:
            circuit.started(ident)
            ident += 1
        if circuit.phase is not Phase.RAMPING or ident - began == 20_000:
            break
        # The integral of the rate, and one.
        doubling_s = ramp_s / 10
        most = 1 + probes * doubling_s * (2 ** ((now - 10) / doubling_s) - 1) / math.log(2)
        assert ident - 1000 <= most + 1
        wait_s = circuit.next_s(now)
        assert wait_s is not None
        assert not circuit.has_room(now + wait_s * 0.99 - 1e-6)
        now += max(step, wait_s)
        circuit.advance(now)
