"""Row-level failures: events that could not be published though their neighbours could.

Each is a copy of the event, per group, with its reason: to be tried again when its time comes, or dead. The
log's own positions go past it, so what follows it is never held. Before one is sent again it is claimed: while the
claim and the lease it was made under last, nobody else decides what becomes of it (``relay.log.resolve``).
"""

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final, LiteralString
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


class State(StrEnum):
    """What is to become of a deferred event. The value is stored."""

    RETRY = "retry"  # it is tried again when it is due
    DEAD = "dead"  # it is not, until an operator says so
    VOID = "void"  # it was discarded: what is published in its place only moves its key's number


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
    due_at = clock_timestamp() + make_interval(secs => f.delay_s), token = NULL
FROM unnest(%s::text[], %s::uuid[], %s::text[], %s::text[], %s::text[], %s::float8[])
    AS f (group_name, id, state, category, reason, delay_s)
WHERE d.group_name = f.group_name AND d.id = f.id AND d.token = %s"""

_DELETE: Final[LiteralString] = """
DELETE FROM outbox.deferred d
USING unnest(%s::text[], %s::uuid[]) AS done (group_name, id)
WHERE d.group_name = done.group_name AND d.id = done.id AND d.token = %s"""

_UNCLAIM: Final[LiteralString] = """
UPDATE outbox.deferred d SET token = NULL
FROM unnest(%s::text[], %s::smallint[]) AS gone (group_name, bucket)
WHERE d.token = %s AND d.group_name = gone.group_name AND d.bucket = gone.bucket"""

# In the order of the index of what is due, so that it costs what is due and not what is dead; OFFSET 0 and the
# subqueries keep the planner to that. Lanes that must wait are left out here: theirs could fill every answer, and
# nobody else's would ever be sent.
_DUE: Final[LiteralString] = """
SELECT d.group_name, d.tier, d.tenant, d.tenant_hash, d.bucket, d.id, octet_length(d.payload)
FROM (
    SELECT * FROM outbox.deferred WHERE state <> 'dead' AND due_at <= statement_timestamp()
    ORDER BY due_at, id OFFSET 0
) d
WHERE d.token IS DISTINCT FROM %(token)s
  AND (SELECT b.token FROM outbox.bucket b WHERE b.group_name = d.group_name AND b.bucket = d.bucket) = %(token)s
  AND (d.group_name, d.tier, d.tenant) NOT IN (
      SELECT w.group_name, w.tier, w.tenant
      FROM unnest(%(groups)s::text[], %(tiers)s::smallint[], %(tenants)s::text[]) AS w (group_name, tier, tenant))
ORDER BY d.due_at, d.id LIMIT %(rows)s"""

# A row that an operator has locked is passed over, so neither waits for the other; one that an operator has changed
# just now is for the next look. Looked up and not joined, see FIXED_PLANS.
_CLAIM: Final[LiteralString] = f"""
UPDATE outbox.deferred e SET token = %(token)s
WHERE e.ctid = ANY (ARRAY(
    SELECT d.place
    FROM unnest(%(groups)s::text[], %(ids)s::uuid[]) AS w (group_name, id)
    CROSS JOIN LATERAL (
        SELECT d.ctid AS place FROM outbox.deferred d
        WHERE d.group_name = w.group_name AND d.id = w.id AND d.state <> 'dead' AND d.due_at <= statement_timestamp()
        FOR UPDATE SKIP LOCKED
    ) d))
  AND (SELECT b.token FROM outbox.bucket b WHERE b.group_name = e.group_name AND b.bucket = e.bucket) = %(token)s
RETURNING e.group_name, e.tenant_hash, e.bucket, e.attempts, e.state, {EVENT_COLUMNS}"""  # noqa: S608 (constants)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """What becomes of an event that failed; *delay_s* is until its next try, if it gets one."""

    state: State
    delay_s: float

    @property
    def is_dead(self) -> bool:
        """Whether nothing more is tried."""
        return self.state is State.DEAD


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
class Due:
    """A deferred event whose time has come, without its body, which has *payload_bytes*."""

    lane: Lane
    tenant_hash: int
    bucket: int
    event_id: UUID
    payload_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """A deferred event that is this relay's to send. *attempts* are those that failed."""

    lane: Lane
    tenant_hash: int
    bucket: int
    attempts: int
    event: Event


