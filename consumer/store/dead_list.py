"""Dead letters as operators look at them: listed and grouped, without payloads, headers or traces."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from psycopg import sql

from consumer.outcome import DeadCategory
from consumer.store.dead import SUMMARY_COLUMNS, DeadSummary, summary
from consumer.store.plans import fresh
from consumer.store.stored import Connection


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadFilter:
    """Which dead letters: those that fit everything given here. Only open ones unless *is_open* is false."""

    group: str
    ids: tuple[int, ...] | None = None
    event_id: UUID | None = None
    tenant: str | None = None
    type: str | None = None
    category: DeadCategory | None = None
    fingerprint: str | None = None
    dead_since: datetime | None = None
    dead_before: datetime | None = None
    is_open: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadGroup:
    """Dead letters that failed alike. *message* and *error_class* are the newest one's."""

    fingerprint: str
    category: DeadCategory
    error_class: str | None
    message: str
    letters: int
    tenants: int
    types: tuple[str, ...]
    first_at: datetime
    last_at: datetime


async def matching(
    connection: Connection, dead_filter: DeadFilter, *, limit: int = 100, before_id: int | None = None
) -> list[DeadSummary]:
    """Those that fit, newest first; *before_id* continues after the last one of a page."""
    values = {**parameters(dead_filter), "limit": limit, "before_id": before_id}
    cursor = await fresh(connection, _MATCHING, values)
    return [summary(columns) for columns in await cursor.fetchall()]


async def groups(connection: Connection, dead_filter: DeadFilter, *, limit: int = 100) -> list[DeadGroup]:
    """Those that fit, grouped by how they failed, largest group first."""
    cursor = await fresh(connection, _GROUPS, {**parameters(dead_filter), "limit": limit})
    return [
        DeadGroup(
            fingerprint=fingerprint,
            category=DeadCategory(category),
            error_class=error_class,
            message=message,
            letters=letters,
            tenants=tenants,
            types=tuple(types),
            first_at=first_at,
            last_at=last_at,
        )
        for fingerprint, category, error_class, message, letters, tenants, types, first_at, last_at in (
            await cursor.fetchall()
        )
    ]


def parameters(dead_filter: DeadFilter) -> dict[str, object]:
    """The values that ``FITS`` needs."""
    return {
        "group": dead_filter.group,
        "ids": None if dead_filter.ids is None else list(dead_filter.ids),
        "event": dead_filter.event_id,
        "tenant": dead_filter.tenant,
        "type": dead_filter.type,
        "category": None if dead_filter.category is None else dead_filter.category.value,
        "fingerprint": dead_filter.fingerprint,
        "since": dead_filter.dead_since,
        "before": dead_filter.dead_before,
        "is_open": dead_filter.is_open,
    }


#: True of the rows of ``consumer.dead d`` that fit a filter.
FITS: Final = sql.SQL("""
    d.group_name = %(group)s
    AND (%(ids)s::bigint[] IS NULL OR d.id = ANY(%(ids)s::bigint[]))
    AND (%(event)s::uuid IS NULL OR d.event_id = %(event)s::uuid)
    AND (%(tenant)s::text IS NULL OR d.tenant = %(tenant)s::text)
    AND (%(type)s::text IS NULL OR d.type = %(type)s::text)
    AND (%(category)s::text IS NULL OR d.category = %(category)s::text)
    AND (%(fingerprint)s::text IS NULL OR d.fingerprint = %(fingerprint)s::text)
    AND (%(since)s::timestamptz IS NULL OR d.dead_at >= %(since)s::timestamptz)
    AND (%(before)s::timestamptz IS NULL OR d.dead_at < %(before)s::timestamptz)
    AND (NOT %(is_open)s OR d.resolution IS NULL)
""")

_MATCHING: Final = (
    sql.SQL("""
    SELECT {summary} FROM consumer.dead d
    WHERE {fits} AND (%(before_id)s::bigint IS NULL OR d.id < %(before_id)s::bigint)
    ORDER BY d.id DESC LIMIT %(limit)s
    """)
    .format(summary=SUMMARY_COLUMNS, fits=FITS)
    .as_bytes()
)

_GROUPS: Final = (
    sql.SQL("""
    SELECT fingerprint, (array_agg(category ORDER BY id DESC))[1], (array_agg(error_class ORDER BY id DESC))[1],
           (array_agg(message ORDER BY id DESC))[1], count(*), count(DISTINCT tenant),
           array_agg(DISTINCT type), min(dead_at), max(dead_at)
    FROM consumer.dead d WHERE {fits}
    GROUP BY fingerprint ORDER BY count(*) DESC, max(dead_at) DESC LIMIT %(limit)s
    """)
    .format(fits=FITS)
    .as_bytes()
)
