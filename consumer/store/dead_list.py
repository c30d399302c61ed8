"""Dead letters as operators look at them: listed, grouped and exported, and what became of those that were replayed.

What is shown names no payload, header or trace, and asks the database for none: reading those can be granted apart.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final
from uuid import UUID

from psycopg import sql
from psycopg.rows import TupleRow

from consumer.outcome import DeadCategory
from consumer.store import stored as stored_message
from consumer.store.dead import MESSAGE_COLUMNS, SUMMARY_COLUMNS, SUMMARY_WIDTH, DeadSummary, summary
from consumer.store.plans import fresh
from consumer.store.stored import Connection, Stored

_FETCH: Final = 500


class DeadState(StrEnum):
    """Whether somebody has decided about a dead letter, and what."""

    OPEN = "open"
    REPLAYED = "replayed"
    DISCARDED = "discarded"


class Outcome(StrEnum):
    """How a replay went."""

    PENDING = "pending"  # its event still waits, or is being handled
    DONE = "done"
    DEAD_AGAIN = "dead again"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadFilter:
    """Which dead letters: those that fit everything given here; of any state where *state* is ``None``."""

    group: str
    ids: tuple[int, ...] | None = None
    event_id: UUID | None = None
    tenant: str | None = None
    type: str | None = None
    category: DeadCategory | None = None
    fingerprint: str | None = None
    dead_since: datetime | None = None
    dead_before: datetime | None = None
    state: DeadState | None = DeadState.OPEN


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A dead letter, and what its event came to: *outcome* of its replay, and how many letters it had before.

    *dead_again* is the number of the letter that it became, where it is dead again.
    """

    summary: DeadSummary
    outcome: Outcome | None
    dead_again: int | None
    earlier: int
    owner: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadGroup:
    """Dead letters that failed alike. *message*, *error_class* and *handlers* are the newest one's."""

    fingerprint: str
    category: DeadCategory
    error_class: str | None
    message: str
    handlers: tuple[str, ...]
    letters: int
    tenants: int
    types: tuple[str, ...]
    first_at: datetime
    last_at: datetime
    owner: str | None


async def matching(
    connection: Connection, dead_filter: DeadFilter, *, limit: int = 100, before_id: int | None = None
) -> list[Listed]:
    """Those that fit, newest first; *before_id* continues after the last one of a page."""
    values = {**parameters(dead_filter), "limit": limit, "before_id": before_id}
    cursor = await fresh(connection, _MATCHING, values)
    return [_listed(columns) for columns in await cursor.fetchall()]


async def one(connection: Connection, dead_id: int) -> Listed | None:
    """The letter *dead_id*, whatever its group and state; ``None`` also where this role may not see it."""
    row = await (await fresh(connection, _ONE, {"id": dead_id})).fetchone()
    return None if row is None else _listed(row)


async def groups(connection: Connection, dead_filter: DeadFilter, *, limit: int = 100) -> list[DeadGroup]:
    """Those that fit, grouped by how they failed, largest group first."""
    cursor = await fresh(connection, _GROUPS, {**parameters(dead_filter), "limit": limit})
    return [_group(columns) for columns in await cursor.fetchall()]


async def count(connection: Connection, dead_filter: DeadFilter) -> tuple[int, int]:
    """How many fit, and the number of the newest of them: 0 where none does."""
    row = await (await fresh(connection, _COUNT, parameters(dead_filter))).fetchone()
    assert row is not None  # noqa: S101 - it selects one row, always
    return row[0], row[1]


async def elsewhere(connection: Connection, group: str) -> list[tuple[str, int]]:
    """How many open letters every other group has that has any, by name."""
    return [
        (name, letters) for name, letters in await (await fresh(connection, _ELSEWHERE, {"group": group})).fetchall()
    ]


