"""Marks of begun events, for those alone that were in a process's hands before: who began them, and did it live?

Each is committed before the handler starts, so it outlives a process that the handler ends. An event that comes for
the first time has none: its start costs nothing, and a death at its first start is what makes it come again.
"""

from collections.abc import Collection
from datetime import timedelta
from enum import Enum, auto
from typing import Final
from uuid import UUID

from consumer.store.plans import fresh
from consumer.store.stored import Connection

#: An incarnation that never lives: what it has begun is unended, whoever asks.
_NOBODY: Final = UUID(int=0)


class Begun(Enum):
    """What is known of an event that is about to be begun."""

    HERE = auto()  # it is marked as begun by us
    ELSEWHERE = auto()  # another process has begun it, and its lease holds still
    UNENDED = auto()  # another process has begun it, and died


async def begin(connection: Connection, group: str, event_id: UUID, *, incarnation: UUID) -> Begun:
    """Mark *event_id* as begun by *incarnation*, unless another's mark is there. On a connection with autocommit."""
    values = {"group": group, "event": event_id, "incarnation": incarnation}
    row = await (await connection.execute(_BEGIN, values)).fetchone()
    assert row is not None  # noqa: S101 - it selects one row, always
    is_ours, is_known, is_alive = row
    if is_ours:
        return Begun.HERE
    return Begun.UNENDED if is_known and not is_alive else Begun.ELSEWHERE


async def begin_alone(connection: Connection, group: str, event_id: UUID, *, incarnation: UUID) -> int:
    """Mark *event_id* as begun by *incarnation*, which runs nothing else; returns how often that did not end before."""
    values = {"group": group, "event": event_id, "incarnation": incarnation}
    row = await (await connection.execute(_BEGIN_ALONE, values)).fetchone()
    assert row is not None  # noqa: S101 - both branches of the upsert return it
    return int(row[0]) - 1


async def blame(connection: Connection, group: str, event_id: UUID) -> None:
    """Count a start of *event_id* in a process that ran nothing else and died: whoever begins it finds it unended."""
    values = {"group": group, "event": event_id, "incarnation": _NOBODY}
    await connection.execute(_BEGIN_ALONE, values)


async def end(
    connection: Connection, group: str, event_ids: Collection[UUID], *, incarnations: Collection[UUID]
) -> None:
    """Remove the marks that *incarnations* have set on *event_ids*: whatever became of them, the process lives."""
    values = {"group": group, "events": sorted(event_ids), "incarnations": list(incarnations)}
    await fresh(connection, _END, values)


async def forget(connection: Connection, group: str, event_id: UUID) -> None:
    """Remove the mark of *event_id*, whoever set it."""
    await fresh(connection, _FORGET, {"group": group, "event": event_id})


async def forgive(connection: Connection, incarnation: UUID) -> None:
    """Take back the start that *incarnation* has counted alone: it was ended from outside."""
    await fresh(connection, _FORGIVE, {"incarnation": incarnation})


async def convict(connection: Connection, group: str, event_id: UUID) -> None:
    """Keep the mark of *event_id*: if it is ever handled again, by a process of its own and counted from the first."""
    await fresh(connection, _CONVICT, {"group": group, "event": event_id, "nobody": _NOBODY})


async def prune(connection: Connection, group: str, *, older_than: timedelta) -> int:
    """Remove marks that nothing can ask for any more; returns how many."""
    cursor = await fresh(connection, _PRUNE, {"group": group, "older_than": older_than})
    return cursor.rowcount


# One answer in every case: whether the mark is ours now, whether it is another's, and whether that one lives.
_BEGIN: Final = """
    WITH ours AS (
        INSERT INTO consumer.start AS s (group_name, event_id, incarnation)
        VALUES (%(group)s, %(event)s, %(incarnation)s)
        ON CONFLICT (group_name, event_id) DO UPDATE SET
            incarnation = excluded.incarnation, started_at = clock_timestamp()
        WHERE s.incarnation IS NULL OR s.incarnation = excluded.incarnation
        RETURNING 1
    )
    SELECT EXISTS (SELECT FROM ours), s.incarnation IS NOT NULL, i.id IS NOT NULL
    FROM (SELECT) one
    LEFT JOIN consumer.start s ON s.group_name = %(group)s AND s.event_id = %(event)s
    LEFT JOIN consumer.incarnation i ON i.id = s.incarnation AND i.expires_at > clock_timestamp()
"""

_BEGIN_ALONE: Final = """
    INSERT INTO consumer.start AS s (group_name, event_id, incarnation, alone)
    VALUES (%(group)s, %(event)s, %(incarnation)s, 1)
    ON CONFLICT (group_name, event_id) DO UPDATE SET
        incarnation = excluded.incarnation, alone = s.alone + 1, started_at = clock_timestamp()
    RETURNING alone
"""

_END: Final = """
    DELETE FROM consumer.start
    WHERE group_name = %(group)s AND event_id = ANY(%(events)s) AND incarnation = ANY(%(incarnations)s)
"""

_FORGET: Final = "DELETE FROM consumer.start WHERE group_name = %(group)s AND event_id = %(event)s"

_FORGIVE: Final = "UPDATE consumer.start SET alone = alone - 1 WHERE incarnation = %(incarnation)s AND alone > 0"

_CONVICT: Final = """
    UPDATE consumer.start SET incarnation = %(nobody)s, alone = 0
    WHERE group_name = %(group)s AND event_id = %(event)s
"""

_PRUNE: Final = """
    DELETE FROM consumer.start s WHERE s.group_name = %(group)s AND s.started_at < clock_timestamp() - %(older_than)s
      AND NOT EXISTS (SELECT FROM consumer.work w WHERE w.group_name = s.group_name AND w.event_id = s.event_id)
"""
