"""``outbox rebase``: let the positions in a restored or promoted database mean there what they meant before.

Transaction numbers are a cluster's own. Here the log's rows get numbers of this cluster and the positions snapshots
of it, so that each group has been sent, and has yet to be sent, exactly the rows that it had; see ``rebase_plan``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, LiteralString

from psycopg import IsolationLevel, errors, sql

from outbox.errors import TransientError
from outbox.shell.database import Connection, store_errors
from outbox_admin import audit
from outbox_admin.rebase_plan import Classes, Rebased, Snapshot
from relay.log import guard

# Longer than a deadlock timeout: autovacuum, busy with what was restored, gives way after that.
_LOCK_S: Final = 5

_SNAPSHOTS: Final[LiteralString] = """
SELECT lo::text FROM outbox.bucket UNION SELECT lo::text FROM outbox.stream UNION SELECT hi::text FROM outbox.stream"""

# Rows with numbers drawn since were written after the positions, whatever transaction number they carry. Where the
# sequence came without its value and began anew, what it has drawn may be such rows as well.
_KNOWN: Final[LiteralString] = """
SELECT CASE WHEN drawn < stored THEN drawn ELSE 0 END, stored
FROM (SELECT coalesce(pg_sequence_last_value('outbox.event_seq'), 0) AS drawn,
             (SELECT coalesce(max(last_seq), 0) FROM outbox.bucket) AS stored) numbers"""

_CLASS: Final[LiteralString] = """
CASE WHEN e.seq <= %(known_after)s OR e.seq > %(known_to)s THEN %(unknown)s
     WHEN e.xid = ANY (%(odd)s::text[]::xid8[])
         THEN (%(odd_class)s::integer[])[array_position(%(odd)s::text[]::xid8[], e.xid)]
     ELSE width_bucket(e.xid, %(bounds)s::text[]::xid8[]) END"""

# Unpublished to a group is what its lane's stream has not passed, or what its bucket's base does not show.
_WAITING: Final[LiteralString] = f"""
WITH e AS MATERIALIZED (
    SELECT * FROM (
        SELECT e.bucket, e.tier, e.tenant, e.seq, {_CLASS} AS class FROM outbox.event e OFFSET 0
    ) e WHERE class > %(seen_by_all)s
), shown AS MATERIALIZED (
    SELECT * FROM unnest(%(texts)s::text[], %(up_to)s::integer[]) AS s (snapshot, class)
), b AS MATERIALIZED (
    SELECT b.group_name, b.bucket, lo.class AS lo FROM outbox.bucket b JOIN shown lo ON lo.snapshot = b.lo::text
), s AS MATERIALIZED (
    SELECT s.group_name, s.tier, s.tenant, s.after, lo.class AS lo, hi.class AS hi
    FROM outbox.stream s JOIN shown lo ON lo.snapshot = s.lo::text JOIN shown hi ON hi.snapshot = s.hi::text
)
SELECT g.group_name, coalesce(w.count, 0) FROM outbox.consumer_group g LEFT JOIN (
    SELECT b.group_name, count(*)
    FROM e JOIN b USING (bucket)
    LEFT JOIN s ON s.group_name = b.group_name AND s.tier = e.tier AND s.tenant = e.tenant
    WHERE CASE WHEN s.tenant IS NULL THEN e.class > b.lo
               ELSE e.class > s.hi OR e.class > s.lo AND e.seq > s.after END
    GROUP BY b.group_name
) w USING (group_name) ORDER BY g.group_name"""  # noqa: S608 (its parts are constants of this module)

# What every position shows already can stay as it is: after a failover that is nearly all of the log.
_STAMP: Final[LiteralString] = f"""
UPDATE outbox.event e SET xid = (%(stamps)s::text[]::xid8[])[1 + {_CLASS}]
WHERE NOT ({_CLASS} = 0 AND pg_visible_in_snapshot(e.xid, %(first)s::text::pg_snapshot))"""  # noqa: S608 (likewise)

_MOVE_STREAMS: Final[LiteralString] = """
WITH moved AS MATERIALIZED (SELECT * FROM unnest(%(texts)s::text[], %(rebased)s::text[]) AS m (stored, here))
UPDATE outbox.stream s SET lo = lo.here::pg_snapshot, hi = hi.here::pg_snapshot
FROM moved lo, moved hi WHERE lo.stored = s.lo::text AND hi.stored = s.hi::text"""
# A token of the old cluster may be drawn again here.
_MOVE_BASES: Final[LiteralString] = """
UPDATE outbox.bucket b
SET lo = m.here::pg_snapshot, last_seq = DEFAULT, token = 0, expires_at = '-infinity'
FROM unnest(%(texts)s::text[], %(rebased)s::text[]) AS m (stored, here) WHERE m.stored = b.lo::text"""
_MOVE_ORIGIN: Final[LiteralString] = """
INSERT INTO outbox.origin (system_identifier, database_oid, timeline) SELECT * FROM outbox.current_origin()
ON CONFLICT (is_only) DO UPDATE SET system_identifier = excluded.system_identifier,
    database_oid = excluded.database_oid, timeline = excluded.timeline"""

_CATCH_UP: Final[tuple[LiteralString, ...]] = (
    """SELECT setval('outbox.event_seq', last) FROM (
        SELECT greatest((SELECT max(seq) FROM outbox.event), (SELECT max(last_seq) FROM outbox.bucket)) AS last
    ) used WHERE last > coalesce(pg_sequence_last_value('outbox.event_seq'), 0)""",
    """SELECT setval('outbox.token', last) FROM (
        SELECT greatest((SELECT max(token) FROM outbox.bucket), (SELECT max(token) FROM outbox.relay),
                        (SELECT max(token) FROM outbox.replay), (SELECT max(token) FROM outbox.deferred)) AS last
    ) used WHERE last > coalesce(pg_sequence_last_value('outbox.token'), 0)""",
)

_LEASES: Final[LiteralString] = """
SELECT count(*), extract(epoch FROM max(expires_at) - clock_timestamp())::float8
FROM outbox.bucket WHERE expires_at > clock_timestamp()"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """How the database is not the one that the positions are of, and what a rebase would leave to be published."""

    difference: str | None
    waiting: Mapping[str, int]
    """How many events each group has not been sent, as far as the stored positions know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What a rebase did."""

    waiting: Mapping[str, int]
    stamped: int
    """How many rows of the log got another transaction number, and left a dead row each."""
    bases: int
    streams: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stored:
    """What the database says of the positions in it."""

    texts: Sequence[str]
    """Every snapshot of a base or a stream, once."""
    classes: Classes
    known_after: int
    """Rows up to this number, and above *known_to*, were not there when the positions were stored."""
    known_to: int

    def parameters(self) -> dict[str, object]:
        """What ``_CLASS`` and ``_WAITING`` want."""
        index = {text: at for at, text in enumerate(self.classes.texts)}
        up_to = [index.get(text, -1) for text in self.texts]
        return {
            "known_after": self.known_after,
            "known_to": self.known_to,
            "unknown": len(self.classes.texts),
            "odd": [str(xid) for xid in self.classes.odd],
            "odd_class": list(self.classes.odd.values()),
            "bounds": [str(xmax) for xmax in self.classes.bounds],
            "texts": list(self.texts),
            "up_to": up_to,
            "seen_by_all": min(up_to, default=0),
        }


async def preview(connection: Connection) -> Preview:
    """Say what ``rebase`` would do; changes nothing.

    Raises:
        WrongDatabase: this is a standby.
        StoreUnavailable, SchemaMissing, ConfigError: the database cannot be asked.
    """
    with store_errors():
        difference = (await guard.compare(connection)).difference
        return Preview(difference=difference, waiting=await _waiting(connection, await _stored(connection)))


async def rebase(connection: Connection, *, actor: str) -> Done | None:
    """Make the stored positions this database's own; None where they are. All of it happens, or nothing does.

    *connection*: in autocommit, and in no transaction.

    Raises:
        WrongDatabase: this is a standby.
        TransientError: a relay holds leases, or somebody writes to the log: end them and try again.
        StoreUnavailable, SchemaMissing, ConfigError: the database cannot be worked on.
    """
    await connection.set_isolation_level(IsolationLevel.READ_COMMITTED)
    await connection.set_read_only(False)
    with store_errors():
        # On a standby there is nothing to count and nothing to lock.
        if (await guard.compare(connection)).difference is None:
            return None
        await _end_transactions(connection, len((await _stored(connection)).texts))
        # Before our own transaction has a number: a snapshot does not tell which one is the asker's.
        now = Snapshot.parsed(str(await _value(connection, "SELECT pg_current_snapshot()::text")))
        async with connection.transaction():
            await _lock(connection)
            compared = await guard.compare(connection)
            if compared.difference is None:
                return None
            await _check_leases(connection)
            stored = await _stored(connection)
            waiting = await _waiting(connection, stored)
            done = await _move(connection, stored, stored.classes.rebased(now), now, waiting)
            detail = {
                "difference": compared.difference,
                "waiting": dict(waiting),
                "stamped": done.stamped,
                "bases": done.bases,
                "streams": done.streams,
            }
            await audit.record(connection, actor=actor, action="rebase", group=None, detail=detail)
    return done


async def _end_transactions(connection: Connection, count: int) -> None:
    """Use up *count* transaction numbers: a new cluster may not have had as many as there are snapshots."""
    loop = sql.SQL("DO $$ BEGIN FOR i IN 1..{} LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$").format(
        sql.Literal(count)
    )
    await connection.execute(loop)


async def _lock(connection: Connection) -> None:
    """Keep out whoever writes events or positions, until we commit; readers may go on."""
    await connection.execute(
        "SELECT set_config('statement_timeout', '0', true), set_config('lock_timeout', %s, true)", (f"{_LOCK_S}s",)
    )
    try:
        await connection.execute("LOCK TABLE outbox.event, outbox.bucket, outbox.stream IN EXCLUSIVE MODE")
    except errors.LockNotAvailable:
        raise TransientError(
            f"log: want nobody to write to it, got a transaction, perhaps a prepared one, that did not end within "
            f"{_LOCK_S} s; stop the apps and the relays and try again"
        ) from None
    await connection.execute("SELECT set_config('lock_timeout', '0', true)")


async def _check_leases(connection: Connection) -> None:
    row = await (await connection.execute(_LEASES)).fetchone()
    if row is not None and row[0]:
        raise TransientError(
            f"leases: want no relay at work, got {row[0]} buckets held for another {row[1]:.0f} s; "
            f"stop the relays, or wait, and try again"
        )


async def _stored(connection: Connection) -> _Stored:
    texts = [str(text) for (text,) in await (await connection.execute(_SNAPSHOTS)).fetchall()]
    row = await (await connection.execute(_KNOWN)).fetchone()
    assert row is not None  # noqa: S101 (the query returns one row)
    known_after, known_to = (int(str(number)) for number in row)
    return _Stored(texts=texts, classes=Classes.of(texts), known_after=known_after, known_to=known_to)


async def _waiting(connection: Connection, stored: _Stored) -> Mapping[str, int]:
    rows = await (await connection.execute(_WAITING, stored.parameters())).fetchall()
    return {str(group): int(str(count)) for group, count in rows}


async def _move(
    connection: Connection, stored: _Stored, rebased: Rebased, now: Snapshot, waiting: Mapping[str, int]
) -> Done:
    ours = str(await _value(connection, "SELECT pg_current_xact_id()::text"))
    here = dict(zip(stored.classes.texts, rebased.texts, strict=True))
    parameters: dict[str, Any] = stored.parameters() | {
        "stamps": [*map(str, rebased.stamps), ours],
        "first": (*rebased.texts, str(now))[0],
        "rebased": [here.get(text, text) for text in stored.texts],
    }
    for statement in _CATCH_UP:
        await connection.execute(statement)
    stamped = await connection.execute(_STAMP, parameters)
    streams = await connection.execute(_MOVE_STREAMS, parameters)
    bases = await connection.execute(_MOVE_BASES, parameters)
    await connection.execute(_MOVE_ORIGIN)
    return Done(waiting=waiting, stamped=stamped.rowcount, bases=bases.rowcount, streams=streams.rowcount)


async def _value(connection: Connection, query: LiteralString) -> object:
    row = await (await connection.execute(query)).fetchone()
    assert row is not None  # noqa: S101 (a SELECT without FROM has one row)
    return row[0]
