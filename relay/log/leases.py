"""Who owns which bucket. A lease is a token and an expiry in the bucket's own row, on the database's clock.

A token is drawn once for each session of a relay and never again, so a row that carries mine was given to this
session and to nobody since. Whoever finds an expired row may put its own token there, as long as it holds less than
its share; what the former owner holds in memory is worthless from then on, and the transaction that moves a position
finds that out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, LiteralString

from outbox.errors import LeaseLost
from outbox.naming import Lane
from relay.decide.pieces import StreamPosition
from relay.decide.shares import Share, fair_share
from relay.log import peers
from relay.log.rows import TIERS
from relay.log.store import Connection, deadline

_RENEW: Final[LiteralString] = """
UPDATE outbox.bucket SET expires_at = clock_timestamp() + make_interval(secs => %(lease_s)s) WHERE token = %(token)s"""

# Rows that another takes at this moment are skipped: waiting for them while holding some would deadlock two takers.
_TAKE: Final[LiteralString] = """
UPDATE outbox.bucket b
SET token = %(token)s, expires_at = clock_timestamp() + make_interval(secs => %(lease_s)s)
FROM (
    SELECT group_name, bucket FROM outbox.bucket
    WHERE token <> %(token)s AND (expires_at < clock_timestamp() OR token = ANY (%(former)s::bigint[]))
    ORDER BY token <> ALL (%(former)s::bigint[]), bucket, group_name
    LIMIT %(lacking)s + (SELECT count(*) FROM outbox.bucket WHERE token = ANY (%(former)s::bigint[]))
    FOR UPDATE SKIP LOCKED
) free
WHERE b.group_name = free.group_name AND b.bucket = free.bucket
RETURNING b.group_name, b.bucket, b.lo::text"""

_STREAMS: Final[LiteralString] = """
SELECT st.group_name, st.tier, st.tenant, st.tenant_hash, st.bucket, st.lo::text, st.hi::text, st.after, st.z
FROM outbox.stream st
JOIN unnest(%s::text[], %s::smallint[]) AS own (group_name, bucket) USING (group_name, bucket)"""

_HAS_LEFT: Final[LiteralString] = "SELECT EXISTS (SELECT FROM outbox.bucket WHERE token = ANY (%s::bigint[]))"

_HAS_FREE: Final[LiteralString] = """
SELECT EXISTS (SELECT FROM outbox.bucket WHERE token <> %s AND expires_at < statement_timestamp())"""

# No token of ours stays behind: a row that carries mine is mine.
_RELEASE: Final[LiteralString] = """
UPDATE outbox.bucket SET token = 0, expires_at = '-infinity' WHERE token = %s"""
_GIVE_UP: Final[LiteralString] = """
UPDATE outbox.bucket b SET token = 0, expires_at = '-infinity'
FROM unnest(%s::text[], %s::smallint[]) AS given (group_name, bucket)
WHERE b.group_name = given.group_name AND b.bucket = given.bucket AND b.token = %s"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What was just taken: *bases* are group, bucket and stored base."""

    bases: Sequence[tuple[str, int, str]]
    streams: Sequence[StreamPosition]
    share: Share
    """What was fair before anything was taken."""
    relays: int
    """How many relays lived and reached the broker."""
    has_left: bool
    """Something of my former tokens was skipped: what is left of a session that was lost holds it for a moment."""


async def new_token(connection: Connection, *, within_s: float) -> int:
    """A number that no session ever had."""
    async with deadline(connection, within_s):
        row = await (await connection.execute("SELECT nextval('outbox.token')")).fetchone()
    assert row is not None  # noqa: S101 (a SELECT without FROM has one row)
    return int(row[0])


async def renew(
    connection: Connection, token: int, *, owned: int, is_able: bool, lease_s: float, within_s: float
) -> None:
    """Let my leases, and my place among the relays, run for *lease_s* from now.

    Raises:
        LeaseLost: fewer than *owned* rows carry *token*.
    """
    async with deadline(connection, within_s):
        await peers.enlist(connection, token, former=(), is_able=is_able, lease_s=lease_s)
        renewed = await connection.execute(_RENEW, {"token": token, "lease_s": lease_s})
    _check_owned(renewed.rowcount, owned)


async def take(
    connection: Connection,
    token: int,
    *,
    former: Sequence[int],
    owned: int,
    is_able: bool,
    lease_s: float,
    within_s: float,
) -> Taken:
    """Renew what is mine and take what has expired, up to my share, with the positions of what was taken.

    Args:
        former: tokens of this process's sessions before; nobody else has them, so their rows need not expire.
        is_able: whether I reach the broker; see ``relay.decide.shares``.

    Raises:
        LeaseLost: fewer than *owned* rows carry *token*; nothing was taken.
    """
    parameters = {"token": token, "former": list(former), "lease_s": lease_s}
    async with deadline(connection, within_s):
        # Seen by the others before any of us counts: two that start together take a half each.
        await peers.enlist(connection, token, former=former, is_able=is_able, lease_s=lease_s)
        async with connection.transaction():
            # Renewed first and in the same transaction: a row lost and taken back in between would be mine again,
            # and what I hold of it in memory would not.
            renewed = await connection.execute(_RENEW, parameters)
            _check_owned(renewed.rowcount, owned)
            living = await peers.living(connection, token, former=former)
            share = fair_share(token, living.peers, buckets=living.buckets)
            taking = {**parameters, "lacking": share.lacking}
            bases = await (await connection.execute(_TAKE, taking)).fetchall()
            streams = await _streams(connection, bases) if bases else ()
            has_left = bool(former) and await _says(connection, _HAS_LEFT, (list(former),))
    relays = sum(peer.is_able for peer in living.peers)
    return Taken(bases=bases, streams=streams, share=share, relays=relays, has_left=has_left)


async def has_free(connection: Connection, token: int, *, within_s: float) -> bool:
    """Whether any bucket waits for an owner."""
    async with deadline(connection, within_s):
        return await _says(connection, _HAS_FREE, (token,))


async def release(connection: Connection, token: int, *, within_s: float) -> None:
    """Let everything of mine be taken at once, and count me no more. Positions must be persisted before."""
    async with deadline(connection, within_s), connection.transaction():
        await connection.execute(_RELEASE, (token,))
        await peers.strike(connection, token)


async def give_up(connection: Connection, token: int, places: Sequence[tuple[str, int]]) -> None:
    """Let these groups' buckets be taken at once. Inside the transaction that has seen my token on them."""
    await connection.execute(_GIVE_UP, ([group for group, _ in places], [bucket for _, bucket in places], token))


async def _says(connection: Connection, question: LiteralString, parameters: Sequence[object]) -> bool:
    row = await (await connection.execute(question, parameters)).fetchone()
    return row is not None and bool(row[0])


async def _streams(connection: Connection, bases: Sequence[tuple[str, int, str]]) -> Sequence[StreamPosition]:
    own = ([group for group, _, _ in bases], [bucket for _, bucket, _ in bases])
    return [
        StreamPosition(
            lane=Lane(group=group, tier=TIERS[tier], tenant=tenant),
            tenant_hash=tenant_hash,
            bucket=bucket,
            lo=lo,
            hi=hi,
            after=after,
            z=z,
        )
        for group, tier, tenant, tenant_hash, bucket, lo, hi, after, z in await (
            await connection.execute(_STREAMS, own)
        ).fetchall()
    ]


def _check_owned(found: int, owned: int) -> None:
    if found != owned:
        raise LeaseLost(f"buckets: want {owned} under this relay's token, got {found}")
