"""What a failure means, and what follows from it. Two pure steps: classify what was raised, then decide.

Foreign errors are known by shape (``sqlstate``, ``orig``, ``retry_after_s``, class names that PEP 249 fixes), so
nothing here imports a driver. The first exception along the chain of causes that is known decides: an app's own
error around a serialisation failure is a serialisation failure.
"""

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias, assert_never

from consumer.outcome import Dead, DeadCategory, DeadLetter, Retry, RetryLater, Throttled
from outbox.backoff import Jitter, backoff_s
from outbox.errors import IdempotencyConflict, InvalidEvent, PermanentError, TransientError

_CHAIN_MAX: Final = 32
_SQLSTATE: Final = re.compile(r"[0-9A-Z]{5}")
_TRANSIENT_STATES: Final = re.compile(r"08...|40001|40P01|53...|55P03|57P0.")
_PERMANENT_STATES: Final = re.compile(r"22...|23...|42...")  # wrong data, broken constraint, a bug in the statement
# PEP 249: "errors related to the database's operation and not necessarily under the control of the programmer";
# drivers raise it without a state when no server answered. A pool's timeout is a TimeoutError by name only.
_TRANSIENT_NAMES: Final = frozenset({"OperationalError", "TimeoutError"})


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


_TRANSIENT: Final = Failure(category=FailureCategory.TRANSIENT)
_UNKNOWN: Final = Failure(category=FailureCategory.UNKNOWN)
_PERMANENT: Final = Failure(category=FailureCategory.PERMANENT, dead_category=DeadCategory.PERMANENT)
_SEVERITY: Final = {
    category: rank
    for rank, category in enumerate(
        (
            FailureCategory.THROTTLED,
            FailureCategory.TRANSIENT,
            FailureCategory.UNKNOWN,
            FailureCategory.PERMANENT,
            FailureCategory.SECURITY,
        )
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How long to go on trying.

    *max_retries* 5 is six attempts. *max_elapsed_s* runs from the first attempt; a wait that would pass it is not
    begun. *max_wait_s* bounds the backoff of one wait, not what another system asked for.
    """

    max_retries: int = 5
    max_elapsed_s: float = 86_400.0
    max_wait_s: float = 900.0
    base_s: float = 1.0
    jitter: Jitter = Jitter.ADDED


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


def classify(error: BaseException) -> Failure:
    """Say what *error*, raised by a handler, means. A group is as bad as the worst in it."""
    for link in chain(error):
        if (failure := _known(link)) is not None:
            return failure
    return _UNKNOWN


def failure_of(outcome: Retry | Throttled | DeadLetter) -> Failure:
    """Say what a handler meant that returned *outcome*."""
    match outcome:
        case Retry(after_s=after_s):
            return Failure(category=FailureCategory.TRANSIENT, not_before_s=after_s)
        case Throttled(after_s=after_s):
            return Failure(category=FailureCategory.THROTTLED, not_before_s=after_s)
        case DeadLetter(category=DeadCategory.SECURITY):
            return Failure(category=FailureCategory.SECURITY, dead_category=DeadCategory.SECURITY)
        case DeadLetter(category=category):
            return Failure(category=FailureCategory.PERMANENT, dead_category=category)
        case _:
            assert_never(outcome)


def decide(failure: Failure, *, attempt: int, elapsed_s: float, policy: Policy, rng: random.Random) -> Decision:
    """Say what follows from *failure*.

    A wait is never shorter than the failure's *not_before_s*. Being throttled spends no attempt, but time: who is
    throttled past *max_elapsed_s* is dead.

    Args:
        attempt: the attempt that just failed, counting from 1; throttled ones before it not counted.
        elapsed_s: since the first attempt began.
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
    wait_s = max(
        failure.not_before_s,
        backoff_s(attempt, base_s=policy.base_s, cap_s=policy.max_wait_s, jitter=policy.jitter, rng=rng),
    )
    if elapsed_s + wait_s > policy.max_elapsed_s:
        return GiveUp(category=failure.dead_category)
    return TryAgain(wait_s=wait_s, is_charged=is_charged)


def chain(error: BaseException) -> Iterator[BaseException]:
    """Yield *error* and what caused it, outermost first: what a wrapper wraps (``orig``), then ``__cause__``.

    Ends on a loop and after 32. What was merely being handled when *error* was raised (``__context__``) is not a cause.
    """
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen and len(seen) < _CHAIN_MAX:
        seen.add(id(link))
        yield link
        link = _wrapped(link) or link.__cause__


def sqlstate_of(error: BaseException) -> str | None:
    """Return the first SQLSTATE along *error*'s chain of causes."""
    return next((state for link in chain(error) if (state := _own_sqlstate(link)) is not None), None)


def _wrapped(error: BaseException) -> BaseException | None:
    wrapped: object = getattr(error, "orig", None)
    return wrapped if isinstance(wrapped, BaseException) else None


def _own_sqlstate(error: BaseException) -> str | None:
    for name in ("sqlstate", "pgcode"):
        state: object = getattr(error, name, None)
        if isinstance(state, str) and _SQLSTATE.fullmatch(state):
            return state
    return None


def _known(error: BaseException) -> Failure | None:
    """Say what *error* means by itself, or None."""
    if isinstance(error, RetryLater | Dead):
        return failure_of(error.outcome)
    if isinstance(error, BaseExceptionGroup):
        return _worst(error)
    if (after_s := _retry_after_s(error)) is not None:
        return Failure(category=FailureCategory.THROTTLED, not_before_s=after_s)
    if (state := _own_sqlstate(error)) is not None and (failure := _by_state(state)) is not None:
        return failure
    return _by_class(error)


def _worst(group: BaseExceptionGroup[BaseException]) -> Failure:
    failures = [classify(error) for error in group.exceptions]
    worst = max(failures, key=lambda failure: _SEVERITY[failure.category])
    return Failure(
        category=worst.category,
        dead_category=worst.dead_category,
        not_before_s=max(failure.not_before_s for failure in failures),
    )


def _retry_after_s(error: BaseException) -> float | None:
    """Return the wait that *error* asks for, if it asks: ours does by ``retry_after_s``, so may an app's."""
    after_s: object = getattr(error, "retry_after_s", None)
    if isinstance(after_s, int | float) and 0 <= after_s < float("inf"):
        return float(after_s)
    return None


def _by_state(state: str) -> Failure | None:
    if _TRANSIENT_STATES.fullmatch(state):
        return _TRANSIENT
    if _PERMANENT_STATES.fullmatch(state):
        return _PERMANENT
    return None


def _by_class(error: BaseException) -> Failure | None:
    if isinstance(error, PermanentError | InvalidEvent | IdempotencyConflict):
        return _PERMANENT
    if isinstance(error, TransientError | OSError):  # ConnectionError and TimeoutError are OSErrors
        return _TRANSIENT
    if _wrapped(error) is None and any(base.__name__ in _TRANSIENT_NAMES for base in type(error).__mro__):
        return _TRANSIENT  # a wrapper of the same name says less than what it wraps
    return None
