"""Dead letters: events that get no further attempt, kept whole for people to look at.

The row is the truth; its copy on the exchange is for whoever listens there. One open row per event: if another
handler of the same event dies, the row names both. What failed is told in words that were made safe before
(``consumer.decide.redaction``); the trace stands in a table of its own, so that reading it can be granted apart.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from psycopg import sql
from psycopg.rows import TupleRow

from consumer.outcome import DeadCategory
from consumer.store import stored as stored_message
from consumer.store.plans import fresh
from consumer.store.stored import Connection, Stored, storable
from outbox.event import Tier


@dataclass(frozen=True, slots=True, kw_only=True)
class NewDead:
    """An event to bury. *message* is a sentence without any of the event's content; *handlers* are those that gave up.

    *event_id* is ``None`` where the envelope could not be read, *handlers* empty where none was asked. *attempts*
    counts those that were spent.
    """

    group: str
    event_id: UUID | None
    stored: Stored
    category: DeadCategory
    message: str
    fingerprint: str
    error_class: str | None = None
    trace: str | None = None
    attempts: int = 0
    handlers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadSummary:
    """What may be shown of a dead letter to anyone: no payload, no header, no trace.

    *resolution* is ``replayed``, ``discarded``, or ``None`` while it is open.
    """

    id: int
    group: str
    event_id: UUID | None
    tier: Tier
    tenant: str
    type: str
    ordering_key: str | None
    key_number: int | None
    handlers: tuple[str, ...]
    category: DeadCategory
    error_class: str | None
    message: str
    fingerprint: str
    attempts: int
    dead_at: datetime
    published_at: datetime | None
    resolution: str | None
    resolved_at: datetime | None
    resolved_by: str | None
    content_type: str
    payload_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A dead letter with the message it keeps."""

    summary: DeadSummary
    stored: Stored


async def put(connection: Connection, dead: NewDead) -> int:
    """Write *dead* in the caller's transaction and return its id; call it after ledger, key position and work row.

    If the event has an open dead letter already, that one tells the newer failure and names the handlers of both;
    where those are more than before, it is published again.
    """
    values = (
        dead.group,
        dead.event_id,
        sorted(set(dead.handlers)),
        dead.category.value,
        None if dead.error_class is None else storable(dead.error_class),
        storable(dead.message),
        storable(dead.fingerprint),
        dead.attempts,
        *stored_message.parameters(dead.stored),
    )
    row = await (await connection.execute(_PUT, values)).fetchone()
    assert row is not None  # noqa: S101 - both branches of the upsert return it
    dead_id: int = row[0]
    if dead.trace is not None:
        await connection.execute(_PUT_TRACE, (dead_id, storable(dead.trace)))
    return dead_id


async def show(connection: Connection, dead_id: int) -> DeadLetter | None:
    """The dead letter *dead_id* with its message, which holds the payload."""
    row = await (await fresh(connection, _SHOW, {"id": dead_id})).fetchone()
    return None if row is None else _letter(row)


async def trace(connection: Connection, dead_id: int) -> str | None:
    """The stack trace of *dead_id*, if it has one; only roles that were granted it can read it."""
    row = await (await connection.execute(_TRACE, {"id": dead_id})).fetchone()
    return None if row is None else str(row[0])


async def unpublished(connection: Connection, group: str, *, limit: int) -> list[DeadLetter]:
    """Dead letters that have no copy on the exchange yet, oldest first, locked until the transaction ends.

    Publish them, with a deadline, then ``mark_published`` in the same transaction: a crash between the two
    publishes twice, never not at all. Those that another pump has locked are passed over.
    """
    cursor = await fresh(connection, _UNPUBLISHED, {"group": group, "limit": limit})
    return [_letter(columns) for columns in await cursor.fetchall()]


async def mark_published(connection: Connection, ids: Sequence[int]) -> None:
    """Record that the broker has confirmed a copy of each of *ids*."""
    await connection.execute(_MARK_PUBLISHED, {"ids": sorted(ids)})