def fate(category: Category, *, attempts: int, attempts_max: int, is_void: bool, rng: random.Random) -> Fate:
    """What follows the failure number *attempts* of one event, counting from 1.

    A void is never dead: nothing more could be done about it, and its key would stay where it is.
    """
    delay_s = backoff_s(attempts, base_s=_BASE_S, cap_s=_CAP_S, jitter=Jitter.EQUAL, rng=rng)
    if is_void:
        return Fate(state=State.VOID, delay_s=delay_s)
    if category in _HOPELESS or attempts >= attempts_max:
        return Fate(state=State.DEAD, delay_s=0.0)
    return Fate(state=State.RETRY, delay_s=delay_s)


async def due(
    connection: Connection, token: int, *, waiting: Collection[Lane], rows_max: int, within_s: float
) -> Sequence[Due]:
    """Deferred events of the buckets under *token* whose time has come, the longest due first.

    Without those that are with the broker already, and those of lanes in *waiting*.
    """
    values = {
        "token": token,
        "groups": [lane.group for lane in waiting],
        "tiers": [int(lane.tier) for lane in waiting],
        "tenants": [lane.tenant for lane in waiting],
        "rows": rows_max,
    }
    async with deadline(connection, within_s), connection.cursor(binary=True) as cursor:
        await cursor.execute(_DUE, values)
        return [
            Due(
                lane=Lane(group=group, tier=TIERS[tier], tenant=tenant),
                tenant_hash=tenant_hash,
                bucket=bucket,
                event_id=event_id,
                payload_bytes=payload_bytes,
            )
            for group, tier, tenant, tenant_hash, bucket, event_id, payload_bytes in await cursor.fetchall()
        ]


async def claim(connection: Connection, token: int, wanted: Sequence[Due], *, within_s: float) -> Sequence[Claimed]:
    """Claim *wanted* for the relay with *token* and return them, in that order; those that it cannot have are left out.

    The claim ends with what is written of the event next, or with the lease of its bucket.
    """
    values = {
        "token": token,
        "groups": [one.lane.group for one in wanted],
        "ids": [one.event_id for one in wanted],
    }
    async with deadline(connection, within_s), connection.cursor(binary=True) as cursor:
        await cursor.execute(_CLAIM, values)
        rows = await cursor.fetchall()
    claimed = {(row[0], row[5]): _claimed(row) for row in rows}
    keys = [(one.lane.group, one.event_id) for one in wanted]
    return [claimed[key] for key in keys if key in claimed]


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


async def write_failed_again(connection: Connection, token: int, failures: Sequence[FailedAgain]) -> None:
    """Count another attempt of events that were claimed with *token*, and let go of them.

    Inside the caller's transaction. A claim that did not last changes nothing.
    """
    await connection.execute(
        _UPDATE,
        (
            [one.group for one in failures],
            [one.event_id for one in failures],
            [one.fate.state for one in failures],
            [one.category.value for one in failures],
            [one.reason for one in failures],
            [one.fate.delay_s for one in failures],
            token,
        ),
    )


async def delete_published(connection: Connection, token: int, published: Sequence[tuple[str, UUID]]) -> None:
    """Forget events that were published after they were claimed with *token*, by group and id.

    Inside the caller's transaction. A claim that did not last changes nothing.
    """
    await connection.execute(
        _DELETE, ([group for group, _ in published], [event_id for _, event_id in published], token)
    )


async def unclaim(connection: Connection, token: int, places: Sequence[tuple[str, int]]) -> None:
    """Let go of all that was claimed with *token* in these groups' buckets. Inside the caller's transaction."""
    await connection.execute(_UNCLAIM, ([group for group, _ in places], [bucket for _, bucket in places], token))


def _claimed(row: tuple[Any, ...]) -> Claimed:
    group, tenant_hash, bucket, attempts, state, *columns = row
    event = event_of(tuple(columns))
    if state == State.VOID and event.ordering is not None:
        event = replace(event, ordering=replace(event.ordering, is_void=True))
    return Claimed(
        lane=Lane(group=group, tier=event.tier, tenant=event.tenant),
        tenant_hash=tenant_hash,
        bucket=bucket,
        attempts=attempts,
        event=event,
    )
