import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outbox.backoff import Jitter, backoff_s

RANGES: dict[Jitter, Callable[[float], tuple[float, float]]] = {
    Jitter.ADDED: lambda ceiling: (ceiling, ceiling + 0.5),
    Jitter.FULL: lambda ceiling: (0, ceiling),
    Jitter.EQUAL: lambda ceiling: (ceiling / 2, ceiling),
    Jitter.PLUS_MINUS_20: lambda ceiling: (ceiling * 0.8, ceiling * 1.2),
}


@settings(deadline=None)
@given(
    attempt=st.integers(1, 20),
    base_s=st.floats(0.01, 10),
    jitter=st.sampled_from(Jitter),
    seed=st.integers(0, 2**32),
)
def test_a_wait_below_the_cap_is_within_what_its_jitter_adds_to_doubling(
    attempt: int, base_s: float, jitter: Jitter, seed: int
) -> None:
    low, high = RANGES[jitter](base_s * 2 ** (attempt - 1))

    wait = backoff_s(attempt, base_s=base_s, cap_s=1e9, jitter=jitter, rng=random.Random(seed))

    assert low * (1 - 1e-12) <= wait <= high * (1 + 1e-12)


@pytest.mark.parametrize("jitter", Jitter)
@pytest.mark.parametrize(("attempt", "ceiling"), [(1, 1.0), (2, 2.0), (5, 16.0)])
def test_a_wait_below_the_cap_fills_the_whole_range_its_jitter_names(
    jitter: Jitter, attempt: int, ceiling: float
) -> None:
    rng = random.Random(7)
    low, high = RANGES[jitter](ceiling)

    waits = [backoff_s(attempt, cap_s=900, jitter=jitter, rng=rng) for _ in range(2000)]

    assert low <= min(waits)
    assert max(waits) <= high
    assert min(waits) < low + (high - low) * 0.05
    assert max(waits) > high - (high - low) * 0.05


@given(
    attempt=st.integers(1, 10**9),
    base_s=st.floats(0.001, 3600),
    cap_s=st.floats(0.001, 86_400),
    jitter=st.sampled_from(Jitter),
    seed=st.integers(0, 2**32),
)
def test_no_wait_passes_the_cap_however_many_attempts_failed(
    attempt: int, base_s: float, cap_s: float, jitter: Jitter, seed: int
) -> None:
    wait = backoff_s(attempt, base_s=base_s, cap_s=cap_s, jitter=jitter, rng=random.Random(seed))

    assert 0 <= wait <= cap_s


@pytest.mark.parametrize("jitter", Jitter)
def test_waits_at_the_cap_are_still_spread(jitter: Jitter) -> None:
    rng = random.Random(7)

    waits = {backoff_s(50, cap_s=10, jitter=jitter, rng=rng) for _ in range(100)}

    assert len(waits) > 90
    assert max(waits) - min(waits) > 0.4


@pytest.mark.parametrize("jitter", Jitter)
def test_the_same_attempt_and_random_state_give_the_same_wait(jitter: Jitter) -> None:
    first, second = (backoff_s(3, cap_s=900, jitter=jitter, rng=random.Random(42)) for _ in range(2))

    assert first == second


@pytest.mark.parametrize("attempt", [0, -1])
def test_an_attempt_counts_from_one(attempt: int) -> None:
    with pytest.raises(ValueError, match="want 1 or more"):
        backoff_s(attempt, cap_s=900, rng=random.Random(1))
