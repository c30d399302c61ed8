"""outbox-consumer: takes deliveries from the lanes, fairly per tenant, and runs handlers once per event.

What handlers are written with:

    from consumer import Consumer, Context, Outcome
"""

from consumer.api import Consumer
from consumer.context import Context
from consumer.decide.failure import Policy
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

__all__ = [
    "Alert",
    "AlertKind",
    "Consumer",
    "Context",
    "Dead",
    "DeadCategory",
    "DeadLetter",
    "Done",
    "Drop",
    "Outcome",
    "Policy",
    "Retry",
    "RetryLater",
    "Snooze",
    "Throttled",
]
