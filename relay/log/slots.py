"""The ring's slots: what each still keeps, why, and emptying those that nobody needs any more.

Whether a slot may be emptied is decided in the database, under locks that nobody is waited for with.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, LiteralString

from outbox.errors import ConfigError
from relay.log.store import Connection, deadline

TRUNCATED: Final = "truncated"
CURRENT: Final = "current"
RETAINED: Final = "retained"
UNPUBLISHED: Final = "unpublished"
BUSY: Final = "busy"
FOREIGN: Final = "foreign"

# A relay that polls holds every slot's lock for a millisecond at a time, one that persists the positions': what is busy
# is free a moment later.
_TRIES: Final = 20
_TRY_EVERY_S: Final = 0.05
# Beside those that are written to and read from: the one that is emptied, and one to spare.
_SLACK_SLOTS: Final = 2
_DAY_S: Final = 86_400.0

_RING: Final[LiteralString] = "SELECT slots, slot_seconds FROM outbox.ring()"
# A row, of any kind, has pages: an empty slot needs neither lock nor question.
_FILLED: Final[LiteralString] = """
SELECT slot FROM outbox.ring(), generate_series(0, slots - 1) slot
WHERE pg_relation_size(format('outbox.event_%s', slot)::regclass) > 0 ORDER BY outbox.slot_ended_at(slot)"""
_TRUNCATE: Final[LiteralString] = "SELECT outbox.truncate_slot(%s, make_interval(secs => %s))"

# By the index that a slot's rows are read by; its first row is about its oldest.
_KEPT: Final[LiteralString] = """
SELECT f.slot, pg_total_relation_size(f.partition), r.slot_seconds,
       extract(epoch FROM clock_timestamp() - outbox.slot_ended_at(f.slot))::float8,
       extract(epoch FROM clock_timestamp() - e.ledger_at)::float8
FROM outbox.ring() r
CROSS JOIN LATERAL (
    SELECT slot, format('outbox.event_%s', slot)::regclass AS partition FROM generate_series(0, r.slots - 1) slot
) f
CROSS JOIN LATERAL (
    SELECT ledger_at FROM outbox.event WHERE slot = f.slot::smallint ORDER BY xid, seq LIMIT 1
) e
ORDER BY f.slot"""
_IS_PUBLISHED: Final[LiteralString] = "SELECT outbox.is_at_origin(), outbox.is_slot_published(%s)"
_HOLDER: Final[LiteralString] = """
SELECT coalesce(a.application_name, 'a prepared transaction'), l.pid,
       extract(epoch FROM clock_timestamp() - a.xact_start)::float8
FROM pg_locks l LEFT JOIN pg_stat_activity a USING (pid)
WHERE l.granted AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND l.relation = format('outbox.event_%%s', %s::integer)::regclass AND l.pid IS DISTINCT FROM pg_backend_pid()
ORDER BY a.xact_start NULLS FIRST LIMIT 1"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """How many slots the log has, and for how long each is written to before the next."""

    slots: int
    slot_s: float

    @property
    def retention_max_s(self) -> float:
        """Events kept for longer are still kept when their slot's turn comes again."""
        return (self.slots - _SLACK_SLOTS) * self.slot_s


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptSlot:
    """A slot with rows. *ended_s* ago it was last written to; negative while it is."""

    slot: int
    size_bytes: int
    slot_s: float
    ended_s: float
    oldest_s: float

    @property
    def is_reused(self) -> bool:
        """Whether it came to be written to again while it kept rows of an earlier turn."""
        return self.oldest_s > self.ended_s + 2 * self.slot_s

    def is_overdue(self, ring: Ring) -> bool:
        """Whether its rows should have gone before it is written to again, which is soon or was already."""
        return self.is_reused or self.ended_s > ring.retention_max_s + ring.slot_s / 2


async def read_ring(connection: Connection, *, within_s: float) -> Ring:
    """The log's ring, as the database was migrated with; it never changes."""
    async with deadline(connection, within_s):
        row = await (await connection.execute(_RING)).fetchone()
    assert row is not None  # noqa: S101 (a function's result)
    return Ring(slots=row[0], slot_s=float(row[1]))


def check_retention(retention_s: float, ring: Ring) -> None:
    """Return if a slot's events can be removed before its turn comes again.

    Raises:
        ConfigError: they cannot, so the log would only grow.
    """
    if retention_s > ring.retention_max_s:
        raise ConfigError(
            f"retention: want at most {ring.retention_max_s / _DAY_S:g} days, which the log's {ring.slots} slots of"
            f" {ring.slot_s / _DAY_S:g} days hold, got {retention_s / _DAY_S:g}"
        )


async def filled(connection: Connection, *, within_s: float) -> Sequence[int]:
    """The slots with rows in them, the one that was written to the longest ago first."""
    async with deadline(connection, within_s):
        return [slot for (slot,) in await (await connection.execute(_FILLED)).fetchall()]


async def truncate(connection: Connection, slot: int, *, retention_s: float, within_s: float) -> str:
    """Empty *slot* if its turn ended *retention_s* ago and every group was sent all of it; say what became of it.

    ``truncated``, ``current``, ``retained``, ``unpublished``, ``busy`` (somebody reads or writes it), or ``foreign``
    (the stored positions are another database's).
    """
    answer = BUSY
    for _ in range(_TRIES):
        async with deadline(connection, within_s):
            row = await (await connection.execute(_TRUNCATE, (slot, retention_s))).fetchone()
        answer = BUSY if row is None else str(row[0])
        if answer != BUSY:
            break
        await asyncio.sleep(_TRY_EVERY_S)
    return answer


async def kept(connection: Connection, *, within_s: float) -> Sequence[KeptSlot]:
    """What each slot with rows keeps."""
    async with deadline(connection, within_s):
        return [
            KeptSlot(slot=slot, size_bytes=size_bytes, slot_s=slot_s, ended_s=ended_s, oldest_s=oldest_s)
            for slot, size_bytes, slot_s, ended_s, oldest_s in await (await connection.execute(_KEPT)).fetchall()
        ]


async def why_kept(connection: Connection, slot: KeptSlot, *, within_s: float) -> str:
    """Half a sentence that says what keeps a slot that is overdue."""
    if slot.is_reused:
        return "it was written to again before it was emptied, and will be emptied when that is old too"
    async with deadline(connection, within_s):
        published = await (await connection.execute(_IS_PUBLISHED, (slot.slot,))).fetchone()
        holder = await (await connection.execute(_HOLDER, (slot.slot,))).fetchone()
    if published is not None and not published[0]:
        return "the stored positions are another database's"
    if published is not None and not published[1]:
        return "not every group was sent all of it"
    if holder is not None:
        name, pid, since_s = holder
        return f"in use by {name}" + ("" if pid is None else f", process {pid}, for {since_s or 0.0:.0f} s")
    return "no relay's janitor has come by"
