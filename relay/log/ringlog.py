"""Reading the ring log: what is new between two snapshots, and of whom.

New in window ``(lo, hi]`` are the rows visible in *hi* and not in *lo*: those of transactions that began
after *lo* was taken, and those that were running then and have committed since. Asking for rows above a last
number would lose every row whose transaction drew its number early and committed late.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, LiteralString

from outbox.event import Tier
from relay.decide.pieces import Extent, Part, Row
from relay.log.rows import EVENT_COLUMNS, TIERS, event_of
from relay.log.store import Connection, deadline

# A tenant is heavy that has more than one part in so many of what was read of a window too large.
_HEAVY_SHARE: Final = "8"
_HEAVY_MAX: Final = "4"

# The two branches share no row: a number at or above xmax is never among those that were running.
_SINCE: Final[LiteralString] = """
        FROM outbox.event
        WHERE xid >= pg_snapshot_xmax(%(lo)s::pg_snapshot) AND xid < (SELECT pg_snapshot_xmax(hi) FROM s)
          AND bucket = ANY (%(buckets)s::smallint[]) AND pg_visible_in_snapshot(xid, (SELECT hi FROM s))"""
_RUNNING_THEN: Final[LiteralString] = """
        FROM outbox.event
        WHERE xid = ANY (ARRAY(
                SELECT x FROM pg_snapshot_xip(%(lo)s::pg_snapshot) x
                WHERE pg_visible_in_snapshot(x, (SELECT hi FROM s))))
          AND bucket = ANY (%(buckets)s::smallint[])"""

KEY: Final[LiteralString] = "slot, tenant_hash, seq, tenant, octet_length(payload) AS size"

# Bodies are fetched by key, and only where all of them fit: a window too large costs its keys and no more.
# A snapshot's text may be long, so one row alone carries it.
BODIES: Final[LiteralString] = f"""t AS MATERIALIZED (
    SELECT count(*) > %(rows)s OR coalesce(sum(size), 0) > %(bytes)s AS is_large, min(seq) AS first_seq FROM w
)
SELECT CASE WHEN e.seq IS NULL OR e.seq = t.first_seq THEN s.hi::text END, t.is_large,
       CASE WHEN t.is_large THEN ARRAY(
           SELECT tenant FROM w GROUP BY tenant
           HAVING count(*) > %(rows)s / {_HEAVY_SHARE} OR sum(size) > %(bytes)s / {_HEAVY_SHARE}
           ORDER BY count(*) DESC LIMIT {_HEAVY_MAX}) END,
       %(look)s::boolean AND EXISTS (SELECT FROM outbox.scheduled WHERE due_at <= statement_timestamp()),
       %(look)s::boolean AND EXISTS (
           SELECT FROM outbox.deferred WHERE state <> 'dead' AND due_at <= statement_timestamp()),
       %(look)s::boolean AND (
           EXISTS (SELECT FROM outbox.bucket WHERE token <> %(token)s::bigint AND expires_at < statement_timestamp())
           OR %(relays)s::integer <> (
               SELECT count(*) FROM outbox.relay WHERE is_able AND expires_at >= statement_timestamp())),
       e.*
