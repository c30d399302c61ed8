"""One lease per process incarnation, on the database's clock: what says whether the owner of a row still lives.

Whoever dies without a word is found by its lease, however many events it held. A restarted process is another
incarnation, so it never takes itself for the one that died.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID, uuid4

from psycopg.types.json import Jsonb

from consumer.decide.heartbeat import Heartbeat
from consumer.store.plans import fresh
from consumer.store.stored import Connection
from outbox.errors import LeaseLost


@dataclass(frozen=True, slots=True, kw_only=True)
class Incarnation:
    """A process that lives, or whose end was not noticed yet (*is_alive* is false). *owned* counts its work rows.

    *heartbeat* is what it said of itself at *heartbeat_at*; None before it did, or if its code is too old to.
    """

    id: UUID
    host: str
    pid: int
    started_at: datetime
    expires_at: datetime
    is_alive: bool
    owned: int
    version: str
    heartbeat: Heartbeat | None
    heartbeat_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reaped:
    """Who was found dead, and how many work rows that freed."""

    incarnations: tuple[UUID, ...]
    released: int


async def begin(
    connection: Connection,
    group: str,
    *,
    host: str,
    pid: int,
    lease_s: float,
    version: str = "",
    id: UUID | None = None,
    knows: Mapping[str, Mapping[str, tuple[int, int]]] | None = None,
) -> UUID:
    """Write the lease of a new incarnation and return its id. Commit it before claiming anything.

    Args:
        version: the build that runs, as whoever deploys calls it.
        knows: by type and handler, the oldest and the newest version of a payload that it reads; the handler "" stands
            for any. What needs another is left to others while there are any; one that does not say is given all.
        id: its id, if somebody is to know it before.
    """
    incarnation = uuid4() if id is None else id
    values = {
        "id": incarnation,
        "group": group,
        "host": host,
        "pid": pid,
        "lease_s": lease_s,
        "version": version,
        "knows": None if knows is None else Jsonb(knows),
    }
    await connection.execute(_BEGIN, values)
    return incarnation


async def renew(
    connection: Connection, incarnation: UUID, *, lease_s: float, heartbeat: Heartbeat | None = None
) -> None:
    """Let the lease end *lease_s* from now, and keep *heartbeat*; call it at a third of that.

    Raises:
        LeaseLost: it ran out, and never comes back. Whatever this incarnation owned may be another's: it must begin
            anew.
    """
    said = None if heartbeat is None else Jsonb(heartbeat.to_json())
    cursor = await connection.execute(_RENEW, {"id": incarnation, "lease_s": lease_s, "heartbeat": said})
    if cursor.rowcount == 0:
        raise LeaseLost("incarnation: want a lease of this process, got one that ran out")


async def end(connection: Connection, incarnation: UUID) -> int:
    """Release every work row of *incarnation*, uncharged, and remove its lease. Returns how many rows were released."""
    async with connection.transaction():
        cursor = await fresh(connection, _RELEASE, {"id": incarnation})
        # It lives to say so: what it has begun did not end it.
        await connection.execute(_END_STARTS, {"id": incarnation})
        await connection.execute(_END, {"id": incarnation})
    return cursor.rowcount


async def expire(connection: Connection, incarnation: UUID) -> None:
    """Let the lease of *incarnation* end now: somebody has seen the process's end. ``reap`` does the rest."""
    await connection.execute(_EXPIRE, {"id": incarnation})


async def is_alive(connection: Connection, incarnation: UUID) -> bool:
    """Whether the lease of *incarnation* holds at this moment."""
    cursor = await connection.execute(_IS_ALIVE, {"id": incarnation})
    return await cursor.fetchone() is not None