async def ids(connection: Connection, dead_filter: DeadFilter, *, after_id: int, to_id: int, limit: int) -> list[int]:
    """The numbers of those that fit in ``(after_id, to_id]``, oldest first."""
    values = {**parameters(dead_filter), "after_id": after_id, "to_id": to_id, "limit": limit}
    cursor = await fresh(connection, _IDS, values)
    return [dead_id for (dead_id,) in await cursor.fetchall()]


@asynccontextmanager
async def streamed(
    connection: Connection, dead_filter: DeadFilter, *, with_payload: bool
) -> AsyncIterator[AsyncIterator[tuple[Listed, Stored | None]]]:
    """Those that fit, oldest first, as of one moment and a few hundred at a time; with their messages if wanted.

    In a transaction of its own, which lasts as long as the reading does.
    """
    query = _STREAM_WHOLE if with_payload else _STREAM
    async with connection.transaction(), connection.cursor(name="fairpost_dead_letters") as cursor:
        cursor.itersize = _FETCH
        await cursor.execute(query, parameters(dead_filter))

        async def letters() -> AsyncIterator[tuple[Listed, Stored | None]]:
            async for columns in cursor:
                message = stored_message.restore(columns[_LISTED_WIDTH:]) if with_payload else None
                yield _listed(columns[:_LISTED_WIDTH]), message

        yield letters()


async def with_age(
    connection: Connection, dead_filter: DeadFilter, *, older_than: timedelta | None, newer_than: timedelta | None
) -> DeadFilter:
    """*dead_filter*, narrowed to letters of that age now, on the database's clock."""
    if older_than is None and newer_than is None:
        return dead_filter
    row = await (await connection.execute("SELECT clock_timestamp()")).fetchone()
    assert row is not None  # noqa: S101 - a function's result
    return replace(
        dead_filter,
        dead_before=None if older_than is None else row[0] - older_than,
        dead_since=None if newer_than is None else row[0] - newer_than,
    )


def in_state(dead_filter: DeadFilter, state: DeadState | None) -> DeadFilter:
    """*dead_filter*, for letters in *state*, or in any."""
    return replace(dead_filter, state=state)


def parameters(dead_filter: DeadFilter) -> dict[str, object]:
    """The values that filters need."""
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
        "state": None if dead_filter.state is None else dead_filter.state.value,
    }


def _listed(columns: TupleRow) -> Listed:
    found = summary(columns[:SUMMARY_WIDTH])
    dead_again, is_pending, earlier, owner = columns[SUMMARY_WIDTH:]
    outcome = None
    if found.resolution == DeadState.REPLAYED:
        outcome = Outcome.DEAD_AGAIN if dead_again else Outcome.PENDING if is_pending else Outcome.DONE
    return Listed(summary=found, outcome=outcome, dead_again=dead_again, earlier=earlier, owner=owner)


def _group(columns: TupleRow) -> DeadGroup:
    fingerprint, letters, tenants, types, first_at, last_at, category, error_class, message, handlers, owner = columns
    return DeadGroup(
        fingerprint=fingerprint,
        category=DeadCategory(category),
        error_class=error_class,
        message=message,
        handlers=tuple(handlers),
        letters=letters,
        tenants=tenants,
        types=tuple(types),
        first_at=first_at,
        last_at=last_at,
        owner=owner,
    )


# A replayed event is in a work row until it is done or dead again, so what is neither waiting nor dead was handled.
# It is worked out whenever somebody looks, so that nothing is written about it while events are handled.
_LISTED: Final = sql.SQL("""
    SELECT {summary},
           CASE WHEN d.resolution = 'replayed' THEN (
               SELECT min(l.id) FROM consumer.dead l
               WHERE l.group_name = d.group_name AND l.event_id = d.event_id AND l.id > d.id
                 AND (cardinality(d.handlers) = 0 OR cardinality(l.handlers) = 0 OR l.handlers && d.handlers)) END,
           CASE WHEN d.resolution = 'replayed' THEN consumer.is_replay_pending(d.id) ELSE false END,
           (SELECT count(*) FROM consumer.dead e
            WHERE e.group_name = d.group_name AND e.event_id = d.event_id AND e.id < d.id),
           (SELECT o.owner FROM consumer.dead_owner o
            WHERE o.group_name = d.group_name AND o.fingerprint = d.fingerprint)
           {message}
    FROM consumer.dead d
""")
_LISTED_WIDTH: Final = SUMMARY_WIDTH + 4