def summary(columns: TupleRow) -> DeadSummary:
    """The summary in a row of ``SUMMARY_COLUMNS``."""
    return DeadSummary(
        id=columns[0],
        group=columns[1],
        event_id=columns[2],
        tier=Tier(columns[3]),
        tenant=columns[4],
        type=columns[5],
        ordering_key=columns[6],
        key_number=columns[7],
        handlers=tuple(columns[8]),
        category=DeadCategory(columns[9]),
        error_class=columns[10],
        message=columns[11],
        fingerprint=columns[12],
        attempts=columns[13],
        dead_at=columns[14],
        published_at=columns[15],
        resolution=columns[16],
        resolved_at=columns[17],
        resolved_by=columns[18],
        content_type=columns[19],
        payload_bytes=columns[20],
    )


#: What ``summary`` reads, of the table named ``d``.
SUMMARY_COLUMNS: Final = sql.SQL(
    "d.id, d.group_name, d.event_id, d.tier, d.tenant, d.type, d.ordering_key, d.key_number, d.handlers, d.category,"
    " d.error_class, d.message, d.fingerprint, d.attempts, d.dead_at, d.published_at, d.resolution, d.resolved_at,"
    " d.resolved_by, d.content_type, d.payload_bytes"
)
SUMMARY_WIDTH: Final = 21

#: A letter's message, of the table named ``d``, as ``stored.restore`` reads it.
MESSAGE_COLUMNS: Final = sql.SQL(", ").join(sql.Identifier("d", name) for name in stored_message.COLUMNS.split(", "))


def _letter(columns: TupleRow) -> DeadLetter:
    return DeadLetter(summary=summary(columns[:SUMMARY_WIDTH]), stored=stored_message.restore(columns[SUMMARY_WIDTH:]))


def _compose(query: sql.SQL) -> bytes:
    message = stored_message.COLUMNS.split(", ")
    return query.format(
        summary=SUMMARY_COLUMNS,
        of_row=MESSAGE_COLUMNS,
        message=sql.SQL(", ").join(map(sql.Identifier, message)),
        places=sql.SQL(", ").join(sql.Placeholder() * len(message)),
    ).as_bytes()


# No handler named means the event as a whole; that stays so whoever comes after.
_PUT: Final = _compose(
    sql.SQL("""
    INSERT INTO consumer.dead AS d (
        group_name, event_id, handlers, category, error_class, message, fingerprint, attempts, {message}
    ) VALUES (%s, %s, %s::text[], %s, %s, %s, %s, %s, {places})
    ON CONFLICT (group_name, event_id) WHERE resolution IS NULL AND event_id IS NOT NULL DO UPDATE SET
        handlers = CASE WHEN cardinality(d.handlers) = 0 OR cardinality(excluded.handlers) = 0 THEN '{{}}'
            ELSE ARRAY(SELECT name FROM unnest(d.handlers || excluded.handlers) name GROUP BY name ORDER BY name) END,
        category = excluded.category, error_class = excluded.error_class, message = excluded.message,
        fingerprint = excluded.fingerprint, attempts = greatest(d.attempts, excluded.attempts),
        published_at = CASE WHEN excluded.handlers <@ d.handlers THEN d.published_at END
    RETURNING id
    """)
)

_PUT_TRACE: Final = """
    INSERT INTO consumer.dead_trace (dead_id, trace) VALUES (%s, %s)
    ON CONFLICT (dead_id) DO UPDATE SET trace = excluded.trace
"""

_SHOW: Final = _compose(sql.SQL("SELECT {summary}, {of_row} FROM consumer.dead d WHERE d.id = %(id)s"))

_TRACE: Final = "SELECT trace FROM consumer.dead_trace WHERE dead_id = %(id)s"

_UNPUBLISHED: Final = _compose(
    sql.SQL("""
    SELECT {summary}, {of_row} FROM consumer.dead d WHERE d.group_name = %(group)s AND d.published_at IS NULL
    ORDER BY d.id LIMIT %(limit)s FOR UPDATE SKIP LOCKED
    """)
)

_MARK_PUBLISHED: Final = """
    UPDATE consumer.dead SET published_at = statement_timestamp() WHERE id = ANY(%(ids)s)
"""
