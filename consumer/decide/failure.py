"""What follows from a failure. Pure: no clock, no I/O; the dice are an argument."""

import random
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias, assert_never

from consumer.decide.policy import Policy
from consumer.outcome import DeadCategory
from outbox.backoff import backoff_s


class FailureCategory(StrEnum):
    """What repeating the attempt would do."""

    TRANSIENT = "transient"  # may succeed
    THROTTLED = "throttled"  # may succeed later than it says; spends no attempt
    UNKNOWN = "unknown"  # most often a bug: tried again, then dead
    PERMANENT = "permanent"  # fails again
    SECURITY = "security"  # must not be repeated


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """What went wrong, as far as deciding needs it. Not before *not_before_s* from now, whatever the backoff."""

    category: FailureCategory
    dead_category: DeadCategory = DeadCategory.EXHAUSTED  # what it is buried as, if it is
    not_before_s: float = 0.0


TRANSIENT: Final = Failure(category=FailureCategory.TRANSIENT)
UNKNOWN: Final = Failure(category=FailureCategory.UNKNOWN)
PERMANENT: Final = Failure(category=FailureCategory.PERMANENT, dead_category=DeadCategory.PERMANENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class TryAgain:
    """Once more, *wait_s* from now. Not *is_charged*: the attempt does not count."""

    wait_s: float
    is_charged: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUp:
    """No further attempt."""

    category: DeadCategory


Decision: TypeAlias = TryAgain | GiveUp


def decide(failure: Failure, *, attempt: int, elapsed_s: float, policy: Policy, rng: random.Random) -> Decision:
    """Say what follows from *failure*.

    A wait is never shorter than the failure's *not_before_s*. Being throttled spends no attempt, but time: who is
    throttled past *max_elapsed_s* is dead, and waits as long as it has waited before, as doubling would have it.

    Args:
        attempt: the attempt that just failed, counting from 1; throttled ones before it not counted.
        elapsed_s: since the first failure.
    """
    match failure.category:
        case FailureCategory.PERMANENT | FailureCategory.SECURITY:
            return GiveUp(category=failure.dead_category)
        case FailureCategory.TRANSIENT | FailureCategory.UNKNOWN:
            is_charged = True
        case FailureCategory.THROTTLED:
            is_charged = False
        case _:
            assert_never(failure.category)
    if is_charged and attempt > policy.max_retries:
        return GiveUp(category=failure.dead_category)
    backoff = backoff_s(attempt, base_s=policy.base_s, cap_s=policy.max_wait_s, jitter=policy.jitter, rng=rng)
    if not is_charged:
        # Attempts do not tell how long it has gone on. 1 + 2 + 4 is what the next wait, 8, is about.
        backoff = max(backoff, min(elapsed_s, policy.max_wait_s))
    wait_s = max(failure.not_before_s, backoff)
    if elapsed_s + wait_s > policy.max_elapsed_s:
        return GiveUp(category=failure.dead_category)
    return TryAgain(wait_s=wait_s, is_charged=is_charged)
