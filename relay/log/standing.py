"""What stands in the log's tables and somebody should know of: since when the oldest event waits, what is deferred.

Cheap however much waits: a few rows are found by index, none is counted but the deferred.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, LiteralString

from relay.log.store import Connection, deadline

# The first row by each index is about the oldest: numbers are drawn in the order of emits, save within a moment. A lane
# that is behind on its own has not been sent what the base does not show either, so that counts for all.
_STREAMS_MAX: Final = 50
_OLDEST: Final[LiteralString] = """
WITH base AS (
    SELECT (lo::text)::pg_snapshot AS lo, array_agg(DISTINCT bucket) AS buckets FROM outbox.bucket GROUP BY lo::text
),
     behind AS (SELECT * FROM outbox.stream ORDER BY after LIMIT %s),
     first AS (
    SELECT e.ledger_at FROM base CROSS JOIN LATERAL (
        SELECT ledger_at FROM outbox.event
        WHERE xid >= pg_snapshot_xmax(base.lo) AND bucket = ANY (base.buckets) ORDER BY xid LIMIT 1
    ) e
    UNION ALL
    SELECT e.ledger_at FROM base CROSS JOIN LATERAL pg_snapshot_xip(base.lo) AS running (xid)
    CROSS JOIN LATERAL (
        SELECT ledger_at FROM outbox.event
        WHERE xid = running.xid AND bucket = ANY (base.buckets) ORDER BY seq LIMIT 1
    ) e
    UNION ALL
    SELECT e.ledger_at FROM behind s CROSS JOIN LATERAL (
        SELECT ledger_at FROM outbox.event
        WHERE tenant_hash = s.tenant_hash AND seq > s.after AND tenant = s.tenant AND tier = s.tier
          AND NOT pg_visible_in_snapshot(xid, s.lo)
        ORDER BY seq LIMIT 1
    ) e
)
SELECT coalesce(greatest(extract(epoch FROM clock_timestamp() - min(ledger_at)), 0), 0)::float8 FROM first"""
_DEFERRED_MAX: Final = 100_000
_DEFERRED: Final[LiteralString] = """
SELECT state, count(*) FROM (SELECT state FROM outbox.deferred LIMIT %s) d GROUP BY state"""
_STATES: Final = ("retry", "dead", "void")


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """*oldest_unpublished_s* is 0 where all is published; *deferred* has every state."""

    oldest_unpublished_s: float
    deferred: Mapping[str, int]


async def read(connection: Connection, *, within_s: float) -> Standing:
    """What stands there now, of every relay's buckets.

    Raises:
        StoreUnavailable: the database did not answer in time.
    """
    async with deadline(connection, within_s):
        oldest = await (await connection.execute(_OLDEST, (_STREAMS_MAX,))).fetchone()
        states = await (await connection.execute(_DEFERRED, (_DEFERRED_MAX,))).fetchall()
    assert oldest is not None  # noqa: S101 (an aggregate's row)
    return Standing(oldest_unpublished_s=oldest[0], deferred=dict.fromkeys(_STATES, 0) | dict(states))
