"""Groups of dead letters that somebody looks after, and that grow."""

from dataclasses import dataclass
from typing import Final
from uuid import UUID

from consumer.store.plans import fresh
from consumer.store.stored import Connection


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """*letters* more that failed alike, and whose they are. *type* is the newest one's."""

    fingerprint: str
    owner: str
    letters: int
    type: str


async def owned(connection: Connection, group: str, *, asked_by: UUID, within_s: float) -> list[Growth]:
    """What grew in the last *within_s*, for the process that has run for longest; none for the others."""
    cursor = await fresh(connection, _OWNED, {"group": group, "asked_by": asked_by, "within_s": within_s})
    return [
        Growth(fingerprint=fingerprint, owner=owner, letters=letters, type=event_type)
        for fingerprint, owner, letters, event_type in await cursor.fetchall()
    ]


_OWNED: Final = """
    SELECT d.fingerprint, o.owner, count(*), (array_agg(d.type ORDER BY d.id DESC))[1]
    FROM consumer.dead d JOIN consumer.dead_owner o USING (group_name, fingerprint)
    WHERE d.group_name = %(group)s AND d.resolution IS NULL
      AND d.dead_at > clock_timestamp() - make_interval(secs => %(within_s)s)
      AND (SELECT i.id FROM consumer.incarnation i
           WHERE i.group_name = %(group)s AND i.expires_at > clock_timestamp()
           ORDER BY i.started_at, i.id LIMIT 1) = %(asked_by)s
    GROUP BY d.fingerprint, o.owner ORDER BY count(*) DESC
"""
