"""Is this the database that the stored positions belong to, and may it be read at all?

A position is a snapshot: transaction numbers of one cluster on one timeline. In a restored dump, or on a
promoted standby that lacks the last transactions, the same numbers mean others, and events would be skipped
for ever. A standby's snapshots come from its replay and may show commits in another order.
"""

from dataclasses import astuple, dataclass
from typing import Any, Final, LiteralString

import psycopg

from outbox.errors import IsStandby, WrongDatabase
from relay.log.store import Connection, deadline

_IS_STANDBY: Final[LiteralString] = "SELECT pg_is_in_recovery()"
_ORIGIN: Final[LiteralString] = """
SELECT stored.system_identifier::text, stored.database_oid::text, stored.timeline,
       here.system_identifier::text, here.database_oid::text, here.timeline
FROM outbox.current_origin() here LEFT JOIN outbox.origin stored ON true"""
_AHEAD: Final[LiteralString] = """
SELECT pg_snapshot_xmax(pg_current_snapshot())::text, max(xmax)::text FROM (
    SELECT pg_snapshot_xmax(lo)::text::numeric AS xmax FROM outbox.bucket
    UNION ALL
    SELECT pg_snapshot_xmax(hi)::text::numeric FROM outbox.stream
) stored
HAVING max(xmax) > pg_snapshot_xmax(pg_current_snapshot())::text::numeric"""
_NAMES: Final = ("system identifier", "database oid", "timeline")


@dataclass(frozen=True, slots=True)
class Origin:
    """Where transaction numbers come from: a cluster, a database in it, and the timeline it is on."""

    system_identifier: str
    database_oid: str
    timeline: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """The database that was asked, and in half a sentence how it is not the stored positions' own."""

    here: Origin
    difference: str | None


async def check(connection: Connection, *, within_s: float) -> Origin:
    """Return where this is, if the stored positions mean what they say here.

    Raises:
        WrongDatabase: this is a standby, or another cluster, timeline or database than the positions are of.
        SchemaMissing: the schema is not there.
    """
    async with deadline(connection, within_s):
        compared = await compare(connection)
    if compared.difference is not None:
        raise WrongDatabase(f"database: {compared.difference}; stop the apps and run 'outbox rebase'")
    return compared.here


async def compare(connection: psycopg.AsyncConnection[Any]) -> Compared:
    """Compare this database with the one that the stored positions are of.

    Raises:
        WrongDatabase: this is a standby.
    """
    row = await (await connection.execute(_IS_STANDBY)).fetchone()
    if row is not None and row[0]:
        raise IsStandby("database: want a primary, got a standby, whose snapshots do not show all commits")
    origin = await (await connection.execute(_ORIGIN)).fetchone()
    ahead = await (await connection.execute(_AHEAD)).fetchone()
    assert origin is not None  # noqa: S101 (the function returns one row)
    here = Origin(*origin[3:])
    for name, stored, ours in zip(_NAMES, origin[:3], astuple(here), strict=True):
        if stored != ours:
            difference = f"want {name} {stored} as in the stored positions, got {ours}"
            return Compared(here=here, difference=difference)
    if ahead is not None:
        difference = f"want transactions up to {ahead[1]} as in the stored positions, got {ahead[0]}"
        return Compared(here=here, difference=difference)
    return Compared(here=here, difference=None)
