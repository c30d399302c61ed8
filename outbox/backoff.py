"""How long to wait before the next try. Asking never moves anything: randomness is an argument, time is nobody's."""

import random
from enum import StrEnum
from typing import Final, assert_never

_DOUBLINGS_MAX: Final = 1000  # 2.0 ** 1024 overflows a float; every cap is reached long before
_ADDED_MAX_S: Final = 0.5
_FIFTH: Final = 0.2


class Jitter(StrEnum):
    """Where in relation to the ceiling a wait is drawn from, evenly."""

    ADDED = "added"  # [ceiling, ceiling + 0.5 s]
    FULL = "full"  # [0, ceiling]
    EQUAL = "equal"  # [ceiling / 2, ceiling]
    PLUS_MINUS_20 = "plus_minus_20"  # [0.8 ceiling, 1.2 ceiling]


def backoff_s(
    attempt: int, *, base_s: float = 1.0, cap_s: float, jitter: Jitter = Jitter.ADDED, rng: random.Random
) -> float:
    """Return a wait in seconds, never more than *cap_s*.

    The ceiling is ``base_s * 2 ** (attempt - 1)``, and the wait is drawn around it as *jitter* says. Where that
    would pass *cap_s* the range is moved down below it, not cut: callers that reached the cap together still
    part. The same *attempt* and the same *rng* state give the same answer.

    Args:
        attempt: the attempt that just failed, counting from 1.
        base_s: the ceiling after the first failure.
    """
    if attempt < 1:
        raise ValueError(f"attempt: want 1 or more, got {attempt}")
    ceiling = min(cap_s, base_s * 2.0 ** min(attempt - 1, _DOUBLINGS_MAX))
    low, high = _range(ceiling, jitter)
    surplus = max(0.0, high - cap_s)
    low, high = max(0.0, low - surplus), high - surplus
    return min(high, low + rng.random() * (high - low))


def _range(ceiling: float, jitter: Jitter) -> tuple[float, float]:
    match jitter:
        case Jitter.ADDED:
            return ceiling, ceiling + _ADDED_MAX_S
        case Jitter.FULL:
            return 0.0, ceiling
        case Jitter.EQUAL:
            return ceiling / 2, ceiling
        case Jitter.PLUS_MINUS_20:
            return ceiling * (1 - _FIFTH), ceiling * (1 + _FIFTH)
        case _:
            assert_never(jitter)
