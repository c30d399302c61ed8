"""What handlers returned, per event and handler, for as long as the settings say."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from consumer.store.plans import fresh
from consumer.store.stored import Connection
from outbox.event import Event

PRUNE_ROWS: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What *handler* of *group* returned for an event of *tenant*: a JSON value."""

    group: str
    handler: str
    tenant: str
    at: datetime
    result: object


async def put(connection: Connection, group: str, event: Event, *, handler: str, result: str) -> None:
    """Keep *result*, JSON text, in the transaction that completes the attempt; a later one takes its place."""
    values = {"event": event.id, "group": group, "handler": handler, "tenant": event.tenant, "result": result}
    await connection.execute(_PUT, values)


async def of_event(connection: Connection, event_id: UUID, *, group: str | None) -> list[Result]:
    """What handlers returned for *event_id*, of *group* or of all groups."""
    cursor = await fresh(connection, _OF_EVENT, {"event": event_id, "group": group})
    return [
        Result(group=of_group, handler=handler, tenant=tenant, at=at, result=result)
        for of_group, handler, tenant, at, result in await cursor.fetchall()
    ]


async def prune(connection: Connection, group: str, *, keep_for: timedelta) -> int:
    """Remove results of *group* older than *keep_for*, ``PRUNE_ROWS`` at most. Returns how many those were."""
    cursor = await fresh(connection, _PRUNE, {"group": group, "keep_for": keep_for, "rows": PRUNE_ROWS})
    return cursor.rowcount


_PUT: Final = """
    INSERT INTO consumer.result (event_id, group_name, handler, tenant, result)
    VALUES (%(event)s, %(group)s, %(handler)s, %(tenant)s, %(result)s::jsonb)
    ON CONFLICT (event_id, group_name, handler) DO UPDATE SET result = excluded.result, at = excluded.at
"""

_OF_EVENT: Final = """
    SELECT group_name, handler, tenant, at, result FROM consumer.result
    WHERE event_id = %(event)s AND (%(group)s::text IS NULL OR group_name = %(group)s)
    ORDER BY group_name, handler
"""

# What another process removes at this moment is passed over.
_PRUNE: Final = """
    DELETE FROM consumer.result WHERE (event_id, group_name, handler) IN (
        SELECT event_id, group_name, handler FROM consumer.result
        WHERE group_name = %(group)s AND at < statement_timestamp() - %(keep_for)s::interval
        ORDER BY at LIMIT %(rows)s FOR UPDATE SKIP LOCKED
    )
"""
