"""How an attempt ended: a closed union of values that a handler returns, or raises where returning is awkward.

``None`` from a handler means ``Done()``. A ``match`` over an Outcome names every member and ends in ``assert_never``.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from outbox.errors import PermanentError, TransientError


class DeadCategory(StrEnum):
    """Why a delivery became a dead letter. The value is stored and shown, and never changes its meaning."""

    OVERSIZED = "oversized"  # the body is over the size limit; it was not looked at
    UNREADABLE = "unreadable"  # no envelope of ours, or damaged
    SECURITY = "security"  # a signature, a tenant or an authorisation does not hold
    UNKNOWN_TYPE = "unknown_type"  # no handler here
    UNKNOWN_VERSION = "unknown_version"  # none that the handlers here read, most often a newer one
    INVALID = "invalid"  # the payload does not fit its type's schema
    OUTSIDE_HORIZON = "outside_horizon"  # too old, or too far ahead, for the ledger to say whether it was done
    PERMANENT = "permanent"  # the handler cannot succeed, now or later
    EXHAUSTED = "exhausted"  # retried as often or as long as the policy allows
    OVER_BUDGET = "over_budget"  # not retried: too many others of its tenant were
    REFUSED = "refused"  # the broker itself gave it up: a queue that was full, or a delivery limit
    POISON = "poison"  # it ended the process that handled it, more than once


def _check_seconds(name: str, seconds: float) -> None:
    if not 0 <= seconds < float("inf"):  # NaN is refused too
        raise ValueError(f"{name}: want seconds, 0 or more, got {seconds}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """Handled. *result*, a JSON value, is kept with the event for a while; ``outbox result`` shows it."""

    result: object = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """Failed for now. The policy picks the wait, never less than *after_s*; an attempt is spent."""

    after_s: float = 0.0
    reason: str = ""

    def __post_init__(self) -> None:
        _check_seconds("after_s", self.after_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snooze:
    """Nothing failed; handle it again in exactly *for_s*. No attempt is spent and no limit on retries applies."""

    for_s: float

    def __post_init__(self) -> None:
        _check_seconds("for_s", self.for_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Throttled:
    """Another system asked for patience. Never before *after_s*; no attempt is spent, time is."""

    after_s: float
    reason: str = ""

    def __post_init__(self) -> None:
        _check_seconds("after_s", self.after_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """No further attempt: keep it for people to look at."""

    reason: str
    category: DeadCategory = DeadCategory.PERMANENT


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """Not wanted: settled, and never handled by this handler again. *reason* is logged."""

    reason: str


Outcome: TypeAlias = Done | Retry | Snooze | Throttled | DeadLetter | Drop


class RetryLater(TransientError):
    """Raised by a handler: the same as returning ``Retry``."""

    def __init__(self, reason: str = "", *, after_s: float = 0.0) -> None:
        super().__init__(reason)
        self.outcome = Retry(after_s=after_s, reason=reason)


class Dead(PermanentError):
    """Raised by a handler: the same as returning ``DeadLetter``."""

    def __init__(self, reason: str, *, category: DeadCategory = DeadCategory.PERMANENT) -> None:
        super().__init__(reason)
        self.outcome = DeadLetter(reason=reason, category=category)
