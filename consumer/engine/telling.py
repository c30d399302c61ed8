"""What is told of an event once all that follows from it is stored: a line in the log, and who has to know."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from consumer.decide.rules import Pause, PauseLane
from consumer.engine.books import report_for
from consumer.engine.item import Item
from consumer.engine.restraint import Restraint
from consumer.engine.verdict import Buried, Elsewhere, Fate, Finished, Pending
from consumer.outcome import DeadCategory
from consumer.ports import AlertKind
from consumer.store.gate import Key
from outbox.event import Event

# What went as it should is thousands of lines a second, for those who ask.
_LEVELS: Final = {
    "done": logging.DEBUG,
    "paused": logging.DEBUG,
    "dead": logging.WARNING,
    "suspect": logging.WARNING,
}
_ALERTS: Final = {
    DeadCategory.UNKNOWN_TYPE: (
        AlertKind.UNKNOWN_TYPE,
        "an event type without a handler is being buried; deploy one, then run outbox dead replay",
    ),
    DeadCategory.POISON: (
        AlertKind.POISON,
        "an event ended the process that handled it, more than once, and was buried",
    ),
    DeadCategory.SECURITY: (
        AlertKind.SECURITY,
        "an event was refused for security's sake and buried; see outbox dead list",
    ),
}
_KEY_BLOCKED: Final = (
    AlertKind.KEY_BLOCKED,
    "a dead letter holds its ordering key: what comes behind it waits until it is replayed or discarded",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """All that follows is stored: the broker may hear of it. *outcome* names it in logs and counts.

    *passed* is the key that moved on, and to which number; *due_in_s* is when its work row is due, if it has one.
    *has_paused*: the control table says so too.
    """

    outcome: str
    passed: tuple[Key, int] | None = None
    due_in_s: float | None = None
    has_paused: bool = False


class Telling:
    """Tells of one group's events. *skips_dead*: a dead letter lets those behind it pass."""

    def __init__(self, restraint: Restraint, *, skips_dead: bool) -> None:
        self._restraint = restraint
        self._skips_dead = skips_dead
        self._log = structlog.get_logger("consumer.decide.delivery")
        self._gate = logging.getLogger("consumer.decide.delivery")

    def settled(self, item: Item, settled: Settled, details: Callable[[], Mapping[str, object]] = dict) -> Settled:
        """Write the line that says how *item* ended, with *details*, if that is wanted; returns *settled*."""
        level = _LEVELS.get(settled.outcome, logging.INFO)
        if not self._gate.isEnabledFor(level):  # before the fields are put together: this is the hot path
            return settled
        self._log.log(
            level,
            "delivery settled",
            outcome=settled.outcome,
            event_id=None if item.event_id is None else str(item.event_id),
            event_type=item.envelope.type if isinstance(item.envelope, Event) else None,
            tenant=item.lane.tenant,
            tier=item.lane.tier.label,
            **details(),
        )
        return settled

    def buried(self, item: Item, category: DeadCategory, *, handler: str | None = None) -> None:
        """Raise the alerts that one more dead letter of *category* is worth."""
        event = item.envelope if isinstance(item.envelope, Event) else None
        event_type = None if event is None else event.type
        self._restraint.buried()
        alerts = [_ALERTS[category]] if category in _ALERTS else []
        if event is not None and event.ordering is not None and not self._skips_dead:
            alerts.append(_KEY_BLOCKED)
        for kind, text in alerts:
            self._restraint.alarm.sound(kind, text, tenant=item.lane.tenant, event_type=event_type, handler=handler)

    def paused(self, item: Item, event: Event, fate: Pending, pause: Pause) -> None:
        """Raise the alert that a rule has paused something."""
        what = "a lane" if isinstance(pause, PauseLane) else "a handler"
        until = "until somebody resumes it" if pause.for_s is None else f"for {pause.for_s:g} s"
        self._restraint.alarm.sound(
            AlertKind.PAUSED,
            f"a rule paused {what} {until}",
            tenant=item.lane.tenant if isinstance(pause, PauseLane) else None,
            event_type=event.type,
            handler=fate.handler,
        )


def name_of(fates: Sequence[Fate]) -> str:
    """The worst that happened."""
    if any(isinstance(fate, Buried) for fate in fates):
        return "dead"
    if any(isinstance(fate, Pending) for fate in fates):
        return "retry"
    if any(isinstance(fate, Finished) and fate.why is not None for fate in fates):
        return "dropped"
    if any(isinstance(fate, Finished) and fate.is_new for fate in fates):
        return "done"
    return "duplicate"


def details_of(item: Item, fates: Sequence[Fate]) -> dict[str, object]:
    """What a log line says beside the outcome."""
    details: dict[str, object] = {}
    for fate in fates:
        match fate:
            case Pending(handler=handler, wait_s=wait_s, attempts=attempts, what=what):
                details |= {"handler": handler, "wait_s": round(wait_s, 3), "attempts": attempts}
                details |= {} if what is None else {"error": report_for(item, what).message}
            case Buried(handler=handler, category=category, attempts=attempts, what=what):
                details |= {"handler": handler, "category": category.value, "attempts": attempts}
                details["error"] = report_for(item, what).message
            case Finished(handler=handler, why=str(why)):
                details |= {"handler": handler, "reason": report_for(item, why).message}
            case Finished() | Elsewhere():
                pass
    return details
