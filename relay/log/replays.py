"""Publishing again what was published: requests as rows, a chunk at a time by whichever relay comes first.

A request walks the log by its index on tenants, so a tenant's events come in their order, and one number says
how far it is. It reads positions and moves none: what a group has not been sent yet is left to its base or stream,
which sends it in its own order, and what is deferred or was discarded to those who look after that.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, LiteralString, NamedTuple

from psycopg import sql

from outbox.naming import Lane
from relay.decide.pieces import Row
from relay.log.ringlog import Bounds
from relay.log.rows import EVENT_COLUMNS, event_of
from relay.log.store import Connection, deadline

#: What of the log, there called ``e``, the group was sent and has in no other hands. What was published has a lane,
#: unless its tenant was off-boarded since: that stays so. What somebody has discarded, and perhaps a void has stood
#: for, must not come to life again behind its successors; the audit alone remembers it.
IS_PUBLISHED: Final[LiteralString] = """
    EXISTS (
        SELECT FROM outbox.bucket b
        WHERE b.group_name = %(group)s AND b.bucket = e.bucket AND pg_visible_in_snapshot(e.xid, b.lo))
    AND NOT EXISTS (
        SELECT FROM outbox.stream s
        WHERE s.group_name = %(group)s AND s.tier = e.tier AND s.tenant = e.tenant
          AND (NOT pg_visible_in_snapshot(e.xid, s.hi)
               OR e.seq > s.after AND NOT pg_visible_in_snapshot(e.xid, s.lo)))
    AND EXISTS (
        SELECT FROM outbox.lane l
        WHERE l.group_name = %(group)s AND l.tier = e.tier AND l.tenant = e.tenant AND l.leaving_at IS NULL)
    AND NOT EXISTS (SELECT FROM outbox.deferred d WHERE d.group_name = %(group)s AND d.id = e.id)
    AND e.id <> ALL (ARRAY(
        SELECT (one ->> 'id')::uuid
        FROM outbox.audit a, jsonb_array_elements((a.detail -> 'removed') || (a.detail -> 'voids')) one
        WHERE a.action = 'deferred.discard' AND a.at >= %(from_at)s AND one ->> 'group' = %(group)s))"""
#: What of it a request asks for.
IS_WANTED: Final[LiteralString] = """
    e.ledger_at >= %(from_at)s AND e.ledger_at < %(to_at)s
    AND (%(tenant)s::text IS NULL OR e.tenant = %(tenant)s) AND (%(type)s::text IS NULL OR e.type = %(type)s)"""

_SEQ_MAX: Final = 2**63 - 1

_NEXT: Final[LiteralString] = """
SELECT CASE WHEN min(due_at) <= clock_timestamp() THEN 0.0
            ELSE extract(epoch FROM min(due_at) - clock_timestamp()) END::float8
FROM outbox.replay WHERE ended_at IS NULL"""

_CLAIM: Final[LiteralString] = """
UPDATE outbox.replay SET token = nextval('outbox.token'), due_at = clock_timestamp() + make_interval(secs => %s)
WHERE id = (
    SELECT id FROM outbox.replay WHERE ended_at IS NULL AND due_at <= clock_timestamp()
    ORDER BY due_at, id LIMIT 1 FOR UPDATE SKIP LOCKED)
