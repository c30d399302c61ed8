"""What a failure means. Foreign errors are known by shape (``sqlstate``, ``orig``, ``response``, ``retry_after_s``)
and by the names of their classes, so nothing here imports a driver or a client.

The first exception along the chain of causes that is known decides: an app's own error around a serialisation
failure is a serialisation failure.
"""

from datetime import datetime
from typing import Final, assert_never

from consumer.decide import http_errors
from consumer.decide.causes import chain, fits, own_sqlstate, read, wrapped
from consumer.decide.failure import PERMANENT, TRANSIENT, UNKNOWN, Failure, FailureCategory
from consumer.outcome import Dead, DeadCategory, DeadLetter, Retry, RetryLater, Throttled
from outbox.errors import IdempotencyConflict, InvalidEvent, PermanentError, TransientError

#: What a SQLSTATE means; of each pair the first that fits, a dot being any character. Those of no pair are unknown.
SQLSTATES: Final = (
    ("08...", FailureCategory.TRANSIENT),  # the connection
    ("25006", FailureCategory.TRANSIENT),  # read only: a standby, during a failover
    ("25P03", FailureCategory.TRANSIENT),  # idle in a transaction for too long
    ("40...", FailureCategory.TRANSIENT),  # rolled back: serialisation, deadlock
    ("53...", FailureCategory.TRANSIENT),  # out of memory, disk, connections
    ("55006", FailureCategory.TRANSIENT),  # object in use
    ("55P03", FailureCategory.TRANSIENT),  # lock not available
    ("57014", FailureCategory.TRANSIENT),  # cancelled: a statement's time limit, most often
    ("57P0.", FailureCategory.TRANSIENT),  # shutting down, starting up
    ("58...", FailureCategory.TRANSIENT),  # the server's own system
    ("0A...", FailureCategory.PERMANENT),  # not supported
    ("21...", FailureCategory.PERMANENT),  # more rows than one
    ("22...", FailureCategory.PERMANENT),  # wrong data
    ("23...", FailureCategory.PERMANENT),  # a broken constraint
    ("42...", FailureCategory.PERMANENT),  # a bug in the statement, or a missing right
    ("44000", FailureCategory.PERMANENT),  # a view's check option
    ("54...", FailureCategory.PERMANENT),  # too complex
)
_BY_CATEGORY: Final = {FailureCategory.TRANSIENT: TRANSIENT, FailureCategory.PERMANENT: PERMANENT}
# PEP 249: "errors related to the database's operation and not necessarily under the control of the programmer";
# drivers raise it without a state when no server answered. A pool's timeout is a TimeoutError by name only.
_TRANSIENT_NAMES: Final = frozenset({"OperationalError", "TimeoutError"})
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


def classify(error: BaseException, *, now: datetime | None = None) -> Failure:
    """Say what *error*, raised by a handler, means. A group is as bad as the worst in it.

    *now* is needed where another system names a date to come back at and does not say what its own clock shows.
    """
    for link in chain(error):
        if (failure := _known(link, now)) is not None:
            return failure
    return UNKNOWN


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


def _known(error: BaseException, now: datetime | None) -> Failure | None:
    """Say what *error* means by itself, or None."""
    if isinstance(error, RetryLater | Dead):
        return failure_of(error.outcome)
    if isinstance(error, BaseExceptionGroup):
        return _worst(error, now)
    if (after_s := _retry_after_s(error)) is not None:
        return Failure(category=FailureCategory.THROTTLED, not_before_s=after_s)
    if (answer := http_errors.answer_of(error)) is not None:
        failure = http_errors.by_answer(answer, now=now)
    elif (state := own_sqlstate(error)) is not None:
        failure = _by_state(state)
    else:
        failure = None
    return failure if failure is not None else _by_class(error)


def _worst(group: BaseExceptionGroup[BaseException], now: datetime | None) -> Failure:
    failures = [classify(error, now=now) for error in group.exceptions]
    worst = max(failures, key=lambda failure: _SEVERITY[failure.category])
    return Failure(
        category=worst.category,
        dead_category=worst.dead_category,
        not_before_s=max(failure.not_before_s for failure in failures),
    )


def _retry_after_s(error: BaseException) -> float | None:
    """Return the wait that *error* asks for, if it asks: ours does by ``retry_after_s``, so may an app's."""
    after_s = read(error, "retry_after_s")
    if isinstance(after_s, int | float) and 0 <= after_s < float("inf"):
        return float(after_s)
    return None


def _by_state(state: str) -> Failure | None:
    category = next((category for pattern, category in SQLSTATES if fits(state, pattern)), None)
    return None if category is None else _BY_CATEGORY[category]


def _by_class(error: BaseException) -> Failure | None:
    if isinstance(error, PermanentError | InvalidEvent | IdempotencyConflict):
        return PERMANENT
    if (failure := http_errors.by_class(error)) is not None:
        return failure
    if isinstance(error, TransientError | OSError):  # ConnectionError and TimeoutError are OSErrors
        return TRANSIENT
    if wrapped(error) is None and any(base.__name__ in _TRANSIENT_NAMES for base in type(error).__mro__):
        return TRANSIENT  # a wrapper of the same name says less than what it wraps
    return None
