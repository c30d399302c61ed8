"""Removing ledger rows: whole partitions, once every event that could ask for them is outside the horizon.

Nothing is deleted row by row. The database decides by its own clock whether a slot is free, and gives up after
50 ms rather than make a claim wait behind it.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from consumer.decide.horizon import Ring, free_slots
from consumer.store.stored import Connection
from outbox.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """What became of the free slots: emptied now, or *busy*, to be tried again in a minute."""

    emptied: tuple[int, ...]
    busy: tuple[int, ...]


async def read_ring(connection: Connection) -> Ring:
    """The ledger's ring, as the database was migrated with; it never changes."""
    row = await (await connection.execute(_RING)).fetchone()
    assert row is not None  # noqa: S101 - a function's result
    return Ring(slots=row[0], slot_seconds=row[1])


def check_horizon(horizon: timedelta, ring: Ring) -> timedelta:
    """Return *horizon* if the ring holds it with a slot to spare.

    Raises:
        ConfigError: it is longer, so no slot would ever be free, or not positive.
    """
    if not timedelta() < horizon <= ring.horizon_max:
        raise ConfigError(f"horizon: want more than 0 and at most {ring.horizon_max}, got {horizon}")
    return horizon


async def prune(connection: Connection, *, horizon: timedelta) -> Pruned:
    """Empty every slot that holds no time within *horizon*. On a connection with autocommit; safe to repeat.

    Each slot is a transaction of its own, at most 50 ms of waiting.
    """
    ring = await read_ring(connection)
    emptied, busy = [], []
    for slot in sorted(free_slots(now=await _now(connection), horizon=horizon, ring=ring)):
        async with connection.transaction():
            row = await (await connection.execute(_TRUNCATE, {"slot": slot, "horizon": horizon})).fetchone()
        match row:
            case ("truncated",):
                emptied.append(slot)
            case ("busy",):
                busy.append(slot)
            case _:  # empty before, or in use again since we looked
                pass
    return Pruned(emptied=tuple(emptied), busy=tuple(busy))


async def _now(connection: Connection) -> datetime:
    row = await (await connection.execute(_NOW)).fetchone()
    assert row is not None  # noqa: S101 - a function's result
    now: datetime = row[0]
    return now


_RING: Final = "SELECT slots, slot_seconds FROM consumer.ring()"

_NOW: Final = "SELECT clock_timestamp()"

_TRUNCATE: Final = "SELECT consumer.truncate_slot(%(slot)s, %(horizon)s)"
