"""Row-level failures: events that could not be published though their neighbours could.

Each is a copy of the event, per group, with its reason: to be tried again when its time comes, or dead. The
log's own positions go past it, so what follows it is never held.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, LiteralString
from uuid import UUID

from outbox.backoff import Jitter, backoff_s
from outbox.event import Event
from outbox.naming import Lane
from relay.log.rows import EVENT_COLUMNS, TIERS, event_of
from relay.log.store import Connection, deadline
from relay.ports import Category

_BASE_S: Final = 5.0
_CAP_S: Final = 15 * 60.0
#: No later try can end otherwise.
_HOPELESS: Final = frozenset({Category.TOO_LARGE})

# The body is copied inside the database, from the log by its key.
_INSERT: Final[LiteralString] = """
INSERT INTO outbox.deferred (
    group_name, state, category, reason, attempts, due_at,
    id, bucket, tier, tenant, tenant_hash, type, data_version, source, content_type, payload, emitted_at, ledger_at,
    ordering_key, key_number, key_first, key_previous_at, idempotency_key, actor, causation_id, correlation_id,
    traceparent, tracestate)
SELECT f.group_name, f.state, f.category, f.reason, 1, clock_timestamp() + make_interval(secs => f.delay_s),
    e.id, e.bucket, e.tier, e.tenant, e.tenant_hash, e.type, e.data_version, e.source, e.content_type, e.payload,
    e.emitted_at, e.ledger_at, e.ordering_key, e.key_number, e.key_first, e.key_previous_at, e.idempotency_key,
    e.actor, e.causation_id, e.correlation_id, e.traceparent, e.tracestate
FROM unnest(%s::text[], %s::bigint[], %s::bigint[], %s::text[], %s::text[], %s::text[], %s::float8[])
    AS f (group_name, tenant_hash, seq, state, category, reason, delay_s)
CROSS JOIN LATERAL (
    SELECT * FROM outbox.event e WHERE e.tenant_hash = f.tenant_hash AND e.seq = f.seq OFFSET 0
) e
ON CONFLICT (group_name, id) DO NOTHING"""

_UPDATE: Final[LiteralString] = """
UPDATE outbox.deferred d
SET state = f.state, category = f.category, reason = f.reason, attempts = d.attempts + 1,
    due_at = clock_timestamp() + make_interval(secs => f.delay_s)
FROM unnest(%s::text[], %s::uuid[], %s::text[], %s::text[], %s::text[], %s::float8[])
    AS f (group_name, id, state, category, reason, delay_s)
WHERE d.group_name = f.group_name AND d.id = f.id"""

_DELETE: Final[LiteralString] = """
DELETE FROM outbox.deferred d
USING unnest(%s::text[], %s::uuid[]) AS done (group_name, id)
WHERE d.group_name = done.group_name AND d.id = done.id"""

_DUE: Final[LiteralString] = f"""
SELECT e.group_name, e.tenant_hash, e.bucket, e.attempts, {EVENT_COLUMNS}
FROM outbox.deferred e JOIN outbox.bucket b ON b.group_name = e.group_name AND b.bucket = e.bucket
WHERE e.state = 'retry' AND e.due_at <= statement_timestamp() AND b.token = %s
ORDER BY e.due_at LIMIT %s"""  # noqa: S608 (its parts are constants of this package)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """What becomes of an event that failed: dead, or tried again after *delay_s*."""

    is_dead: bool
    delay_s: float

    @property
    def state(self) -> str:
        """As the table has it."""
        return "dead" if self.is_dead else "retry"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An event of the log that one group cannot be sent now."""

    lane: Lane
    tenant_hash: int
    seq: int
    category: Category
    reason: str
    fate: Fate


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedAgain:
    """A deferred event whose next try failed as well."""

    group: str
    event_id: UUID
    category: Category
    reason: str
    fate: Fate


@dataclass(frozen=True, slots=True, kw_only=True)
class DueEvent:
    """A deferred event whose time has come. *attempts* are those that failed."""

    lane: Lane
    tenant_hash: int
    bucket: int
    attempts: int
    event: Event


def fate(category: Category, *, attempts: int, attempts_max: int, rng: random.Random) -> Fate:
    """What follows the failure number *attempts* of one event, counting from 1."""
    if category in _HOPELESS or attempts >= attempts_max:
        return Fate(is_dead=True, delay_s=0.0)
    return Fate(is_dead=False, delay_s=backoff_s(attempts, base_s=_BASE_S, cap_s=_CAP_S, jitter=Jitter.EQUAL, rng=rng))


async def due(connection: Connection, token: int, *, rows_max: int, within_s: float) -> Sequence[DueEvent]:
    """Deferred events of the buckets under *token* whose time has come, the longest due first."""
    async with deadline(connection, within_s), connection.cursor(binary=True) as cursor:
        await cursor.execute(_DUE, (token, rows_max))
        return [
            DueEvent(
                lane=Lane(group=group, tier=TIERS[row[2]], tenant=row[1]),
                tenant_hash=tenant_hash,
                bucket=bucket,
                attempts=attempts,
                event=event_of(tuple(row)),
            )
            for group, tenant_hash, bucket, attempts, *row in await cursor.fetchall()
        ]


async def write_failures(connection: Connection, failures: Sequence[Failure]) -> None:
    """Copy events from the log to here. What is here already stays as it is. Inside the caller's transaction."""
    await connection.execute(
        _INSERT,
        (
            [one.lane.group for one in failures],
            [one.tenant_hash for one in failures],
            [one.seq for one in failures],
            [one.fate.state for one in failures],
            [one.category.value for one in failures],
            [one.reason for one in failures],
            [one.fate.delay_s for one in failures],
        ),
    )


async def write_failed_again(connection: Connection, failures: Sequence[FailedAgain]) -> None:
    """Count another attempt of deferred events. Inside the caller's transaction."""
    await connection.execute(
        _UPDATE,
        (
            [one.group for one in failures],
            [one.event_id for one in failures],
            [one.fate.state for one in failures],
            [one.category.value for one in failures],
            [one.reason for one in failures],
            [one.fate.delay_s for one in failures],
        ),
    )


async def delete_published(connection: Connection, published: Sequence[tuple[str, UUID]]) -> None:
    """Forget deferred events that were published, by group and id. Inside the caller's transaction."""
    await connection.execute(_DELETE, ([group for group, _ in published], [event_id for _, event_id in published]))
