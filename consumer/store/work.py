"""Work rows: every event that waits in our hands, one per group and event, with its reason and its due time.

A row belongs to nobody, or to the process incarnation that claimed it. Where a transaction writes several
tables, it writes them in this order, so that two never wait for each other: ledger, key position, work, dead
letter. Batches are written in the order of event ids.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final
from uuid import UUID

from psycopg import sql
from psycopg.rows import TupleRow

from consumer.store import stored as stored_message
from consumer.store.known import KNOWN, needs_version
from consumer.store.plans import by_index, fresh
from consumer.store.stored import Connection, Stored
from outbox.errors import LeaseLost
from outbox.event import Tier


class Reason(StrEnum):
    """Why an event waits. The value is stored."""

    RETRY = "retry"  # an attempt failed; the next is due
    WAITING = "waiting"  # its predecessor was not handled yet
    HELD = "held"  # held longer than a buffer may: caps, pauses, running elsewhere
    SUSPECT = "suspect"  # an attempt began and its process died; only ``take_due(suspects=True)`` claims it
    REPLAY = "replay"  # an operator wants a dead letter handled again, or, with no handlers left, skipped


@dataclass(frozen=True, slots=True, kw_only=True)
class NewWork:
    """An event to keep. It is due *delay_s* after now on the database's clock, but never before *not_before*.

    *handlers* are those not yet done: ``None`` is every handler of its type, empty is none, a **void**: it waits
    for its turn only to move its key on. *attempts* counts those that were spent. *is_failing*
    says that an attempt failed: the row keeps since when.
    """

    group: str
    event_id: UUID
    stored: Stored
    reason: Reason
    delay_s: float = 0.0
    not_before: datetime | None = None
    attempts: int = 0
    handlers: tuple[str, ...] | None = None
    last_error: str | None = None
    is_failing: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkRow:
    """An event that waits. *handlers* as in ``NewWork``; *waiting_since* is when the row was first written.

    *failing_since* is when the first of an unbroken line of attempts failed.
    *is_marked*: a process that died may have begun it; see ``store.start``.
    """

    group: str
    event_id: UUID
    stored: Stored
    reason: Reason
    due_at: datetime
    attempts: int
    handlers: tuple[str, ...] | None
    owner: UUID | None
    waiting_since: datetime
    last_error: str | None
    failing_since: datetime | None = None
    is_marked: bool = False


async def put(connection: Connection, rows: Iterable[NewWork], *, owner: UUID | None = None) -> frozenset[UUID]:
    """Write *rows* in the caller's transaction, each new or over *owner*'s; nobody owns them afterwards.

    What another delivery of an event has written waits for handlers that this one knows nothing of: they are kept
    beside those of the new row, and so are the longer wait and that it is a replay or a suspect. A row that belongs to
    another process than *owner* stays as it is: that process has the event. So every event of *rows* has a work row
    when this returns. Returns the events of which it is now as asked.
    """
    return await _write(connection, _PUT, rows, owner)


async def park(connection: Connection, rows: Iterable[NewWork], *, owner: UUID | None = None) -> frozenset[UUID]:
    """As ``put``, but a row that *owner* does not own stays as it is, also if nobody owns it.

    For what only has to wait: a duplicate that comes too early must not undo the event's own retry.
    """
    return await _write(connection, _PARK, rows, owner)


async def take_due(
    connection: Connection,
    group: str,
    *,
    owner: UUID,
    per_lane_limit: int,
    total: int,
    suspects: bool = False,
    tiers: Collection[Tier] = tuple(Tier),
) -> list[WorkRow]:
    """Claim due rows of *group* and *tiers* for *owner*: oldest lanes first, an equal share of *total* each.

    No lane gets more than *per_lane_limit* rows into *owner*'s hands, those it holds already included, so a
    tenant with 100,000 due rows takes no more of a claim than one with three. Rows that another transaction
    has locked are passed over, never waited for. On a connection with autocommit: the claim is committed when
    this returns. Rows of processes that died come free by ``incarnation.reap``.
    """
    values = {"group": group, "owner": owner, "per_lane": per_lane_limit, "total": total, "suspects": suspects}
    values["tiers"] = [int(tier) for tier in tiers]
    async with by_index(connection):
        cursor = await fresh(connection, _TAKE_DUE, values)
        rows = await cursor.fetchall()
    return sorted((_row(columns) for columns in rows), key=lambda row: row.due_at)


async def finish(connection: Connection, group: str, event_ids: Sequence[UUID], *, owner: UUID) -> None:
    """Delete rows that *owner* owns: what they waited for was done, in this transaction or before.

    Raises:
        LeaseLost: one of them is another's by now; whoever called must roll back.
    """
    wanted = sorted(event_ids)
    cursor = await fresh(connection, _FINISH, {"group": group, "events": wanted, "owner": owner})
    if cursor.rowcount != len(wanted):
        raise LeaseLost(f"work rows: want {len(wanted)} of this process, got {cursor.rowcount}")


async def give_back(connection: Connection, group: str, *, owner: UUID, event_ids: Sequence[UUID] | None = None) -> int:
    """Release rows that *owner* owns, all or those of *event_ids*, uncharged and due as before. Returns how many."""
    values = {"group": group, "owner": owner, "events": None if event_ids is None else sorted(event_ids)}
    cursor = await fresh(connection, _GIVE_BACK, values)
    return cursor.rowcount


async def owned(connection: Connection, group: str, *, owner: UUID) -> frozenset[UUID]:
    """The events whose rows *owner* owns."""
    cursor = await fresh(connection, _OWNED, {"group": group, "owner": owner})
    return frozenset([event_id for (event_id,) in await cursor.fetchall()])


async def make_due(connection: Connection, group: str, *, tenant: str, tier: Tier, key: str, number: int) -> bool:
    """Make the event *number* of *key* due now if it waits for its predecessor. For use after that one's commit.

    The few that wait right behind it become due with it, in their order: claimed together, each finds the one before
    it handled, and a long line moves on without asking the database for one after the other.

    Returns whether it waited. It is a short cut: ``gate.sweep`` finds whatever this misses.
    """
    values = {"group": group, "tenant": tenant, "tier": int(tier), "key": key, "number": number, "ahead": _AHEAD}
    cursor = await fresh(connection, _MAKE_DUE, values)
    return cursor.rowcount > 0


async def exists(connection: Connection, group: str, event_ids: Sequence[UUID]) -> frozenset[UUID]:
    """Those of *event_ids* that have a work row: a duplicate delivery of one runs nothing and is acked."""
    cursor = await fresh(connection, _EXISTS, {"group": group, "events": list(event_ids)})
    return frozenset([event_id for (event_id,) in await cursor.fetchall()])


async def has_suspects(connection: Connection, group: str) -> bool:
    """Whether a suspect is due that nobody has claimed."""
    cursor = await fresh(connection, _HAS_SUSPECTS, {"group": group})
    return await cursor.fetchone() is not None


async def seconds_to_next(
    connection: Connection, group: str, *, owner: UUID, tiers: Collection[Tier] = tuple(Tier)
) -> float | None:
    """How long until the next unowned row that *owner* may take is due: 0 if one is, ``None`` if there is none."""
    if len(tiers) == len(Tier):
        cursor = await fresh(connection, _SECONDS_TO_NEXT, {"group": group, "owner": owner})
    else:
        values = {"group": group, "suspects": False, "tiers": [int(tier) for tier in tiers]}
        async with by_index(connection):
            cursor = await fresh(connection, _SECONDS_TO_NEXT_OF, values)
    row = await cursor.fetchone()
    return None if row is None or row[0] is None else max(0.0, float(row[0]))


async def _write(connection: Connection, query: bytes, rows: Iterable[NewWork], owner: UUID | None) -> frozenset[UUID]:
    written: set[UUID] = set()
    for row in sorted(rows, key=lambda row: (row.event_id, row.group)):
        cursor = await connection.execute(query, (*_new_values(row), owner))
        written.update(event_id for (event_id,) in await cursor.fetchall())
    return frozenset(written)


def _new_values(row: NewWork) -> tuple[object, ...]:
    return (
        row.group,
        row.event_id,
        row.reason.value,
        row.delay_s,
        row.not_before,
        row.attempts,
        None if row.handlers is None else list(row.handlers),
        None if row.last_error is None else stored_message.storable(row.last_error),
        row.is_failing,
        needs_version(row.stored, row.handlers),
        *stored_message.parameters(row.stored),
    )


def _row(columns: TupleRow) -> WorkRow:
    group, event_id, reason, due_at, attempts, handlers, owner, since, error, failing, is_marked, *message = columns
    return WorkRow(
        group=group,
        event_id=event_id,
        stored=stored_message.restore(tuple(message)),
        reason=Reason(reason),
        due_at=due_at,
        attempts=attempts,
        handlers=None if handlers is None else tuple(handlers),
        owner=owner,
        waiting_since=since,
        last_error=error,
        failing_since=failing,
        is_marked=is_marked,
    )


def _compose(query: sql.SQL, *, condition: sql.SQL | None = None) -> bytes:
    columns = stored_message.COLUMNS.split(", ")
    return query.format(
        columns=sql.SQL(", ").join(map(sql.Identifier, columns)),
        of_row=sql.SQL(", ").join(sql.Identifier("w", column) for column in columns),
        places=sql.SQL(", ").join(sql.Placeholder() * len(columns)),
        condition=condition or sql.SQL(""),
        lane=_LANE,
        known=KNOWN,
    ).as_bytes()


# Walks the index from the head of one lane to the head of the next, so it costs as much as there are lanes, however
# many rows a lane has.
_LANE: Final = sql.SQL("""lane AS (
        (SELECT tier, tenant, due_at FROM consumer.work
         WHERE group_name = %(group)s AND owner IS NULL AND (reason = 'suspect') = %(suspects)s
         ORDER BY tier, tenant, due_at LIMIT 1)
        UNION ALL
        SELECT head.* FROM lane CROSS JOIN LATERAL (
            SELECT w.tier, w.tenant, w.due_at FROM consumer.work w
            WHERE w.group_name = %(group)s AND w.owner IS NULL AND (w.reason = 'suspect') = %(suspects)s
              AND (w.tier, w.tenant) > (lane.tier, lane.tenant)
            ORDER BY w.tier, w.tenant, w.due_at LIMIT 1
        ) head
    )""")

_WRITE: Final = sql.SQL("""
    INSERT INTO consumer.work AS w (
        group_name, event_id, reason, due_at, attempts, handlers, last_error, failing_since, needs_version, {columns}
    ) VALUES (
        %s, %s, %s,
        greatest(clock_timestamp() + make_interval(secs => %s), %s::timestamptz),
        %s, %s::text[], %s, CASE WHEN %s THEN clock_timestamp() END, %s::integer, {places}
    )
    ON CONFLICT (group_name, event_id) DO UPDATE SET
        reason = CASE WHEN w.owner IS NULL AND w.reason IN ('replay', 'suspect') THEN w.reason ELSE excluded.reason END,
        due_at = CASE WHEN w.owner IS NULL AND w.reason IN ('retry', 'replay', 'suspect')
            THEN greatest(w.due_at, excluded.due_at) ELSE excluded.due_at END,
        handlers = CASE WHEN w.owner IS NOT NULL THEN excluded.handlers
            WHEN w.handlers IS NOT NULL AND excluded.handlers IS NOT NULL
            THEN ARRAY(SELECT n FROM unnest(w.handlers || excluded.handlers) n GROUP BY n ORDER BY n) END,
        attempts = excluded.attempts, last_error = excluded.last_error, needs_version = excluded.needs_version,
        owner = NULL,
        failing_since = CASE WHEN excluded.reason <> 'retry' OR excluded.failing_since IS NOT NULL
            THEN coalesce(CASE WHEN w.reason <> 'replay' THEN w.failing_since END, excluded.failing_since) END
    WHERE {condition}
    RETURNING w.event_id
