"""What a running consumer counts for whoever watches its metrics: what came, how long it waited, how attempts went."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from consumer.engine.attempt import Early, Fenced, Handled, Interrupted, Known, Raised, Result, Returned
from consumer.outcome import DeadLetter, Drop, Retry, Snooze, Throttled
from outbox.event import Tier
from outbox.shell.histogram import DELAY_S, DURATION_S, Histogram

_WORDS = {
    Handled: "done",
    Raised: "raised",
    Interrupted: "interrupted",
    Fenced: "fenced",
    Retry: "retry",
    Snooze: "snooze",
    Throttled: "throttled",
    DeadLetter: "dead_letter",
    Drop: "drop",
}


def _delays() -> dict[Tier, Histogram]:
    return {tier: Histogram(DELAY_S) for tier in Tier}


@dataclass(slots=True, eq=False)
class Tally:
    """Counts since the start of the process; written on the engine's event loop alone.

    *attempts* is by handler and by how it ended, *attempt_time* in seconds by handler: claim, handler and commit.
    *start_delay* is in seconds from an event's emit, or due time, to its first attempt here, by tier. *settled_at* and
    *renewed_at* are Unix times; 0 before the first. *work_rows* and *dead_letters* stand in the database, all
    processes together, by reason and category; *overdue_s* is how long the longest due work row has waited for a slot.
    """

    from_queues: int = 0
    from_work: int = 0
    attempts: Counter[tuple[str, str]] = field(default_factory=Counter)
    attempt_time: dict[str, Histogram] = field(default_factory=lambda: defaultdict(lambda: Histogram(DURATION_S)))
    start_delay: dict[Tier, Histogram] = field(default_factory=_delays)
    settled_at: float = 0.0
    renewed_at: float = 0.0
    work_rows: dict[str, int] = field(default_factory=dict)
    dead_letters: dict[str, int] = field(default_factory=dict)
    overdue_s: float | None = None

    def attempted(self, handler: str, result: Result, took_s: float) -> None:
        """An attempt of *handler* has ended with *result*; where none was made, nothing is counted."""
        if isinstance(result, Known | Early):
            return
        what = type(result.outcome) if isinstance(result, Returned) else type(result)
        self.attempts[handler, _WORDS[what]] += 1
        self.attempt_time[handler].observe(took_s)