RETURNING id, token, coalesce(part_of, id), group_name, from_at, to_at, tenant, type, per_s, tries,
    after_hash, after_seq, last_hash"""

# No slot that ended before the first event wanted holds any: a row's slot is never before its time.
_SLOTS: Final[LiteralString] = """
SELECT slot FROM outbox.ring() r, generate_series(0, r.slots - 1) slot WHERE outbox.slot_ended_at(slot) >= %s"""

_AHEAD: Final[LiteralString] = """
    FROM outbox.event e
    WHERE e.slot IN ({slots}) AND (e.tenant_hash, e.seq) > (%(after_hash)s, %(after_seq)s)
      AND e.tenant_hash <= %(last_hash)s
    ORDER BY e.tenant_hash, e.seq LIMIT %(scan)s"""
# It stops at the last row that goes into the chunk; only where there are too few does it ask how far it came. Slots
# are named one by one, so that the others are not even opened.
_READ: Final[LiteralString] = f"""
WITH w AS MATERIALIZED (
    SELECT slot, tenant_hash, seq, sum(size) OVER (ORDER BY tenant_hash, seq) - size AS before FROM (
        SELECT * FROM (
            SELECT e.slot, e.tenant_hash, e.seq, octet_length(e.payload) AS size,
                {IS_WANTED} AND {IS_PUBLISHED} AS is_wanted {_AHEAD}
        ) k WHERE k.is_wanted ORDER BY k.tenant_hash, k.seq LIMIT %(rows)s
    ) k
), c AS MATERIALIZED (SELECT count(*) AS wanted FROM w)
SELECT c.wanted, l.scanned, l.tenant_hash, l.seq, e.*
FROM c
LEFT JOIN (
    SELECT count(*) OVER () AS scanned, k.tenant_hash, k.seq
    FROM (SELECT e.tenant_hash, e.seq {_AHEAD}) k WHERE (SELECT wanted FROM c) < %(rows)s
    ORDER BY k.tenant_hash DESC, k.seq DESC LIMIT 1
) l ON true
LEFT JOIN (
    SELECT e.* FROM w CROSS JOIN LATERAL (
        SELECT e.tenant_hash, e.seq, {EVENT_COLUMNS} FROM outbox.event e
        WHERE e.slot = w.slot AND e.tenant_hash = w.tenant_hash AND e.seq = w.seq OFFSET 0
    ) e WHERE w.before < %(bytes)s
) e ON true
ORDER BY e.tenant_hash, e.seq"""  # noqa: S608 (its parts are constants of this package)

_MINE: Final[LiteralString] = "WHERE id = %(id)s AND token = %(token)s AND ended_at IS NULL"

_MOVE: Final[LiteralString] = f"""
UPDATE outbox.replay SET
    after_hash = %(after_hash)s, after_seq = %(after_seq)s,
    published = published + %(published)s, failed = failed + %(failed)s,
    tries = %(tries)s, problem = CASE WHEN failed > 0 THEN coalesce(%(problem)s, problem) ELSE %(problem)s END,
    due_at = clock_timestamp() + make_interval(secs => %(delay_s)s),
    ended_at = CASE WHEN %(is_end)s THEN clock_timestamp() END
{_MINE}"""  # noqa: S608 (its parts are constants of this module)

_SPLIT: Final[LiteralString] = f"""
WITH whole AS (
    UPDATE outbox.replay SET
        after_hash = %(hash)s, after_seq = {_SEQ_MAX},
        published = published + %(published)s, failed = failed + %(failed)s, due_at = clock_timestamp()
    {_MINE}
    RETURNING *
)
INSERT INTO outbox.replay (
    part_of, group_name, from_at, to_at, tenant, type, per_s, events, requested_by, requested_at,
    after_hash, after_seq, last_hash, tries, problem, due_at)
SELECT coalesce(part_of, id), group_name, from_at, to_at, tenant, type, per_s, 0, requested_by, requested_at,
    %(after_hash)s, %(after_seq)s, %(hash)s, 1, %(problem)s, clock_timestamp() + make_interval(secs => %(delay_s)s)