""")
_PUT: Final = _compose(_WRITE, condition=sql.SQL("w.owner IS NULL OR w.owner = %s::uuid"))
_PARK: Final = _compose(_WRITE, condition=sql.SQL("w.owner = %s::uuid"))

# A lane's rows are locked beneath its LIMIT: what another claim holds is passed over and the next one taken.
_TAKE_DUE: Final = _compose(
    sql.SQL("""
    WITH RECURSIVE {lane}, in_hand AS MATERIALIZED (
        SELECT tier, tenant, count(*) AS rows FROM consumer.work WHERE owner = %(owner)s GROUP BY tier, tenant
    ), chosen AS MATERIALIZED (
        SELECT lane.tier, lane.tenant, %(per_lane)s::bigint - coalesce(in_hand.rows, 0) AS room
        FROM lane LEFT JOIN in_hand USING (tier, tenant)
        WHERE lane.due_at <= statement_timestamp() AND coalesce(in_hand.rows, 0) < %(per_lane)s::bigint
          AND lane.tier = ANY(%(tiers)s::smallint[])
        ORDER BY lane.due_at LIMIT %(total)s
    ), share AS MATERIALIZED (
        SELECT %(total)s::bigint / greatest(count(*), 1) AS rows FROM chosen
    ), taken AS MATERIALIZED (
        SELECT due.event_id FROM chosen CROSS JOIN share CROSS JOIN LATERAL (
            SELECT w.event_id FROM consumer.work w
            WHERE w.group_name = %(group)s AND w.owner IS NULL AND w.tier = chosen.tier AND w.tenant = chosen.tenant
              AND w.due_at <= statement_timestamp() AND (w.reason = 'suspect') = %(suspects)s AND {known}
            ORDER BY w.due_at LIMIT least(chosen.room, share.rows)
            FOR UPDATE SKIP LOCKED
        ) due
    )
    UPDATE consumer.work w SET owner = %(owner)s
    WHERE w.group_name = %(group)s AND w.event_id = ANY(ARRAY(SELECT event_id FROM taken))
    RETURNING w.group_name, w.event_id, w.reason, w.due_at, w.attempts, w.handlers, w.owner, w.created_at,
              w.last_error, w.failing_since,
              EXISTS (SELECT FROM consumer.start s WHERE s.group_name = w.group_name AND s.event_id = w.event_id),
              {of_row}
    """)
)

_FINISH: Final = """
    DELETE FROM consumer.work WHERE group_name = %(group)s AND event_id = ANY(%(events)s) AND owner = %(owner)s
