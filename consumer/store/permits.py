"""Permits for what the processes of a group may run together, in the database that they have in common.

A process holds permits in a number per scope, and lets no more than that run; all of them together never hold more
than there are, since each scope's are dealt under its lock. A holder is known to live by its session: it keeps an
advisory lock for as long as it is connected, which ends with the process and not while that stands still. So a killed
process's permits come free, and a frozen one's stay its own, as its handlers go on when it is woken.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from psycopg.errors import ForeignKeyViolation

from consumer.decide.fairness import Scope
from consumer.store.plans import fresh
from consumer.store.stored import Connection
from outbox.errors import LeaseLost


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """*asked* permits of *most*, never less than the *used* ones; *wanted* are what there would be work for."""

    scope: Scope
    most: int
    asked: int
    used: int
    wanted: int


async def register(connection: Connection, group: str, holder: UUID, *, host: str, pid: int) -> dict[Scope, int]:
    """Be *holder* for as long as *connection* lasts; return what it holds: nothing, unless it was here before in time.

    On a connection with autocommit. The server gives up on a client that the network hides after some 15 s.
    """
    await connection.execute(_KEEPALIVES)
    await connection.execute("SELECT pg_advisory_lock(consumer.holder_lock(%s))", (holder,))
    await connection.execute(_REGISTER, {"id": holder, "group": group, "host": host, "pid": pid})
    cursor = await connection.execute("SELECT tenant, type, held FROM consumer.permit WHERE holder = %s", (holder,))
    return {(tenant or None, type_ or None): held for tenant, type_, held in await cursor.fetchall()}


async def hold(connection: Connection, group: str, holder: UUID, asks: Sequence[Ask]) -> dict[Scope, int]:
    """Take and give back as *asks* say; return how many are held then, per scope. Committed when it returns.

    Raises:
        LeaseLost: *holder* was taken for dead, and what it held may be others': it has to register again.
    """
    # Always in one order, so that two processes that want the same never wait for each other.
    asks = sorted(asks, key=lambda ask: _names(ask.scope))
    names = [_names(ask.scope) for ask in asks]
    values = {
        "group": group,
        "holder": holder,
        "tenants": [tenant for tenant, _ in names],
        "types": [type_ for _, type_ in names],
        "asked": [ask.asked for ask in asks],
        "used": [ask.used for ask in asks],
        "wanted": [ask.wanted for ask in asks],
        "mosts": [ask.most for ask in asks],
    }
    try:
        cursor = await fresh(connection, _HOLD, values)
    except ForeignKeyViolation as error:
        raise LeaseLost("permits: want those of this process, got none; its session was gone for too long") from error
    return {(tenant or None, type_ or None): held for tenant, type_, held in await cursor.fetchall()}


async def rivals(connection: Connection, group: str, holder: UUID) -> dict[Scope, int]:
    """Of each scope of which another process than *holder* wants more, how many others hold or want some."""
    cursor = await fresh(connection, _RIVALS, {"group": group, "holder": holder})
    return {(tenant or None, type_ or None): others for tenant, type_, others in await cursor.fetchall()}


async def reap(connection: Connection, group: str, holder: UUID, *, grace_s: float) -> list[UUID]:
    """Free what others than *holder* held whose session has been gone for *grace_s*, as far as anybody saw.

    Returns which ones.
    """
    cursor = await connection.execute(_REAP, {"group": group, "me": holder, "grace_s": grace_s})
    return [holder for (holder,) in await cursor.fetchall()]


async def end(connection: Connection, holder: UUID) -> None:
    """Give back everything: nothing of *holder* runs any more."""
    await connection.execute("DELETE FROM consumer.permit_holder WHERE id = %s", (holder,))


def _names(scope: Scope) -> tuple[str, str]:
    tenant, type_ = scope
    return tenant or "", type_ or ""


_KEEPALIVES: Final = """
    SELECT set_config('tcp_keepalives_idle', '5', false), set_config('tcp_keepalives_interval', '5', false),
           set_config('tcp_keepalives_count', '2', false)
"""

_REGISTER: Final = """
    INSERT INTO consumer.permit_holder (id, group_name, host, pid) VALUES (%(id)s, %(group)s, %(host)s, %(pid)s)
    ON CONFLICT (id) DO UPDATE SET missed_at = NULL
"""

_HOLD: Final = """
    SELECT tenant, type, held FROM consumer.hold_permits(
        %(group)s, %(holder)s, %(tenants)s::text[], %(types)s::text[], %(asked)s::integer[], %(used)s::integer[],
        %(wanted)s::integer[], %(mosts)s::integer[])
"""

_RIVALS: Final = """
    SELECT tenant, type, count(*) FROM consumer.permit
    WHERE group_name = %(group)s AND holder <> %(holder)s
    GROUP BY tenant, type HAVING bool_or(wants_more)
"""

_REAP: Final = "SELECT consumer.reap_permits(%(group)s, %(me)s, make_interval(secs => %(grace_s)s))"