FROM whole"""  # noqa: S608 (its parts are constants of this module)


class Place(NamedTuple):
    """A row of the log, in the order in which a replay walks it."""

    tenant_hash: int
    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A request that is ours to serve for a while. *mark* is the number that people know it by."""

    id: int
    token: int
    mark: int
    group: str
    from_at: datetime
    to_at: datetime
    tenant: str | None
    type: str | None
    per_s: int
    tries: int
    after: Place
    last_hash: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """One event to publish again, and where it stands."""

    place: Place
    lane: Lane
    row: Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """What to publish next, and how far the request is with that."""

    copies: Sequence[Copy]
    after: Place
    is_last: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What became of a chunk up to *after*. *problem*: the last thing that went wrong, a sentence."""

    after: Place
    published: int = 0
    failed: int = 0
    problem: str | None = None


async def next_due_s(connection: Connection, *, within_s: float) -> float | None:
    """In how many seconds a request is to be served, 0 if one waits; None if there is no open one."""
    async with deadline(connection, within_s):
        row = await (await connection.execute(_NEXT)).fetchone()
    return None if row is None else row[0]


async def claim(connection: Connection, *, lease_s: float, within_s: float) -> Claim | None:
    """Take the request that is due for longest, for *lease_s*; None if another relay was quicker."""
    async with deadline(connection, within_s):
        row = await (await connection.execute(_CLAIM, (lease_s,))).fetchone()
    if row is None:
        return None
    number, token, mark, group, from_at, to_at, tenant, event_type, per_s, tries, after_hash, after_seq, last_hash = row
    return Claim(
        id=number,
        token=token,
        mark=mark,
        group=group,
        from_at=from_at,
        to_at=to_at,
        tenant=tenant,
        type=event_type,
        per_s=per_s,
        tries=tries,
        after=Place(after_hash, after_seq),
        last_hash=last_hash,
    )


async def read(connection: Connection, claim: Claim, bounds: Bounds, *, scan: int) -> Chunk:
    """The next events of *claim*, marked as its copies, out of at most *scan* rows of the log."""
    parameters = {
        "group": claim.group,
        "from_at": claim.from_at,
        "to_at": claim.to_at,
        "tenant": claim.tenant,
        "type": claim.type,
        "after_hash": claim.after.tenant_hash,
        "after_seq": claim.after.seq,
        "last_hash": claim.last_hash,
        "scan": scan,
        "rows": bounds.rows,
        "bytes": bounds.bytes,
    }
    async with deadline(connection, bounds.seconds), connection.cursor(binary=True) as cursor:
        await cursor.execute(_SLOTS, (claim.from_at,))
        slots = [slot for (slot,) in await cursor.fetchall()]
        query = sql.SQL(_READ).format(slots=sql.SQL(", ").join(slots))
        await cursor.execute(query, parameters)
        rows = await cursor.fetchall()
    wanted, scanned, *last = rows[0][:4]
    copies = [] if rows[0][4] is None else [_copy(claim, row[4:]) for row in rows]
    if copies and (len(copies) < wanted or scanned is None):
        return Chunk(copies=copies, after=copies[-1].place, is_last=False)
    return Chunk(copies=copies, after=Place(*last) if scanned else claim.after, is_last=(scanned or 0) < scan)


async def advance(
    connection: Connection, claim: Claim, done: Done, *, is_end: bool, delay_s: float, within_s: float
) -> None:
    """Store how far *claim* is; it is due again after *delay_s*, unless that was its end."""
    await _move(connection, claim, done, tries=0, is_end=is_end, delay_s=delay_s, within_s=within_s)


async def postpone(
    connection: Connection, claim: Claim, done: Done, *, tries: int, delay_s: float, within_s: float
) -> None:
    """Store how far *claim* is, and that it goes no further for *delay_s*."""
    await _move(connection, claim, done, tries=tries, is_end=False, delay_s=delay_s, within_s=within_s)


async def split(
    connection: Connection, claim: Claim, done: Done, *, tenant_hash: int, delay_s: float, within_s: float
) -> None:
    """Let the tenant that *claim* cannot pass wait by itself for *delay_s*, and *claim* go on with those behind it."""
    parameters = {**_moved(claim, done), "hash": tenant_hash, "delay_s": delay_s}
    async with deadline(connection, within_s):
        await connection.execute(_SPLIT, parameters)


async def _move(
    connection: Connection, claim: Claim, done: Done, *, tries: int, is_end: bool, delay_s: float, within_s: float
) -> None:
    parameters = {**_moved(claim, done), "tries": tries, "is_end": is_end, "delay_s": delay_s}
    async with deadline(connection, within_s):
        await connection.execute(_MOVE, parameters)


def _moved(claim: Claim, done: Done) -> dict[str, object]:
    return {
        "id": claim.id,
        "token": claim.token,
        "after_hash": done.after.tenant_hash,
        "after_seq": done.after.seq,
        "published": done.published,
        "failed": done.failed,
        "problem": done.problem,
    }


def _copy(claim: Claim, row: tuple[object, ...]) -> Copy:
    tenant_hash, seq, *columns = row
    assert isinstance(tenant_hash, int)  # noqa: S101 (bigint)
    assert isinstance(seq, int)  # noqa: S101 (bigint)
    event = replace(event_of(tuple(columns)), replay=str(claim.mark))
    return Copy(
        place=Place(tenant_hash, seq),
        lane=Lane(group=claim.group, tier=event.tier, tenant=event.tenant),
        row=Row(seq, event),
    )