"""

_GIVE_BACK: Final = """
    UPDATE consumer.work SET owner = NULL WHERE group_name = %(group)s AND event_id = ANY(ARRAY(
        SELECT event_id FROM consumer.work
        WHERE owner = %(owner)s AND group_name = %(group)s
          AND (%(events)s::uuid[] IS NULL OR event_id = ANY(%(events)s))
        ORDER BY event_id FOR UPDATE
    ))
"""

_OWNED: Final = "SELECT event_id FROM consumer.work WHERE owner = %(owner)s AND group_name = %(group)s"

_AHEAD: Final = 10
# Claims go by due time. A number that is not here ends the line: what is behind it would only come too early.
_MAKE_DUE: Final = """
    WITH line AS MATERIALIZED (
        SELECT event_id, key_number - row_number() OVER (ORDER BY key_number) AS before
        FROM consumer.work
        WHERE group_name = %(group)s AND tenant = %(tenant)s AND tier = %(tier)s AND ordering_key = %(key)s
          AND key_number >= %(number)s AND key_number < %(number)s + %(ahead)s AND reason = 'waiting'
    )
    UPDATE consumer.work
    SET due_at = statement_timestamp() - make_interval(secs => (%(number)s + %(ahead)s - key_number) / 1000.0)
    WHERE group_name = %(group)s AND event_id = ANY(ARRAY(SELECT event_id FROM line WHERE before = %(number)s - 1))
      AND owner IS NULL AND reason = 'waiting' AND due_at > statement_timestamp() AND due_before_pause IS NULL
