"""Events with a due time: moved into the log when it has come, in one transaction, by whoever comes first."""

from typing import Final, LiteralString

from relay.log.store import Connection, deadline

# Locked rows are skipped: another relay moves those, or the app cancels them.
# They take their place in the log now; their ledger time stays what it would have been on time.
_MOVE: Final[LiteralString] = """
WITH moved AS (
    DELETE FROM outbox.scheduled WHERE id IN (
        SELECT id FROM outbox.scheduled WHERE due_at <= statement_timestamp()
        ORDER BY due_at, id LIMIT %s FOR UPDATE SKIP LOCKED
    )
    RETURNING *
)
INSERT INTO outbox.event (
    id, bucket, tier, tenant, tenant_hash, type, data_version, source, content_type, payload, emitted_at, ledger_at,
    idempotency_key, actor, causation_id, correlation_id, traceparent, tracestate)
SELECT id, bucket, tier, tenant, tenant_hash, type, data_version, source, content_type, payload, emitted_at,
    greatest(emitted_at, due_at),
    idempotency_key, actor, causation_id, correlation_id, traceparent, tracestate
FROM moved ORDER BY due_at, id"""


async def move_due(connection: Connection, *, rows_max: int, within_s: float) -> int:
    """Move up to *rows_max* events whose time has come, by the database's clock; return how many were moved."""
    async with deadline(connection, within_s):
        return (await connection.execute(_MOVE, (rows_max,))).rowcount
