"""Which relays live: a row each, renewed with its leases, so that one without buckets is seen by those that have some.

Few rows that are updated in place; whoever renews its own removes the dead.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, LiteralString

from relay.decide.shares import Peer
from relay.log.store import Connection

# Dead rows that another removes at this moment are skipped: nobody waits for anybody here.
_ENLIST: Final[LiteralString] = """
WITH gone AS (
    DELETE FROM outbox.relay WHERE token IN (
        SELECT token FROM outbox.relay
        WHERE token <> %(token)s AND (expires_at < clock_timestamp() OR token = ANY (%(former)s::bigint[]))
        FOR UPDATE SKIP LOCKED
    )
)
INSERT INTO outbox.relay (token, is_able, expires_at)
VALUES (%(token)s, %(is_able)s, clock_timestamp() + make_interval(secs => %(lease_s)s))
ON CONFLICT (token) DO UPDATE SET is_able = excluded.is_able, expires_at = excluded.expires_at"""

_STRIKE: Final[LiteralString] = "DELETE FROM outbox.relay WHERE token = %s"

_LIVING: Final[LiteralString] = """
SELECT r.token, r.is_able, (
    SELECT count(*) FROM outbox.bucket b
    WHERE b.token = r.token OR r.token = %(token)s AND b.token = ANY (%(former)s::bigint[])
), (SELECT count(*) FROM outbox.bucket)
FROM outbox.relay r WHERE r.token = %(token)s OR r.expires_at >= clock_timestamp()"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Living:
    """The relays that live, and how many *buckets* there are for them, over all groups."""

    peers: Sequence[Peer]
    buckets: int


async def enlist(connection: Connection, token: int, *, former: Sequence[int], is_able: bool, lease_s: float) -> None:
    """Let others see for *lease_s* that the relay with *token* lives, and its *former* tokens no more."""
    parameters = {"token": token, "former": list(former), "is_able": is_able, "lease_s": lease_s}
    await connection.execute(_ENLIST, parameters)


async def strike(connection: Connection, token: int) -> None:
    """Let nobody count the relay with *token* any more."""
    await connection.execute(_STRIKE, (token,))


async def living(connection: Connection, token: int, *, former: Sequence[int]) -> Living:
    """The relays that live, the one with *token* among them; what *former* tokens hold counts as its own."""
    rows = await (await connection.execute(_LIVING, {"token": token, "former": list(former)})).fetchall()
    return Living(
        peers=[Peer(token=one, owned=owned, is_able=is_able) for one, is_able, owned, _ in rows],
        buckets=rows[0][3] if rows else 0,
    )
