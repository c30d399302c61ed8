"""Giving the two position tables back their size: vacuum cannot while anybody holds a snapshot, and lookups slow down.

Every persist leaves dead versions behind. What is alive is copied out, the table truncated and filled again, in one
statement of the database's own; tokens and leases are as they were.
"""

import asyncio
from typing import Final, Literal, LiteralString

from relay.log.store import Connection, deadline

PositionTable = Literal["bucket", "stream"]
TABLES: Final[tuple[PositionTable, ...]] = ("bucket", "stream")

SIZE_BYTES_MAX: Final = 1024 * 1024
# With half of each page free, indexes, and as much again of dead rows as there are live ones.
_BLOAT_MAX: Final = 6
_TRIES: Final = 20
_TRY_EVERY_S: Final = 0.02

_IS_BLOATED: Final[dict[PositionTable, LiteralString]] = {
    "bucket": """
SELECT CASE WHEN pg_total_relation_size('outbox.bucket') <= %(most)s THEN false
       ELSE pg_total_relation_size('outbox.bucket')
            > %(times)s * (SELECT coalesce(sum(pg_column_size(t.*)), 0) FROM outbox.bucket t) END""",
    "stream": """
SELECT CASE WHEN pg_total_relation_size('outbox.stream') <= %(most)s THEN false
       ELSE pg_total_relation_size('outbox.stream')
            > %(times)s * (SELECT coalesce(sum(pg_column_size(t.*)), 0) FROM outbox.stream t) END""",
}
_REWRITE: Final[dict[PositionTable, LiteralString]] = {
    "bucket": "SELECT outbox.rewrite_bucket()",
    "stream": "SELECT outbox.rewrite_stream()",
}


async def is_bloated(connection: Connection, table: PositionTable, *, within_s: float) -> bool:
    """Whether *table* is larger than 1 MB, and most of that is dead."""
    async with deadline(connection, within_s):
        row = await (
            await connection.execute(_IS_BLOATED[table], {"most": SIZE_BYTES_MAX, "times": _BLOAT_MAX})
        ).fetchone()
    return row is not None and bool(row[0])


async def rewrite(connection: Connection, table: PositionTable, *, within_s: float) -> bool:
    """Rewrite *table*; False if it is in use all the time, or being dumped. Waits for nobody, who waits but for it."""
    for _ in range(_TRIES):
        async with deadline(connection, within_s):
            row = await (await connection.execute(_REWRITE[table])).fetchone()
        if row is not None and row[0] == "rewritten":
            return True
        await asyncio.sleep(_TRY_EVERY_S)
    return False
