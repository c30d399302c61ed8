"""Is this the database that the stored positions belong to, and may it be read at all?

A position is a snapshot: transaction numbers of one cluster on one timeline. In a restored dump, or on a
promoted standby that lacks the last transactions, the same numbers mean others, and events would be skipped
for ever. A standby's snapshots come from its replay and may show commits in another order.
"""

from typing import Final, LiteralString

from outbox.errors import WrongDatabase
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
_REMEDY: Final = "positions cannot be moved to another database yet"


async def check(connection: Connection, *, within_s: float) -> None:
    """Return if the stored positions mean what they say here.

    Raises:
        WrongDatabase: this is a standby, or another cluster, timeline or database than the positions are of.
        SchemaMissing: the schema is not there.
    """
    async with deadline(connection, within_s):
        row = await (await connection.execute(_IS_STANDBY)).fetchone()
        if row is not None and row[0]:
            raise WrongDatabase("database: want a primary, got a standby, whose snapshots do not show all commits")
        origin = await (await connection.execute(_ORIGIN)).fetchone()
        ahead = await (await connection.execute(_AHEAD)).fetchone()
    assert origin is not None  # noqa: S101 (the function returns one row)
    names = ("system identifier", "database oid", "timeline")
    for name, stored, here in zip(names, origin[:3], origin[3:], strict=True):
        if stored != here:
            raise WrongDatabase(f"database: want {name} {stored} as in the stored positions, got {here}; {_REMEDY}")
    if ahead is not None:
        raise WrongDatabase(
            f"database: want transactions up to {ahead[1]} as in the stored positions, got {ahead[0]}; {_REMEDY}"
        )