_FITS: Final = sql.SQL("""
    d.group_name = %(group)s
    AND (%(ids)s::bigint[] IS NULL OR d.id = ANY(%(ids)s::bigint[]))
    AND (%(event)s::uuid IS NULL OR d.event_id = %(event)s::uuid)
    AND (%(tenant)s::text IS NULL OR d.tenant = %(tenant)s::text)
    AND (%(type)s::text IS NULL OR d.type = %(type)s::text)
    AND (%(category)s::text IS NULL OR d.category = %(category)s::text)
    AND (%(fingerprint)s::text IS NULL OR d.fingerprint = %(fingerprint)s::text)
    AND (%(since)s::timestamptz IS NULL OR d.dead_at >= %(since)s::timestamptz)
    AND (%(before)s::timestamptz IS NULL OR d.dead_at < %(before)s::timestamptz)
    AND (%(state)s::text IS NULL OR coalesce(d.resolution, 'open') = %(state)s::text)
    AND (%(state)s::text IS DISTINCT FROM 'open' OR d.resolution IS NULL)
""")


def _compose(query: sql.SQL, *, with_message: bool = False) -> bytes:
    message = sql.SQL(", {}").format(MESSAGE_COLUMNS) if with_message else sql.SQL("")
    listed = _LISTED.format(summary=SUMMARY_COLUMNS, message=message)
    return query.format(listed=listed, fits=_FITS).as_bytes()


_MATCHING: Final = _compose(
    sql.SQL("""
    {listed} WHERE {fits} AND (%(before_id)s::bigint IS NULL OR d.id < %(before_id)s::bigint)
    ORDER BY d.id DESC LIMIT %(limit)s
    """)
)
_ONE: Final = _compose(sql.SQL("{listed} WHERE d.id = %(id)s"))
_STREAM: Final = _compose(sql.SQL("{listed} WHERE {fits} ORDER BY d.id"))
_STREAM_WHOLE: Final = _compose(sql.SQL("{listed} WHERE {fits} ORDER BY d.id"), with_message=True)
_COUNT: Final = _compose(sql.SQL("SELECT count(*), coalesce(max(d.id), 0) FROM consumer.dead d WHERE {fits}"))
_ELSEWHERE: Final = """
    SELECT group_name, count(*) FROM consumer.dead WHERE resolution IS NULL AND group_name <> %(group)s
    GROUP BY group_name ORDER BY group_name
"""
_IDS: Final = _compose(
    sql.SQL("""
    SELECT d.id FROM consumer.dead d WHERE {fits} AND d.id > %(after_id)s AND d.id <= %(to_id)s
    ORDER BY d.id LIMIT %(limit)s
    """)
)
_GROUPS: Final = _compose(
    sql.SQL("""
    WITH alike AS (
        SELECT d.fingerprint, count(*) AS letters, count(DISTINCT d.tenant) AS tenants,
               array_agg(DISTINCT d.type) AS types, min(d.dead_at) AS first_at, max(d.dead_at) AS last_at,
               max(d.id) AS newest
        FROM consumer.dead d WHERE {fits}
        GROUP BY d.fingerprint ORDER BY count(*) DESC, max(d.dead_at) DESC LIMIT %(limit)s
    )
    SELECT alike.fingerprint, alike.letters, alike.tenants, alike.types, alike.first_at, alike.last_at,
           n.category, n.error_class, n.message, n.handlers, o.owner
    FROM alike JOIN consumer.dead n ON n.id = alike.newest
    LEFT JOIN consumer.dead_owner o ON o.group_name = %(group)s AND o.fingerprint = alike.fingerprint
    ORDER BY alike.letters DESC, alike.last_at DESC
    """)
)
