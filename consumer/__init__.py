"""outbox-consumer: takes deliveries from the lanes, fairly per tenant, and runs handlers once per event.

What handlers are written with:

    from consumer import Consumer, Context, Outcome
"""

from typing import TYPE_CHECKING, Final

from outbox.lazy import lazily

# Each name is imported when it is first used: a command that prints its help needs neither SQLAlchemy nor pydantic.
if TYPE_CHECKING:
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

_HOMES: Final = {
    "Alert": "consumer.ports",
    "AlertKind": "consumer.ports",
    "Breaker": "consumer.decide.policy",
    "Budget": "consumer.decide.policy",
    "Cap": "consumer.decide.limit",
    "Consumer": "consumer.api",
    "Context": "consumer.context",
    "Dead": "consumer.outcome",
    "DeadCategory": "consumer.outcome",
    "DeadLetter": "consumer.outcome",
    "Done": "consumer.outcome",
    "Drop": "consumer.outcome",
    "HttpStatus": "consumer.decide.rules",
    "Jitter": "outbox.backoff",
    "Outcome": "consumer.outcome",
    "PauseHandler": "consumer.decide.rules",
    "PauseLane": "consumer.decide.rules",
    "Policy": "consumer.decide.policy",
    "Rate": "consumer.decide.limit",
    "Retry": "consumer.outcome",
    "RetryLater": "consumer.outcome",
    "Rule": "consumer.decide.rules",
    "Snooze": "consumer.outcome",
    "SqlState": "consumer.decide.rules",
    "Throttled": "consumer.outcome",
}
__getattr__, __dir__ = lazily(__name__, _HOMES)
