"""Leases on what a connection has in hand, by the database's clock. One that has run out never lives again.

There is one per connection, not one per message: renewing it is one row, however much is held.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from psycopg import errors as pg

from outbox.shell.severed import Connection

_BEGIN: Final = """
INSERT INTO outbox_broker.lease (expires_at) VALUES (clock_timestamp() + make_interval(secs => %s)) RETURNING token
"""
_DURABLY: Final = "SET LOCAL synchronous_commit = on"
_RENEW: Final = """
UPDATE outbox_broker.lease SET expires_at = clock_timestamp() + make_interval(secs => %s)
WHERE token = %s AND expires_at > clock_timestamp()
"""
_RUN_OUT: Final = "UPDATE outbox_broker.lease SET expires_at = least(expires_at, clock_timestamp()) WHERE token = %s"
_END: Final = "DELETE FROM outbox_broker.lease WHERE token = %s"
_DEAD: Final = "SELECT token FROM outbox_broker.lease WHERE expires_at <= clock_timestamp()"
# While a message has its token the lease has to be known as dead, or nobody would take that message.
_FORGET: Final = """
DELETE FROM outbox_broker.lease l
WHERE l.expires_at < clock_timestamp() - interval '1 hour'
    AND NOT EXISTS (SELECT FROM outbox_broker.message m WHERE m.token = l.token)
"""
_SHORTLY: Final = "SET LOCAL statement_timeout = '1s'"


async def begin(connection: Connection, *, lease_s: float) -> int:
    """Return the token of a new lease, which nobody has had or will have, whatever crashes."""
    async with connection.transaction():
        await connection.execute(_DURABLY)
        row = await (await connection.execute(_BEGIN, (lease_s,))).fetchone()
    assert row is not None  # noqa: S101 - RETURNING of one row
    token: int = row[0]
    return token


async def renew(connection: Connection, token: int, *, lease_s: float) -> bool:
    """Let it run for another *lease_s* seconds; False if it has run out."""
    return (await connection.execute(_RENEW, (lease_s, token))).rowcount == 1


async def run_out(connection: Connection, token: int) -> None:
    """Let it run out now: what it holds, known or unknown, is there to be taken."""
    await connection.execute(_RUN_OUT, (token,))


async def end(connection: Connection, token: int) -> None:
    """Forget a lease of which nothing is held any more."""
    await connection.execute(_END, (token,))


async def dead(connection: Connection) -> Sequence[int]:
    """The tokens of leases that have run out: what they hold is there to be taken."""
    return [token for (token,) in await (await connection.execute(_DEAD)).fetchall()]


async def forget_dead(connection: Connection) -> None:
    """Remove leases that ran out long ago and hold nothing; left for another time where that is long to find out."""
    with suppress(pg.QueryCanceled):
        async with connection.transaction():
            await connection.execute(_SHORTLY)
            await connection.execute(_FORGET)
