"""Removing what emits leave beside the log: expired idempotency keys, and counters of ordering keys long unused.

An emit that uses one of them at that moment has its row locked, and such a row is passed by; one that comes just after
waits for one batch, finds nothing, and begins anew. A key's number then restarts higher, and is marked as a first.
"""

from dataclasses import dataclass
from typing import Final, LiteralString

from relay.log.store import Connection, deadline

BATCH: Final = 1_000

_KEYS: Final[LiteralString] = """
DELETE FROM outbox.key k USING (
    SELECT tenant, idempotency_key FROM outbox.key WHERE expires_at <= statement_timestamp()
    ORDER BY expires_at LIMIT %s FOR UPDATE SKIP LOCKED
) gone
WHERE k.tenant = gone.tenant AND k.idempotency_key = gone.idempotency_key"""

# An index on the time would be written to with every keyed event. The table is walked along its key instead, some of
# it at a time, and a row's time is looked at again once it is locked.
_COUNTERS: Final[LiteralString] = """
WITH seen AS MATERIALIZED (
    SELECT tenant, tier, ordering_key, last_at FROM outbox.ordering
    WHERE (tenant, tier, ordering_key) > (%(tenant)s, %(tier)s::smallint, %(key)s)
    ORDER BY tenant, tier, ordering_key LIMIT %(rows)s
), old AS MATERIALIZED (
    SELECT o.tenant, o.tier, o.ordering_key
    FROM seen s JOIN outbox.ordering o USING (tenant, tier, ordering_key)
    WHERE s.last_at < statement_timestamp() - make_interval(secs => %(retention_s)s)
      AND o.last_at < statement_timestamp() - make_interval(secs => %(retention_s)s)
    FOR UPDATE OF o SKIP LOCKED
), gone AS (
    DELETE FROM outbox.ordering o USING old
    WHERE o.tenant = old.tenant AND o.tier = old.tier AND o.ordering_key = old.ordering_key
    RETURNING 1
)
SELECT (SELECT count(*) FROM gone), (SELECT count(*) FROM seen), s.tenant, s.tier, s.ordering_key
FROM (VALUES (1)) one LEFT JOIN LATERAL (
    SELECT * FROM seen ORDER BY tenant DESC, tier DESC, ordering_key DESC LIMIT 1
) s ON true"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a walk along the counters stands: they are passed up to here."""

    tenant: str = ""
    tier: int = -1
    key: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Walked:
    """One batch of counters: how many were removed, and where the next begins; None if this was the last."""

    removed: int
    following: Place | None


async def prune_keys(connection: Connection, *, within_s: float) -> int:
    """Remove up to a batch of idempotency keys that have expired; return how many."""
    async with deadline(connection, within_s):
        return (await connection.execute(_KEYS, (BATCH,))).rowcount


async def prune_counters(connection: Connection, place: Place, *, retention_s: float, within_s: float) -> Walked:
    """Look at the next batch of ordering counters after *place*, and remove those not used for *retention_s*.

    That must be longer than any emit may wait for another on its key: an emit draws a first number, in case it needs
    one, before it waits.
    """
    parameters = {
        "tenant": place.tenant,
        "tier": place.tier,
        "key": place.key,
        "rows": BATCH,
        "retention_s": retention_s,
    }
    async with deadline(connection, within_s):
        row = await (await connection.execute(_COUNTERS, parameters)).fetchone()
    assert row is not None  # noqa: S101 (one row always)
    removed, seen, tenant, tier, key = row
    following = Place(tenant=tenant, tier=tier, key=key) if seen == BATCH else None
    return Walked(removed=removed, following=following)
