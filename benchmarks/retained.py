"""A log that has kept events for a long time: rows of every slot, published long ago."""

import sys

from psycopg import AsyncConnection

from outbox.naming import Lane, bucket_of, tenant_hash

_BATCH = 250_000
_TRANSACTIONS = 20_000

# Retained rows come of many transactions; a number each is drawn before anybody begins to read.
_NEXT = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint"
_DRAW = """
DO $$ BEGIN FOR number IN 1..{count} LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$"""
_FILL = """
INSERT INTO outbox.event (slot, xid, id, bucket, tier, tenant, tenant_hash, type, data_version, source, content_type,
                          payload, emitted_at, ledger_at)
SELECT (outbox.current_slot() + 1 + (n * slots.count / %(total)s)) %% slots.count,
       (%(first)s::bigint + n * %(transactions)s / %(total)s)::text::xid8,
       gen_random_uuid(), t.bucket, 1, t.tenant, t.tenant_hash, 'shop.order.placed', 1, '/svc/shop', 'application/json',
       convert_to('{"text":"' || repeat('x', 89) || '"}', 'UTF8'),
       clock_timestamp() - interval '1 hour', clock_timestamp() - interval '1 hour'
FROM generate_series(%(low)s::bigint, %(high)s::bigint - 1) n,
     (SELECT count(*) FROM pg_inherits WHERE inhparent = 'outbox.event'::regclass) slots,
     LATERAL (SELECT (%(tenants)s::text[])[1 + n %% %(lanes)s] AS tenant,
                     (%(hashes)s::bigint[])[1 + n %% %(lanes)s] AS tenant_hash,
                     (%(buckets)s::smallint[])[1 + n %% %(lanes)s] AS bucket) t"""


async def retain(database_url: str, among: list[Lane], *, count: int) -> None:
    """Fill the log with *count* published events of these lanes, all before any relay's position."""
    tenants = [lane.tenant for lane in among]
    hashes = [tenant_hash(tenant) for tenant in tenants]
    async with await AsyncConnection.connect(database_url, autocommit=True) as connection:
        row = await (await connection.execute(_NEXT)).fetchone()
        assert row is not None
        await connection.execute(_DRAW.format(count=_TRANSACTIONS))
        for low in range(0, count, _BATCH):
            parameters = {
                "first": row[0],
                "transactions": _TRANSACTIONS,
                "total": count,
                "low": low,
                "high": min(low + _BATCH, count),
                "lanes": len(among),
                "tenants": tenants,
                "hashes": hashes,
                "buckets": [bucket_of(hashed) for hashed in hashes],
            }
            await connection.execute(_FILL, parameters)
            print(f"{min(low + _BATCH, count):,} of {count:,} rows retained", file=sys.stderr)
        await connection.execute("UPDATE outbox.bucket SET lo = pg_current_snapshot()")
        await connection.execute("VACUUM (ANALYZE) outbox.event")
