"""May an event with an ordering key be handled now? Decided from what was read; no clock, no I/O.

``consumer.store.gate`` reads a ``Position`` and this says what it means. A position only ever rises, so one that was
read a moment too early can make an event wait once more, but never let it run before its predecessor.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

from outbox.event import Ordering


class Turn(Enum):
    """What the gate says of one event."""

    READY = "ready"  # its predecessor was handled, or it is its key's first
    ORPHAN = "orphan"  # its predecessor counts as handled: older than the group's start or than the horizon
    LATE = "late"  # its number was passed already: the ledger says whether it was done
    EARLY = "early"  # its predecessor was not handled yet: it waits
    BUSY = "busy"  # another event of its key is being handled this moment: try again soon

    @property
    def may_run(self) -> bool:
        """Whether the event goes on to the ledger. Its number is recorded with ``gate.advance``, late ones included."""
        return self in (Turn.READY, Turn.ORPHAN, Turn.LATE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """What the database knew of a key: *number* is the last one handled, *now* the database's clock."""

    number: int | None
    now: datetime
    group_started_at: datetime | None


def decide(ordering: Ordering, position: Position, *, ledger_time: datetime, horizon: timedelta) -> Turn:
    """Whether it is the turn of the event with *ordering*. Never BUSY, which only a lock can tell.

    ORPHAN holds unless the predecessor is here, as a work row or an open dead letter: then it is EARLY, however old.

    Args:
        ledger_time: the event's own. No predecessor is newer, so it stands in for a missing ``previous_time``.
    """
    if position.number is not None and ordering.number <= position.number:
        return Turn.LATE
    if ordering.is_first or ordering.number - 1 == position.number:
        return Turn.READY
    previous_time = ordering.previous_time or ledger_time
    if previous_time < position.now - horizon:
        return Turn.ORPHAN
    if position.group_started_at is not None and previous_time < position.group_started_at:
        return Turn.ORPHAN
    return Turn.EARLY
