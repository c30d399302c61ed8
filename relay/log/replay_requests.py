"""Asking for a replay, seeing how far it is, and calling it off. ``relay.log.replays`` serves what is asked for."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, LiteralString

from psycopg.rows import class_row

from outbox.naming import tenant_hash
from relay.log.replays import IS_PUBLISHED, IS_WANTED
from relay.log.store import Connection

_HASH_MIN, _HASH_MAX = -(2**63), 2**63 - 1

# From here to our commit no slot is truncated.
_LOCK: Final[LiteralString] = "LOCK TABLE outbox.event IN ACCESS SHARE MODE"
_BOUNDS: Final[LiteralString] = """
SELECT nullif(complete_since, '-infinity'),
       coalesce(nullif(complete_since, '-infinity'), (SELECT min(ledger_at) FROM outbox.event), clock_timestamp()),
       clock_timestamp()
FROM outbox.retained"""

# What is older than a group's start it never had: its consumer takes that for handled, whatever it has handled since.
_GROUPS: Final[LiteralString] = """
SELECT group_name, greatest(started_at, %(from_at)s) FROM outbox.consumer_group
WHERE (%(group)s::text IS NULL OR group_name = %(group)s) AND started_at < %(to_at)s ORDER BY group_name"""

_COUNT: Final[LiteralString] = f"""
SELECT e.tenant, e.type, count(*) FROM outbox.event e
WHERE {IS_WANTED} AND {IS_PUBLISHED}
GROUP BY e.tenant, e.type ORDER BY count(*) DESC, e.tenant, e.type"""  # noqa: S608 (its parts are constants of this package)

_INSERT: Final[LiteralString] = """
INSERT INTO outbox.replay (
    group_name, from_at, to_at, tenant, type, per_s, events, requested_by, after_hash, last_hash)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
RETURNING id"""

_LIST: Final[LiteralString] = """
SELECT r.id, r.group_name AS "group", r.from_at, r.to_at, r.tenant, r.type, r.per_s, r.events, r.requested_by,
    r.requested_at, p.*
FROM outbox.replay r CROSS JOIN LATERAL (
    SELECT bool_or(p.is_cancelled) AS is_cancelled,
        sum(p.published)::bigint AS published, sum(p.failed)::bigint AS failed,
        CASE WHEN bool_and(p.ended_at IS NOT NULL) THEN max(p.ended_at) END AS ended_at,
        count(*) FILTER (WHERE p.ended_at IS NULL AND p.tries > 0) AS held_tenants, max(p.problem) AS problem
    FROM outbox.replay p WHERE coalesce(p.part_of, p.id) = r.id
) p
WHERE r.part_of IS NULL ORDER BY r.id DESC LIMIT %s"""

_CANCEL: Final[LiteralString] = """
UPDATE outbox.replay SET ended_at = clock_timestamp(), is_cancelled = true
WHERE coalesce(part_of, id) = %s AND ended_at IS NULL
RETURNING group_name"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Since when the log is complete (None: it always was), the first time that may be asked for, and now."""

    complete_since: datetime | None
    oldest: datetime
    now: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Events with a ledger time in ``[from_at, to_at)``; None is any."""

    from_at: datetime
    to_at: datetime
    group: str | None = None
    tenant: str | None = None
    type: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """How many events of one tenant and type would be published again."""

    tenant: str
    type: str
    events: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """One group's part of what is wanted: no event from before its start."""

    group: str
    from_at: datetime
    counts: Sequence[Count]

    @property
    def events(self) -> int:
        """How many that are."""
        return sum(count.events for count in self.counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A replay that was asked for. *events* were there then; *failed* are those that the broker would not take.

    *held_tenants* wait by themselves since their lanes take nothing; *problem* says why, or why all of it waits.
    """

    id: int
    group: str
    from_at: datetime
    to_at: datetime
    tenant: str | None
    type: str | None
    per_s: int
    events: int
    requested_by: str
    requested_at: datetime
    is_cancelled: bool
    published: int
    failed: int
    ended_at: datetime | None
    held_tenants: int
    problem: str | None


async def bounds(connection: Connection) -> Bounds:
    """What may be asked for; it stays so until the caller's transaction ends."""
    await connection.execute(_LOCK)
    row = await (await connection.execute(_BOUNDS)).fetchone()
    assert row is not None  # noqa: S101 (the table has one row)
    return Bounds(complete_since=row[0], oldest=row[1], now=row[2])


async def shares(connection: Connection, wanted: Wanted) -> Sequence[Share]:
    """Count what is wanted, for each group that has a share in it. Reads every event since then."""
    parameters = {
        "from_at": wanted.from_at,
        "to_at": wanted.to_at,
        "group": wanted.group,
        "tenant": wanted.tenant,
        "type": wanted.type,
    }
    found = []
    for group, from_at in await (await connection.execute(_GROUPS, parameters)).fetchall():
        own = {**parameters, "group": group, "from_at": from_at}
        rows = await (await connection.execute(_COUNT, own)).fetchall()
        counts = [Count(tenant=tenant, type=event_type, events=events) for tenant, event_type, events in rows]
        found.append(Share(group=group, from_at=from_at, counts=counts))
    return found


async def ask(connection: Connection, wanted: Wanted, share: Share, *, per_s: int, requested_by: str) -> int:
    """Have *share* published again, *per_s* events each second at most; return the replay's number."""
    first, last = _HASH_MIN, _HASH_MAX
    if wanted.tenant is not None:
        first = last = tenant_hash(wanted.tenant)
    parameters = (
        share.group,
        share.from_at,
        wanted.to_at,
        wanted.tenant,
        wanted.type,
        per_s,
        share.events,
        requested_by,
        first,
        last,
    )
    row = await (await connection.execute(_INSERT, parameters)).fetchone()
    assert row is not None  # noqa: S101 (RETURNING)
    return int(row[0])


async def requests(connection: Connection, *, limit: int) -> Sequence[Request]:
    """Replays that were asked for, the last first."""
    async with connection.cursor(row_factory=class_row(Request)) as cursor:
        await cursor.execute(_LIST, (limit,))
        return await cursor.fetchall()


async def cancel(connection: Connection, number: int) -> str | None:
    """Call off replay *number*; return its group, or None if there is no such open one."""
    row = await (await connection.execute(_CANCEL, (number,))).fetchone()
    return None if row is None else str(row[0])