"""

_EXISTS: Final = "SELECT event_id FROM consumer.work WHERE group_name = %(group)s AND event_id = ANY(%(events)s)"

# The condition on attempts holds for every row. It names the index ``work_next``, which nothing else may be tempted by.
# Behind a thousand rows that only other code reads nothing is looked for: there is always a next look, a second later.
_SECONDS_TO_NEXT: Final = _compose(
    sql.SQL("""
    SELECT extract(epoch FROM w.due_at - statement_timestamp()) FROM (
        SELECT due_at, type, handlers, needs_version FROM consumer.work
        WHERE group_name = %(group)s AND owner IS NULL AND attempts >= 0 AND reason <> 'suspect'
        ORDER BY due_at LIMIT 1000
    ) w WHERE {known} ORDER BY w.due_at LIMIT 1
    """)
)

# Rows of tiers that were not asked for may be due by the thousand: here each lane is looked at instead.
_SECONDS_TO_NEXT_OF: Final = _compose(
    sql.SQL("""
    WITH RECURSIVE {lane}
    SELECT extract(epoch FROM min(due_at) - statement_timestamp()) FROM lane WHERE tier = ANY(%(tiers)s::smallint[])
    """)
)
_HAS_SUSPECTS: Final = """
    SELECT FROM consumer.work
    WHERE group_name = %(group)s AND owner IS NULL AND reason = 'suspect' AND due_at <= statement_timestamp() LIMIT 1
"""
