"""Work rows that a pause puts off: due in a hundred years, and with their own due time again when it has ended.

So no claim walks over them again and again, however many they are, and a process that knows nothing of pauses leaves
them alone. What they wait for is asked of the pauses, so whoever ends one need not know its rows.
"""

from collections.abc import Collection
from typing import Final
from uuid import UUID

from psycopg import sql

from consumer.decide.fairness import PauseScope
from consumer.store.plans import fresh
from consumer.store.stored import Connection

_BATCH: Final = 1_000


async def put_off(connection: Connection, group: str, event_ids: Collection[UUID], *, owner: UUID | None) -> None:
    """Put off those of *event_ids* that *owner* owns (None: nobody), and release them; in the caller's transaction."""
    values = {"group": group, "events": sorted(event_ids), "owner": owner}
    await fresh(connection, _PUT_OFF, values)


async def put_off_suspects(connection: Connection, group: str, *, paused: Collection[PauseScope]) -> int:
    """Put off the suspects that something in *paused* is about and nobody owns: they run outside of any scheduler.

    Returns how many.
    """
    return (await fresh(connection, _PUT_OFF_SUSPECTS, _scopes(group, paused))).rowcount


async def release(connection: Connection, group: str, *, paused: Collection[PauseScope]) -> int:
    """Give every row that was put off, and that nothing in *paused* is about, its due time again. Returns how many.

    A row that another transaction has locked is left for the next call. On a connection with autocommit.
    """
    values = {**_scopes(group, paused), "batch": _BATCH}
    released = 0
    while True:
        changed = (await fresh(connection, _RELEASE, values)).rowcount
        released += changed
        if changed < _BATCH:
            return released


def _scopes(group: str, paused: Collection[PauseScope]) -> dict[str, object]:
    return {
        "group": group,
        "tiers": [None if tier is None else int(tier) for tier, _, _ in paused],
        "tenants": [tenant for _, tenant, _ in paused],
        "types": [event_type for _, _, event_type in paused],
    }


_PUT_OFF: Final = """
    UPDATE consumer.work
    SET owner = NULL, due_before_pause = due_at, due_at = clock_timestamp() + interval '100 years'
    WHERE group_name = %(group)s AND event_id = ANY(%(events)s) AND owner IS NOT DISTINCT FROM %(owner)s::uuid
"""

_IS_PAUSED: Final = sql.SQL("""EXISTS (
        SELECT FROM unnest(%(tiers)s::smallint[], %(tenants)s::text[], %(types)s::text[]) AS p (tier, tenant, type)
        WHERE coalesce(p.tier, w.tier) = w.tier AND coalesce(p.tenant, w.tenant) = w.tenant
          AND coalesce(p.type, w.type) = w.type
    )""")

# A row that came due by another way meanwhile keeps the time that this gave it.
_RELEASE: Final = (
    sql.SQL("""
    UPDATE consumer.work
    SET due_at = CASE WHEN due_at > clock_timestamp() + interval '50 years' THEN due_before_pause ELSE due_at END,
        due_before_pause = NULL
    WHERE group_name = %(group)s AND event_id = ANY(ARRAY(
        SELECT w.event_id FROM consumer.work w
        WHERE w.group_name = %(group)s AND w.due_before_pause IS NOT NULL AND w.owner IS NULL AND NOT {is_paused}
        ORDER BY w.event_id LIMIT %(batch)s FOR UPDATE SKIP LOCKED
    ))
    """)
    .format(is_paused=_IS_PAUSED)
    .as_bytes()
)

_PUT_OFF_SUSPECTS: Final = (
    sql.SQL("""
    UPDATE consumer.work w SET due_before_pause = due_at, due_at = clock_timestamp() + interval '100 years'
    WHERE w.group_name = %(group)s AND w.owner IS NULL AND w.reason = 'suspect' AND w.due_at <= clock_timestamp()
      AND {is_paused}
    """)
    .format(is_paused=_IS_PAUSED)
    .as_bytes()
)
