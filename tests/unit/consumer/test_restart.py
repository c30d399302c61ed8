"""What a supervisor does about a worker that has ended."""

import random
import signal

import pytest

from consumer.decide.restart import End, Restart, decide

OF_ALL = {64, 69, 78}


def decided(code: int, *, was_any_ready: bool = True, deaths: int = 1) -> Restart | End:
    return decide(code, OF_ALL, was_any_ready=was_any_ready, deaths=deaths, rng=random.Random(1))


@pytest.mark.parametrize("code", sorted(OF_ALL))
def test_what_is_wrong_for_all_ends_all_at_the_start_and_is_waited_out_later(code: int) -> None:
    assert decided(code, was_any_ready=False) == End(code=code)
    assert isinstance(decided(code), Restart)


@pytest.mark.parametrize("code", [-signal.SIGKILL, -signal.SIGSEGV, 0, 1, 75])
def test_any_other_end_is_one_workers_own(code: int) -> None:
    assert isinstance(decided(code), Restart)
    assert isinstance(decided(code, was_any_ready=False), Restart)


def test_one_that_lived_long_is_replaced_within_a_second_and_one_that_dies_at_once_ever_later() -> None:
    waits = [decided(-9, deaths=deaths) for deaths in (0, 1, 4, 100)]
    seconds = [one.after_s for one in waits if isinstance(one, Restart)]
    assert seconds[0] <= 0.5
    assert seconds == sorted(seconds)
    assert 15 <= seconds[-1] <= 30
