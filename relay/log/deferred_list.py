"""Deferred events as operators look at them: whose, what and why, without payloads."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, LiteralString
from uuid import UUID

from outbox.event import Event, Tier
from relay.log.deferred import State
from relay.log.rows import EVENT_COLUMNS, TIERS, event_of
from relay.log.store import Connection
from relay.ports import Category


@dataclass(frozen=True, slots=True, kw_only=True)
class DeferredFilter:
    """Which deferred events: those that fit everything given here."""

    group: str | None = None
    ids: tuple[UUID, ...] | None = None
    tenant: str | None = None
    type: str | None = None
    category: Category | None = None
    states: tuple[State, ...] = tuple(State)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeferredSummary:
    """What may be shown of a deferred event to anyone. *due_at* means nothing while it is dead.

    *is_claimed*: a relay has it in hand at this moment. *payload_bytes* of a void are none.
    """

    group: str
    id: UUID
    state: State
    category: Category
    reason: str
    attempts: int
    first_failed_at: datetime
    due_at: datetime
    is_claimed: bool
    tier: Tier
    tenant: str
    type: str
    ordering_key: str | None
    key_number: int | None
    payload_bytes: int


#: True of the rows of ``outbox.deferred d`` that fit a filter.
FITS: Final[LiteralString] = """
    (%(group)s::text IS NULL OR d.group_name = %(group)s::text)
    AND (%(ids)s::uuid[] IS NULL OR d.id = ANY(%(ids)s::uuid[]))
    AND (%(tenant)s::text IS NULL OR d.tenant = %(tenant)s::text)
    AND (%(type)s::text IS NULL OR d.type = %(type)s::text)
    AND (%(category)s::text IS NULL OR d.category = %(category)s::text)
    AND d.state = ANY(%(states)s::text[])"""

#: True of those that a relay has in hand. What a relay had that is gone is in nobody's.
IS_CLAIMED: Final[LiteralString] = """
    (d.token IS NOT NULL AND EXISTS (
        SELECT FROM outbox.bucket b
        WHERE b.group_name = d.group_name AND b.bucket = d.bucket AND b.token = d.token
          AND b.expires_at > clock_timestamp()))"""

_SUMMARY: Final[LiteralString] = f"""
    d.group_name, d.id, d.state, d.category, d.reason, d.attempts, d.first_failed_at, d.due_at, {IS_CLAIMED},
    d.tier, d.tenant, d.type, d.ordering_key, d.key_number, octet_length(d.payload)"""

_MATCHING: Final[LiteralString] = f"""
SELECT {_SUMMARY} FROM outbox.deferred d WHERE {FITS} ORDER BY d.first_failed_at DESC, d.id DESC LIMIT %(limit)s"""  # noqa: S608 (its parts are constants)

_EVENTS: Final[LiteralString] = f"""
SELECT {EVENT_COLUMNS} FROM outbox.deferred e WHERE e.group_name = %s AND e.id = %s"""  # noqa: S608 (its parts are constants)


def parameters(deferred_filter: DeferredFilter) -> dict[str, object]:
    """The values that ``FITS`` needs."""
    return {
        "group": deferred_filter.group,
        "ids": None if deferred_filter.ids is None else list(deferred_filter.ids),
        "tenant": deferred_filter.tenant,
        "type": deferred_filter.type,
        "category": None if deferred_filter.category is None else deferred_filter.category.value,
        "states": [state.value for state in deferred_filter.states],
    }


async def matching(connection: Connection, deferred_filter: DeferredFilter, *, limit: int) -> list[DeferredSummary]:
    """Those that fit, the latest to fail first."""
    cursor = await connection.execute(_MATCHING, {**parameters(deferred_filter), "limit": limit})
    return [_summary(row) for row in await cursor.fetchall()]


async def event(connection: Connection, group: str, event_id: UUID) -> Event | None:
    """The whole event, payload included; None if it is not deferred, or not any more."""
    async with connection.cursor(binary=True) as cursor:
        await cursor.execute(_EVENTS, (group, event_id))
        row = await cursor.fetchone()
    return None if row is None else event_of(row)


def _summary(row: tuple[Any, ...]) -> DeferredSummary:
    group, event_id, state, category, reason, attempts, failed_at, due_at, is_claimed, tier, *rest = row
    tenant, event_type, ordering_key, key_number, payload_bytes = rest
    return DeferredSummary(
        group=group,
        id=event_id,
        state=State(state),
        category=Category(category),
        reason=reason,
        attempts=attempts,
        first_failed_at=failed_at,
        due_at=due_at,
        is_claimed=is_claimed,
        tier=TIERS[tier],
        tenant=tenant,
        type=event_type,
        ordering_key=ordering_key,
        key_number=key_number,
        payload_bytes=payload_bytes,
    )