async def reap(connection: Connection, group: str) -> Reaped:
    """Remove the expired leases of *group* and release what they owned, and what nobody's lease covers.

    In one transaction, so that a process that wakes late cannot renew between the two. A row that some
    transaction has locked is left for the next call. Each event that is released is marked (``store.start``): it was in
    the hands of a process that died.
    """
    async with connection.transaction():
        expired = await (await fresh(connection, _REMOVE_EXPIRED, {"group": group})).fetchall()
        # A new statement: it sees every lease that was begun before the deletion was decided.
        orphaned = await (await fresh(connection, _RELEASE_ORPHANED, {"group": group})).fetchone()
    assert orphaned is not None  # noqa: S101 - a count
    return Reaped(incarnations=tuple(id_ for (id_,) in expired), released=orphaned[0])


async def every(connection: Connection, group: str) -> list[Incarnation]:
    """The incarnations of *group*, oldest first."""
    cursor = await fresh(connection, _EVERY, {"group": group})
    return [
        Incarnation(
            id=id_,
            host=host,
            pid=pid,
            started_at=started_at,
            expires_at=expires_at,
            is_alive=alive,
            owned=owned,
            version=version,
            heartbeat=None if heartbeat is None else Heartbeat.from_json(heartbeat),
            heartbeat_at=heartbeat_at,
        )
        for id_, host, pid, started_at, expires_at, alive, owned, version, heartbeat, heartbeat_at in (
            await cursor.fetchall()
        )
    ]


_BEGIN: Final = """
    INSERT INTO consumer.incarnation (id, group_name, host, pid, version, knows, expires_at)
    VALUES (%(id)s, %(group)s, %(host)s, %(pid)s, %(version)s, %(knows)s,
            clock_timestamp() + make_interval(secs => %(lease_s)s))
"""

_RENEW: Final = """
    UPDATE consumer.incarnation
    SET expires_at = clock_timestamp() + make_interval(secs => %(lease_s)s),
        heartbeat = %(heartbeat)s::jsonb, heartbeat_at = clock_timestamp()
    WHERE id = %(id)s AND expires_at > clock_timestamp()
"""

_END: Final = "DELETE FROM consumer.incarnation WHERE id = %(id)s"

_END_STARTS: Final = "DELETE FROM consumer.start WHERE incarnation = %(id)s AND alone = 0"

_EXPIRE: Final = "UPDATE consumer.incarnation SET expires_at = clock_timestamp() WHERE id = %(id)s"

_IS_ALIVE: Final = "SELECT FROM consumer.incarnation WHERE id = %(id)s AND expires_at > clock_timestamp()"

_RELEASE: Final = """
    UPDATE consumer.work SET owner = NULL WHERE (group_name, event_id) IN (
        SELECT group_name, event_id FROM consumer.work WHERE owner = %(id)s ORDER BY event_id FOR UPDATE
    )
"""

_REMOVE_EXPIRED: Final = """
    DELETE FROM consumer.incarnation WHERE id IN (
        SELECT id FROM consumer.incarnation WHERE group_name = %(group)s AND expires_at <= clock_timestamp()
        ORDER BY id FOR UPDATE SKIP LOCKED
    ) RETURNING id
"""

_RELEASE_ORPHANED: Final = """
    WITH released AS (
        UPDATE consumer.work SET owner = NULL WHERE group_name = %(group)s AND event_id = ANY(ARRAY(
            SELECT event_id FROM consumer.work w
            WHERE w.owner IS NOT NULL AND w.group_name = %(group)s
              AND NOT EXISTS (SELECT FROM consumer.incarnation i WHERE i.id = w.owner)
            ORDER BY event_id FOR UPDATE OF w SKIP LOCKED
        )) RETURNING group_name, event_id
    ), marked AS (
        INSERT INTO consumer.start (group_name, event_id) SELECT group_name, event_id FROM released ORDER BY event_id
        ON CONFLICT DO NOTHING
    )
    SELECT count(*) FROM released
"""

_EVERY: Final = """
    SELECT i.id, i.host, i.pid, i.started_at, i.expires_at, i.expires_at > clock_timestamp(),
           (SELECT count(*) FROM consumer.work w WHERE w.owner = i.id), i.version, i.heartbeat, i.heartbeat_at
    FROM consumer.incarnation i WHERE i.group_name = %(group)s ORDER BY i.started_at
"""
