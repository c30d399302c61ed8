"""A window too large to bring along, where a few tenants make it so: ranges for them, rows for everybody else.

Nobody counts the rows of the few. What has committed in the window is found by jumping from one transaction to the
next; where a tenant's rows of a transaction begin and end, by jumping to both; and the others' rows are what lies
between. So the time this takes grows with transactions and not with events.
"""

from collections.abc import Sequence
from typing import Any, Final, LiteralString

from relay.decide.pieces import Part
from relay.log.ringlog import BODIES, KEY, Bounds, as_window
from relay.log.rows import TIERS
from relay.log.store import Connection, deadline

# More than these are the work of a stall or of a takeover, and cost as much to visit as their rows do.
_TRANSACTIONS_MAX: Final = 200
_ROUNDS_MAX: Final = 3

_TRANSACTIONS: Final[LiteralString] = """
WITH RECURSIVE s AS MATERIALIZED (
    SELECT %(lo)s::pg_snapshot AS lo, %(hi)s::pg_snapshot AS hi
), x (xid) AS (
    SELECT (SELECT xid FROM outbox.event WHERE xid >= pg_snapshot_xmax(s.lo) ORDER BY xid LIMIT 1) FROM s
    UNION ALL
    SELECT (SELECT e.xid FROM outbox.event e WHERE e.xid > x.xid ORDER BY e.xid LIMIT 1) FROM x, s
    WHERE x.xid < pg_snapshot_xmax(s.hi)
), found AS (
    SELECT xid FROM x, s WHERE xid < pg_snapshot_xmax(s.hi) AND pg_visible_in_snapshot(xid, s.hi)
    UNION ALL
    SELECT r FROM s, pg_snapshot_xip(s.lo) r WHERE pg_visible_in_snapshot(r, s.hi)
)
SELECT xid::text FROM found LIMIT %(most)s"""

_SPANS: Final[LiteralString] = """
SELECT t.tier::smallint, h.tenant, b.tenant_hash, b.bucket, min(b.seq) - 1, max(z.seq)
FROM unnest(%(heavy)s::text[]) AS h (tenant) CROSS JOIN unnest(%(xids)s::text[]::xid8[]) AS x (xid)
CROSS JOIN generate_series(0, 2) AS t (tier)
CROSS JOIN LATERAL (
    SELECT seq, tenant_hash, bucket FROM outbox.event
    WHERE xid = x.xid AND tenant COLLATE "C" = h.tenant AND tier = t.tier ORDER BY seq LIMIT 1
) b
CROSS JOIN LATERAL (
    SELECT seq FROM outbox.event
    WHERE xid = x.xid AND tenant COLLATE "C" = h.tenant AND tier = t.tier ORDER BY seq DESC LIMIT 1
) z
GROUP BY t.tier, h.tenant, b.tenant_hash, b.bucket"""

# Between two heavy tenants, below the first and above the last, in the order of the index.
_REST: Final[LiteralString] = f"""
WITH s AS MATERIALIZED (SELECT %(hi)s::pg_snapshot AS hi), w AS MATERIALIZED (
    SELECT e.*
    FROM unnest(%(xids)s::text[]::xid8[]) AS x (xid) CROSS JOIN unnest(%(above)s::text[], %(heavy)s::text[]) AS g (a, b)
    CROSS JOIN LATERAL (
        SELECT {KEY} FROM outbox.event
        WHERE xid = x.xid AND tenant COLLATE "C" > g.a AND tenant COLLATE "C" < g.b
          AND bucket = ANY (%(buckets)s::smallint[]) OFFSET 0
    ) e
    UNION ALL
    SELECT e.*
    FROM unnest(%(xids)s::text[]::xid8[]) AS x (xid)
    CROSS JOIN LATERAL (
        SELECT {KEY} FROM outbox.event
        WHERE xid = x.xid AND tenant COLLATE "C" > %(last)s AND bucket = ANY (%(buckets)s::smallint[]) OFFSET 0
    ) e
    LIMIT %(rows)s + 1
), {BODIES}"""  # noqa: S608 (its parts are constants of this package)


async def parts_around(
    connection: Connection, lo: str, hi: str, buckets: Sequence[int], heavy: Sequence[str], bounds: Bounds
) -> Sequence[Part] | None:
    """The parts of window ``(lo, hi]`` of *buckets*, those of *heavy* tenants as ranges.

    None where that is not enough: too many transactions, or too much without these tenants and those found
    heavy among the rest.
    """
    if not heavy:
        return None
    async with deadline(connection, bounds.seconds), connection.cursor(binary=True) as cursor:
        await cursor.execute(_TRANSACTIONS, {"lo": lo, "hi": hi, "most": _TRANSACTIONS_MAX + 1})
        xids = [xid for (xid,) in await cursor.fetchall()]
        if len(xids) > _TRANSACTIONS_MAX:
            return None
        aside: list[str] = []
        for _ in range(_ROUNDS_MAX):
            # In the order of the index: of their bytes in UTF-8, which is that of their characters.
            aside = sorted([*aside, *heavy])
            await cursor.execute(_REST, _rest(hi, xids, aside, buckets, bounds))
            rest = as_window(await cursor.fetchall())
            if rest.parts is not None:
                await cursor.execute(_SPANS, {"xids": xids, "heavy": aside})
                return [*rest.parts, *(_span(row) for row in await cursor.fetchall())]
            if not rest.heavy:
                break
            heavy = rest.heavy
    return None


async def make_plans(connection: Connection, *, within_s: float) -> None:
    """Make the server plan what ``parts_around`` asks, which takes longer than the answers: nobody waits for it yet."""
    async with deadline(connection, within_s), connection.cursor(binary=True) as cursor:
        await cursor.execute("SELECT pg_current_snapshot()::text")
        now = (await cursor.fetchall())[0][0]
        await cursor.execute(_TRANSACTIONS, {"lo": now, "hi": now, "most": _TRANSACTIONS_MAX + 1})
        await cursor.execute(_REST, _rest(now, (), ("-",), (), Bounds(rows=1000, bytes=1 << 20, seconds=within_s)))
        await cursor.execute(_SPANS, {"xids": [], "heavy": []})


def _rest(
    hi: str, xids: Sequence[str], aside: Sequence[str], buckets: Sequence[int], bounds: Bounds
) -> dict[str, object]:
    return {
        "hi": hi,
        "xids": list(xids),
        "heavy": list(aside),
        "above": ["", *aside[:-1]],
        "last": aside[-1],
        "buckets": list(buckets),
        "rows": bounds.rows,
        "bytes": bounds.bytes,
        "look": False,
        "token": None,
        "relays": None,
    }


def _span(row: tuple[Any, ...]) -> Part:
    tier, tenant, tenant_hash, bucket, after, z = row
    return Part(tier=TIERS[tier], tenant=tenant, tenant_hash=tenant_hash, bucket=bucket, after=after, z=z, rows=None)