FROM s CROSS JOIN t LEFT JOIN (
    SELECT e.* FROM w CROSS JOIN LATERAL (
        SELECT e.seq, e.bucket, e.tenant_hash, e.slot, {EVENT_COLUMNS} FROM outbox.event e
        WHERE e.slot = w.slot AND e.tenant_hash = w.tenant_hash AND e.seq = w.seq OFFSET 0
    ) e WHERE NOT (SELECT is_large FROM t)
) e ON true
ORDER BY e.seq"""  # noqa: S608 (its parts are constants of this package)

_WINDOW: Final[LiteralString] = f"""
WITH s AS MATERIALIZED (
    SELECT coalesce(%(hi)s::pg_snapshot, pg_current_snapshot()) AS hi
), w AS MATERIALIZED (
    SELECT {KEY} {_SINCE}
    UNION ALL
    SELECT {KEY} {_RUNNING_THEN}
    LIMIT %(rows)s + 1
), {BODIES}"""

# Slots as bits, or as nobody knows where a ring has more of them than a number has bits.
_SURVEY: Final[LiteralString] = f"""
WITH s AS MATERIALIZED (SELECT %(hi)s::pg_snapshot AS hi)
SELECT tier, tenant, tenant_hash, bucket, min(seq) - 1, max(seq), count(*), sum(size)::bigint,
       CASE WHEN max(slot) < 63 THEN bit_or(1::bigint << slot) END FROM (
    SELECT tier, tenant, tenant_hash, bucket, slot, seq, octet_length(payload) AS size {_SINCE}
    UNION ALL
    SELECT tier, tenant, tenant_hash, bucket, slot, seq, octet_length(payload) AS size {_RUNNING_THEN}
) w GROUP BY tier, tenant, tenant_hash, bucket"""  # noqa: S608 (its parts are constants of this package)

# A stored stream stands at its own snapshot: what its lane has got since is found for all of them in one pass,
# from the earliest of their snapshots on.
_BEHIND: Final[LiteralString] = """
WITH st AS MATERIALIZED (
    SELECT st.group_name, st.tier, st.tenant, st.hi
    FROM outbox.stream st
    JOIN unnest(%(groups)s::text[], %(buckets)s::smallint[]) AS own (group_name, bucket) USING (group_name, bucket)
), s AS MATERIALIZED (
    SELECT %(hi)s::pg_snapshot AS hi, (SELECT pg_snapshot_xmax(st.hi) FROM st ORDER BY 1 LIMIT 1) AS least
), x AS MATERIALIZED (
    SELECT DISTINCT x FROM st, s, pg_snapshot_xip(st.hi) x WHERE x < s.least AND pg_visible_in_snapshot(x, s.hi)
), e AS (
    SELECT tier, tenant, seq, xid FROM outbox.event
    WHERE xid >= (SELECT least FROM s) AND pg_visible_in_snapshot(xid, (SELECT hi FROM s))
    UNION ALL
    SELECT tier, tenant, seq, xid FROM outbox.event WHERE xid = ANY (ARRAY(SELECT x FROM x))
)
SELECT st.group_name, st.tier, st.tenant, min(e.seq) - 1, max(e.seq)
FROM e JOIN st USING (tier, tenant)
WHERE NOT pg_visible_in_snapshot(e.xid, st.hi)
GROUP BY st.group_name, st.tier, st.tenant"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What became visible up to *hi*; *parts* is None where that was more than the caller wanted in one go."""

    hi: str
    parts: Sequence[Part] | None
    heavy: Sequence[str]
    """Then: tenants who have much of it, as far as it was read."""
    has_scheduled: bool
    """Events wait whose due time has come."""
    has_deferred: bool
    """Deferred events wait whose next try has come."""
    has_moves: bool
    """Buckets wait for an owner, or relays have come or gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """Who asks: a relay by its *token*, which knows of so many *relays* that live and reach the broker."""

    token: int
    relays: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Behind:
    """What a lane with a stored stream has got since the stream's own window: rows in ``(after, z]``."""

    group: str
    tier: Tier
    tenant: str
    after: int
    z: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How much one read may bring: rows, bytes of payload, and seconds."""

    rows: int
    bytes: int
    seconds: float


async def snapshot(connection: Connection, *, within_s: float) -> str:
    """What is visible now."""
    async with deadline(connection, within_s):
        row = await (await connection.execute("SELECT pg_current_snapshot()::text")).fetchone()
    assert row is not None  # noqa: S101 (a SELECT without FROM has one row)
    return str(row[0])


async def window(
    connection: Connection,
    lo: str,
    hi: str | None,
    buckets: Sequence[int],
    bounds: Bounds,
    *,
    look_as: Look | None = None,
) -> Window:
    """Read window ``(lo, hi]`` of *buckets*, or up to this statement's own snapshot when *hi* is None.

    Args:
        look_as: also say whether anything is due, or has changed among the relays, for whom.
    """
    parameters = {
        "lo": lo,
        "hi": hi,
        "buckets": list(buckets),
        "rows": bounds.rows,
        "bytes": bounds.bytes,
        "look": look_as is not None,
        "token": None if look_as is None else look_as.token,
        "relays": None if look_as is None else look_as.relays,
    }
    async with deadline(connection, bounds.seconds), connection.cursor(binary=True) as cursor:
        await cursor.execute(_WINDOW, parameters)
        rows = await cursor.fetchall()
    return as_window(rows)


async def survey(
    connection: Connection, lo: str, hi: str, buckets: Sequence[int], *, within_s: float
) -> Sequence[Part]:
    """Who has how much in window ``(lo, hi]`` of *buckets*, without the rows. Reads every key in it once."""
    async with deadline(connection, within_s), connection.cursor(binary=True) as cursor:
        await cursor.execute(_SURVEY, {"lo": lo, "hi": hi, "buckets": list(buckets)})
        return [
            Part(TIERS[tier], tenant, hashed, bucket, after, z, None, Extent(rows, size), slots)
            for tier, tenant, hashed, bucket, after, z, rows, size, slots in await cursor.fetchall()
        ]


async def behind(
    connection: Connection, hi: str, taken: Sequence[tuple[str, int]], *, within_s: float
) -> Sequence[Behind]:
    """What lanes with stored streams, of the *taken* groups and buckets, have got from their own windows up to *hi*."""
    parameters = {"hi": hi, "groups": [group for group, _ in taken], "buckets": [bucket for _, bucket in taken]}
    async with deadline(connection, within_s), connection.transaction(), connection.cursor(binary=True) as cursor:
        # Every row of the log meets the table of streams once: a nested loop would read that table for each.
        await cursor.execute(
            "SELECT set_config('enable_hashjoin', 'on', true), set_config('enable_nestloop', 'off', true)"
        )
        await cursor.execute(_BEHIND, parameters)
        return [
            Behind(group=group, tier=TIERS[tier], tenant=tenant, after=after, z=z)
            for group, tier, tenant, after, z in await cursor.fetchall()
        ]


def as_window(rows: Sequence[tuple[Any, ...]]) -> Window:
    """What a statement that ends in ``BODIES`` has brought."""
    hi, is_large, heavy, has_scheduled, has_deferred, has_moves, first_seq, *_ = rows[0]
    return Window(
        hi=hi,
        parts=None if is_large else [] if first_seq is None else _parts(rows),
        heavy=heavy or (),
        has_scheduled=has_scheduled,
        has_deferred=has_deferred,
        has_moves=bool(has_moves),
    )


def _parts(rows: Sequence[tuple[Any, ...]]) -> list[Part]:
    """One part per tier and tenant, from a window's rows in ``seq`` order."""
    by_tenant: dict[tuple[int, str], tuple[int, int, list[Row]]] = {}
    slots = sum([1 << slot for slot in {row[9] for row in rows}])
    for row in rows:
        event = event_of(row[10:])
        mine = by_tenant.get((event.tier, event.tenant))
        if mine is None:
            mine = by_tenant[event.tier, event.tenant] = (row[8], row[7], [])
        mine[2].append(Row(row[6], event))
    return [
        Part(TIERS[tier], tenant, hashed, bucket, mine[0].seq - 1, mine[-1].seq, mine, slots=slots)
        for (tier, tenant), (hashed, bucket, mine) in by_tenant.items()
    ]
