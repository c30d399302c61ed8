"""What operators do to the control tables of several groups at once: in all of them, or in none."""

from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from datetime import datetime

from consumer import status
from consumer.decide.control import Control, Scope
from consumer.store import control
from outbox.errors import ConfigError
from outbox.shell.database import Connection, connect, store_errors
from outbox_admin.choices import check_group_known
from outbox_admin.groups import list_groups
from outbox_admin.settings import database_url
from relay.status import has_log


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What holds in one group, or did."""

    group: str
    control: Control


async def groups(wanted: Sequence[str] | None) -> list[str]:
    """The groups that are *wanted*, or all there are. Raises ConfigError: one of them is not known."""
    async with _open() as connection:
        return await groups_of(connection, wanted)


async def told(wanted: Sequence[str] | None) -> list[Told]:
    """What holds in each of these groups."""
    async with _open() as connection:
        names = await groups_of(connection, wanted)
        return [Told(group=name, control=await control.read(connection, name)) for name in names]


async def pause(
    names: Collection[str], scope: Scope, *, actor: str, reason: str, for_s: float | None, until: datetime | None
) -> list[Told]:
    """Pause *scope* in each of these groups, with a row in the audit; returns the pauses as they stand."""
    async with _open() as connection, connection.transaction():
        pauses = {
            name: await control.pause(connection, name, scope, actor=actor, reason=reason, for_s=for_s, until=until)
            for name in names
        }
    return [Told(group=name, control=Control(at=one.set_at, pauses=(one,))) for name, one in pauses.items()]


async def handled(names: Collection[str]) -> dict[str, set[str]]:
    """The names of the handlers that living processes of these groups have, by type; nothing, if none lives."""
    found: dict[str, set[str]] = {}
    async with _open() as connection:
        cursor = await connection.execute(_HANDLED, (list(names),))
        for event_type, handler in await cursor.fetchall():
            found.setdefault(str(event_type), set()).add(str(handler))
    return found


async def resume(wanted: Sequence[str] | None, scope: Scope | None, *, actor: str) -> tuple[list[Told], list[Told]]:
    """End the pauses of exactly *scope*, or (None) all, with a row in the audit for each.

    Returns those that ended, and those that are left and have something in common with *scope*.

    Raises:
        ConfigError: there is no such pause.
    """
    ended, left = [], []
    async with _open() as connection, connection.transaction():
        for name in await groups_of(connection, wanted):
            before = await control.read(connection, name)
            scopes = {one.scope for one in before.pauses} if scope is None else {scope}
            gone = [one for each in scopes for one in await control.resume(connection, name, each, actor=actor)]
            ended.append(Told(group=name, control=replace(before, pauses=tuple(gone))))
            rest = [one for one in before.pauses if one.scope not in scopes and meets(one.scope, scope or Scope())]
            left.append(Told(group=name, control=replace(before, pauses=tuple(rest))))
    if not any(one.control.pauses for one in ended):
        raise ConfigError(f"want what is paused, got {scope or 'none'}; outbox paused lists what is")
    return ended, left


async def set_weight(
    wanted: Sequence[str] | None,
    tenant: str,
    weight: int,
    *,
    actor: str,
    reason: str,
    for_s: float | None,
    until: datetime | None,
) -> list[Told]:
    """Give *tenant* this weight in each of these groups, with a row in the audit; returns it as it stands."""
    async with _open() as connection, connection.transaction():
        weights = {
            name: await control.set_weight(
                connection, name, tenant, weight, actor=actor, reason=reason, for_s=for_s, until=until
            )
            for name in await groups_of(connection, wanted)
        }
    return [Told(group=name, control=Control(at=one.set_at, weights=(one,))) for name, one in weights.items()]


def meets(one: Scope, other: Scope) -> bool:
    """Whether an event can fit both, as far as their names tell: a handler may handle any type."""
    pairs = ((one.tenant, other.tenant), (one.tier, other.tier), (one.type, other.type))
    return all(a is None or b is None or a == b for a, b in pairs)


def to_json(one: Told) -> dict[str, object]:
    """*one* as ``--json`` prints it."""
    pauses, weights = ([asdict(each) for each in some] for some in (one.control.pauses, one.control.weights))
    return {"group": one.group, "pauses": status.plain(pauses), "weights": status.plain(weights)}


@asynccontextmanager
async def _open() -> AsyncIterator[Connection]:
    async with await connect(database_url(), application_name="outbox") as connection:
        with store_errors():
            yield connection


async def groups_of(connection: Connection, wanted: Sequence[str] | None) -> list[str]:
    """Those *wanted*, or every one that consumers know, or that reads the log where that is in the same database.

    Raises:
        ConfigError: one of them is not known, or there is none.
    """
    known = set(await status.groups(connection))
    if await has_log(connection):
        known |= {one.name for one in await list_groups(connection)}
    for name in wanted or ():
        check_group_known(name, sorted(known), otherwise="one that was added or has run")
    if not known:
        raise ConfigError("group: want one that was added or has run, got none")
    return sorted(set(wanted or known))


_HANDLED = """
    SELECT DISTINCT t.key, h.key
    FROM consumer.incarnation i, jsonb_each(i.knows) t, jsonb_each(t.value) h
    WHERE i.group_name = ANY(%s) AND i.expires_at > clock_timestamp()
"""
