"""outbox-consumer: takes deliveries from the lanes, fairly per tenant, and runs handlers once per event.

What handlers are written with:

    from consumer import Consumer, Context, Outcome
"""

from consumer.api import Consumer
from consumer.context import Context
from consumer.decide.limit import Cap, Rate
from consumer.decide.policy import Breaker, Budget, Policy
from consumer.decide.rules import HttpStatus, PauseHandler, PauseLane, Rule, SqlState
from consumer.outcome import (
    Dead,
    DeadCategory,
    DeadLetter,
    Done,
    Drop,
    Outcome,
    Retry,
    RetryLater,
    Snooze,
    Throttled,
)
from consumer.ports import Alert, AlertKind
from outbox.backoff import Jitter

__all__ = [
    "Alert",
    "AlertKind",
    "Breaker",
    "Budget",
    "Cap",
    "Consumer",
    "Context",
    "Dead",
    "DeadCategory",
    "DeadLetter",
    "Done",
    "Drop",
    "HttpStatus",
    "Jitter",
    "Outcome",
    "PauseHandler",
    "PauseLane",
    "Policy",
    "Rate",
    "Retry",
    "RetryLater",
    "Rule",
    "Snooze",
    "SqlState",
    "Throttled",
]
