"""Which ledger partition a time belongs to, and which times the ledger still remembers. No clock, no I/O."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

#: How far ahead of our database's clock another database's may be.
AHEAD_MAX: Final = timedelta(minutes=5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """The ledger's ring of partitions, as the database was migrated with (``pruning.read_ring``)."""

    slots: int
    slot_seconds: int

    @property
    def horizon_max(self) -> timedelta:
        """The longest horizon that leaves one slot free to be emptied."""
        return timedelta(seconds=(self.slots - 2) * self.slot_seconds)


def slot_of(ledger_time: datetime, ring: Ring) -> int:
    """The slot whose partition ``consumer.ledger_<slot>`` holds the rows of an event with *ledger_time*."""
    return int(ledger_time.timestamp() // ring.slot_seconds) % ring.slots


def is_within(ledger_time: datetime, *, now: datetime, horizon: timedelta) -> bool:
    """Whether the ledger can tell a duplicate of that time: in ``[now - horizon, now + 5 min]``, ends included."""
    return now - horizon <= ledger_time <= now + AHEAD_MAX


def free_slots(*, now: datetime, horizon: timedelta, ring: Ring) -> frozenset[int]:
    """The slots that hold no time within the horizon: what is in them can be dropped."""
    first = int((now - horizon).timestamp() // ring.slot_seconds)
    last = int((now + AHEAD_MAX).timestamp() // ring.slot_seconds)
    return frozenset(range(ring.slots)) - {number % ring.slots for number in range(first, last + 1)}
