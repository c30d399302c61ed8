"""Moving positions: one transaction that says what is published, and writes down what could not be.

A bucket's base says that every event of its tenants up to that snapshot is settled, save for tenants with
a stream; a stream says how far its tenant is. Both move in the transaction that has locked the
bucket's row and seen my token there, so an owner that was frozen and replaced can move neither.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, LiteralString
from uuid import UUID

from outbox.errors import LeaseLost
from outbox.shell.arrays import numbers, texts
from relay.decide.backlog import Positions
from relay.log.deferred import FailedAgain, Failure, delete_published, unclaim, write_failed_again, write_failures
from relay.log.leases import give_up
from relay.log.store import Connection, deadline

# Locked in the order of the primary key: two transactions that lock the same rows in two orders deadlock.
_LOCK: Final[LiteralString] = """
SELECT count(*) FROM (
    SELECT FROM outbox.bucket WHERE token = %s ORDER BY group_name, bucket FOR UPDATE
) mine"""

# The default is the last number drawn: none that *lo* shows is above it.
_MOVE: Final[LiteralString] = """
UPDATE outbox.bucket b SET lo = (%s::text[])[moved.base]::pg_snapshot, last_seq = DEFAULT
FROM unnest(%s::text[], %s::smallint[], %s::integer[]) AS moved (group_name, bucket, base)
WHERE b.group_name = moved.group_name AND b.bucket = moved.bucket AND b.token = %s"""

_UPSERT: Final[LiteralString] = """
INSERT INTO outbox.stream (group_name, tier, tenant, tenant_hash, bucket, lo, hi, after, z)
SELECT s.group_name, s.tier, s.tenant, s.tenant_hash, s.bucket, s.lo::pg_snapshot, s.hi::pg_snapshot, s.after, s.z
FROM unnest(%s::text[], %s::smallint[], %s::text[], %s::bigint[], %s::smallint[],
            %s::text[], %s::text[], %s::bigint[], %s::bigint[])
    AS s (group_name, tier, tenant, tenant_hash, bucket, lo, hi, after, z)
ON CONFLICT (group_name, tier, tenant)
DO UPDATE SET lo = excluded.lo, hi = excluded.hi, after = excluded.after, z = excluded.z"""

# Looked up and not joined, see FIXED_PLANS.
_DELETE: Final[LiteralString] = """
DELETE FROM outbox.stream WHERE ctid = ANY (ARRAY(
    SELECT st.ctid
    FROM unnest(%s::text[], %s::smallint[], %s::text[]) AS gone (group_name, tier, tenant)
    CROSS JOIN LATERAL (
        SELECT ctid FROM outbox.stream st
        WHERE st.group_name = gone.group_name AND st.tier = gone.tier AND st.tenant = gone.tenant OFFSET 0
    ) st))"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What became of single events since the last persist."""

    failures: Sequence[Failure] = ()
    failed_again: Sequence[FailedAgain] = ()
    published_deferred: Sequence[tuple[str, UUID]] = ()
    """Group and id of deferred events that are published now."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to write down."""
        return not (self.failures or self.failed_again or self.published_deferred)


async def persist(
    connection: Connection,
    token: int,
    positions: Positions,
    findings: Findings,
    *,
    owned: int,
    within_s: float,
    given_up: Sequence[tuple[str, int]] = (),
) -> None:
    """Store *positions* and *findings* together, and let the groups' buckets in *given_up* be taken by others.

    One statement after the other, and no pipeline: within one the server ends no transaction of a process that has
    frozen, and nobody else could take the buckets.

    Raises:
        LeaseLost: fewer than *owned* rows carry *token*; nothing was written.
    """
    async with deadline(connection, within_s), connection.transaction():
        row = await (await connection.execute(_LOCK, (token,))).fetchone()
        found = row[0] if row else 0
        if found != owned:
            raise LeaseLost(f"buckets: want {owned} under this relay's token, got {found}")
        await _write_findings(connection, token, findings)
        await _write_streams(connection, positions)
        await _move_bases(connection, token, positions.bases)
        if given_up:
            await unclaim(connection, token, given_up)
            await give_up(connection, token, given_up)


async def _move_bases(connection: Connection, token: int, moved: Sequence[tuple[str, int, str]]) -> None:
    if moved:
        # A snapshot's text may be long, and buckets share it.
        groups, buckets, bases = zip(*moved, strict=True)
        places = {base: place for place, base in enumerate(dict.fromkeys(bases), start=1)}
        await connection.execute(
            _MOVE,
            (texts(list(places)), texts(groups), numbers(buckets), numbers([places[base] for base in bases]), token),
        )


async def _write_findings(connection: Connection, token: int, findings: Findings) -> None:
    # Before the streams: the positions written below go past these events.
    if findings.failures:
        await write_failures(connection, findings.failures)
    if findings.failed_again:
        await write_failed_again(connection, token, findings.failed_again)
    if findings.published_deferred:
        await delete_published(connection, token, findings.published_deferred)


async def _write_streams(connection: Connection, positions: Positions) -> None:
    streams = positions.streams
    if streams:
        await connection.execute(
            _UPSERT,
            (
                texts([one.lane.group for one in streams]),
                numbers([int(one.lane.tier) for one in streams]),
                texts([one.lane.tenant for one in streams]),
                numbers([one.tenant_hash for one in streams]),
                numbers([one.bucket for one in streams]),
                texts([one.lo for one in streams]),
                texts([one.hi for one in streams]),
                numbers([one.after for one in streams]),
                numbers([one.z for one in streams]),
            ),
        )
    if positions.caught_up:
        groups, tiers, tenants = zip(*positions.caught_up, strict=True)
        await connection.execute(_DELETE, (texts(groups), numbers([int(tier) for tier in tiers]), texts(tenants)))
