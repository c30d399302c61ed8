"""Which lanes stand, and since when their groups read the log: what the groups' directories are told."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final, LiteralString

from outbox.naming import Lane, bucket_of, tenant_hash
from relay.log.rows import TIERS
from relay.log.store import Connection, deadline

_STANDING: Final[LiteralString] = "SELECT group_name, tier, tenant FROM outbox.lane WHERE leaving_at IS NULL"
_LEAVING: Final[LiteralString] = "SELECT group_name, tier, tenant FROM outbox.lane WHERE leaving_at IS NOT NULL"
_GROUPS: Final[LiteralString] = "SELECT group_name, started_at FROM outbox.consumer_group"
# In one order: two relays that record the same lanes must not wait for each other in a circle.
_RECORD: Final[LiteralString] = """
INSERT INTO outbox.lane (group_name, tier, tenant)
SELECT * FROM unnest(%s::text[], %s::smallint[], %s::text[]) AS l (group_name, tier, tenant) ORDER BY 1, 2, 3
ON CONFLICT DO NOTHING
RETURNING group_name, tier, tenant"""
_QUIET: Final[LiteralString] = """
UPDATE outbox.lane l SET quiet_at = clock_timestamp()
FROM unnest(%s::text[], %s::smallint[], %s::text[], %s::smallint[]) AS q (group_name, tier, tenant, bucket)
JOIN outbox.bucket b ON b.group_name = q.group_name AND b.bucket = q.bucket
WHERE l.group_name = q.group_name AND l.tier = q.tier AND l.tenant = q.tenant
  AND b.token = %s AND l.leaving_at IS NOT NULL AND l.quiet_at IS NULL"""


async def recorded(connection: Connection, *, within_s: float) -> set[Lane]:
    """Every lane that was ever declared, and is neither off-boarded since nor about to be."""
    async with deadline(connection, within_s):
        rows = await (await connection.execute(_STANDING)).fetchall()
    return _lanes(rows)


async def leaving(connection: Connection, *, within_s: float) -> set[Lane]:
    """The lanes that are being off-boarded."""
    async with deadline(connection, within_s):
        rows = await (await connection.execute(_LEAVING)).fetchall()
    return _lanes(rows)


async def quiet(connection: Connection, token: int, lanes: Collection[Lane], *, within_s: float) -> None:
    """Say that nothing is published to *lanes* any more: to those in buckets under *token* that are leaving still."""
    async with deadline(connection, within_s):
        await connection.execute(
            _QUIET,
            (
                [lane.group for lane in lanes],
                [int(lane.tier) for lane in lanes],
                [lane.tenant for lane in lanes],
                [bucket_of(tenant_hash(lane.tenant)) for lane in lanes],
                token,
            ),
        )


async def group_starts(connection: Connection, *, within_s: float) -> Mapping[str, datetime]:
    """When each group began to read the log."""
    async with deadline(connection, within_s):
        return dict(await (await connection.execute(_GROUPS)).fetchall())


async def record(connection: Connection, lanes: Sequence[Lane], *, within_s: float) -> set[Lane]:
    """Write down that *lanes* stand; return those that were not. Safe to repeat."""
    async with deadline(connection, within_s):
        written = await connection.execute(
            _RECORD,
            ([lane.group for lane in lanes], [int(lane.tier) for lane in lanes], [lane.tenant for lane in lanes]),
        )
        return _lanes(await written.fetchall())


def _lanes(rows: Iterable[tuple[str, int, str]]) -> set[Lane]:
    return {Lane(group=group, tier=TIERS[tier], tenant=tenant) for group, tier, tenant in rows}
