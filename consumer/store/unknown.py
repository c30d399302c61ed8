"""Dead letters that were buried only because no code knew their type or version, and who is to replay them now.

One process does it for each type and version: of those whose code reads it, the one that has run for longest. So the
rate holds for all of them, and nothing has to be locked for it.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Final
from uuid import UUID

from consumer.store.plans import by_index, fresh
from consumer.store.stored import Connection


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A version of a type's payloads."""

    type: str
    version: int


async def led(connection: Connection, group: str, *, owner: UUID) -> list[Kind]:
    """The kinds of which there are open letters that *owner* is to replay.

    Walks the index from one kind to the next, so it costs as much as there are kinds, however many letters wait.
    """
    async with by_index(connection):
        cursor = await fresh(connection, _LED, {"group": group, "owner": owner})
        return [Kind(type=event_type, version=version) for event_type, version in await cursor.fetchall()]


async def letters(
    connection: Connection, group: str, kind: Kind, *, owner: UUID, type_age: timedelta, limit: int
) -> list[int]:
    """The numbers of *kind*'s letters that *owner* can handle, oldest first.

    Args:
        type_age: of those whose type was unknown, only letters that are younger.
    """
    values = {
        "group": group,
        "owner": owner,
        "type": kind.type,
        "version": str(kind.version),
        "number": kind.version,
        "type_age": type_age,
        "limit": limit,
    }
    async with by_index(connection):
        cursor = await fresh(connection, _LETTERS, values)
        return [dead_id for (dead_id,) in await cursor.fetchall()]


async def give_up(connection: Connection, group: str, *, owner: UUID) -> int:
    """Let anybody take the rows that are due for a minute and that nobody alive can read. Returns how many.

    Done by the process that has run for longest; for others it does nothing.
    """
    return (await fresh(connection, _GIVE_UP, {"group": group, "owner": owner})).rowcount


_LED: Final = """
    WITH RECURSIVE kind AS (
        (SELECT d.type, d.headers ->> 'ce-dataversion' AS version FROM consumer.dead d
         WHERE d.group_name = %(group)s AND d.resolution IS NULL AND d.category IN ('unknown_type', 'unknown_version')
         ORDER BY d.type, d.headers ->> 'ce-dataversion' LIMIT 1)
        UNION ALL
        SELECT next.* FROM kind CROSS JOIN LATERAL (
            SELECT d.type, d.headers ->> 'ce-dataversion' FROM consumer.dead d
            WHERE d.group_name = %(group)s AND d.resolution IS NULL
              AND d.category IN ('unknown_type', 'unknown_version')
              AND (d.type, d.headers ->> 'ce-dataversion') > (kind.type, kind.version)
            ORDER BY d.type, d.headers ->> 'ce-dataversion' LIMIT 1
        ) next
    )
    SELECT kind.type, kind.version::integer FROM kind
    WHERE CASE WHEN kind.version ~ '^[0-9]{1,9}$' THEN (
        SELECT i.id FROM consumer.incarnation i
        WHERE i.group_name = %(group)s AND i.expires_at > clock_timestamp() AND i.knows IS NOT NULL
          AND consumer.knows(i.knows, kind.type, NULL, kind.version::integer)
        ORDER BY i.started_at, i.id LIMIT 1
    ) END = %(owner)s
"""

_LETTERS: Final = """
    SELECT d.id FROM consumer.dead d
    WHERE d.group_name = %(group)s AND d.resolution IS NULL AND d.category IN ('unknown_type', 'unknown_version')
      AND d.type = %(type)s AND d.headers ->> 'ce-dataversion' = %(version)s
      AND (d.category = 'unknown_version' OR d.dead_at > clock_timestamp() - %(type_age)s::interval)
      AND consumer.knows(
          (SELECT knows FROM consumer.incarnation WHERE id = %(owner)s), d.type, d.handlers, %(number)s)
    ORDER BY d.id LIMIT %(limit)s
"""

# Kinds first: they are few, however many rows are late.
_GIVE_UP: Final = """
    WITH late AS MATERIALIZED (
        SELECT DISTINCT w.type, w.handlers, w.needs_version FROM consumer.work w
        WHERE w.group_name = %(group)s AND w.owner IS NULL AND w.needs_version IS NOT NULL
          AND w.due_at < statement_timestamp() - make_interval(secs => 60)
          AND (SELECT i.id FROM consumer.incarnation i
               WHERE i.group_name = %(group)s AND i.expires_at > statement_timestamp()
               ORDER BY i.started_at, i.id LIMIT 1) = %(owner)s
    ), unread AS MATERIALIZED (
        SELECT * FROM late WHERE NOT EXISTS (
            SELECT FROM consumer.incarnation i
            WHERE i.group_name = %(group)s AND i.expires_at > statement_timestamp()
              AND consumer.knows(i.knows, late.type, late.handlers, late.needs_version))
    )
    UPDATE consumer.work SET needs_version = NULL WHERE group_name = %(group)s AND event_id = ANY(ARRAY(
        SELECT w.event_id FROM consumer.work w JOIN unread
            ON w.type = unread.type AND w.needs_version = unread.needs_version
            AND w.handlers IS NOT DISTINCT FROM unread.handlers
        WHERE w.group_name = %(group)s AND w.owner IS NULL
          AND w.due_at < statement_timestamp() - make_interval(secs => 60)
        ORDER BY w.event_id LIMIT 1000 FOR UPDATE OF w SKIP LOCKED
    ))
"""
