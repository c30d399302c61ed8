"""The control table: pauses and weights of each group, for all of its processes and across restarts.

A row counts until its ``until`` on the database's clock. What an operator does leaves a row in ``consumer.audit``; what
the consumer's own rules do may be done many times a minute, and leaves none.
"""

from collections.abc import Collection
from datetime import datetime
from typing import Final

from psycopg import sql
from psycopg.rows import TupleRow

from consumer.decide.control import Control, Pause, Scope, Source, Weight, check_weight
from consumer.store import audit
from consumer.store.stored import Connection
from outbox.errors import ConfigError
from outbox.event import Tier


async def read(connection: Connection, group: str) -> Control:
    """What holds for *group* now."""
    rows = await (await connection.execute(_READ, {"group": group})).fetchall()
    at = rows[0][0]
    return Control(
        at=at,
        pauses=tuple(_pause(row[2:]) for row in rows if row[1] == "pause"),
        weights=tuple(_weight(row[2:]) for row in rows if row[1] == "weight"),
    )


async def pause(
    connection: Connection,
    group: str,
    scope: Scope,
    *,
    actor: str,
    reason: str,
    source: Source = Source.OPERATOR,
    until: datetime | None = None,
    for_s: float | None = None,
) -> Pause:
    """Let nothing of *scope* start in any process of *group*, within about a second; instead of *source*'s own pause.

    It ends at *until*, or *for_s* seconds from now, or, with neither, when somebody resumes. Returns it as it stands.

    Raises:
        ConfigError: it would have ended already.
    """
    values = {"group": group, "kind": "pause", "weight": None, **_scope(scope)}
    values |= {"source": source.value, "actor": actor, "reason": reason, "until": until, "for_s": for_s}
    async with connection.transaction():
        row = await (await connection.execute(_SET, values)).fetchone()
        set_to = _pause(_set(row))
        if source is Source.OPERATOR:
            detail = _detail(scope) | {"reason": reason, "until": _text(set_to.until)}
            await audit.record(connection, actor=actor, action="control.pause", group=group, detail=detail)
    return set_to


async def resume(
    connection: Connection,
    group: str,
    scope: Scope,
    *,
    actor: str,
    sources: Collection[Source] = tuple(Source),
) -> list[Pause]:
    """End the pauses of exactly *scope* that *sources* have set; return them. Work starts within about a second."""
    values = {"group": group, **_scope(scope), "sources": [source.value for source in sources]}
    async with connection.transaction():
        rows = await (await connection.execute(_RESUME, values)).fetchall()
        ended = [_pause(columns) for columns in rows]
        if ended and Source.OPERATOR in sources:
            detail = _detail(scope) | {"ended": [one.source.value for one in ended]}
            await audit.record(connection, actor=actor, action="control.resume", group=group, detail=detail)
    return ended


async def set_weight(
    connection: Connection,
    group: str,
    tenant: str,
    weight: int,
    *,
    actor: str,
    reason: str,
    until: datetime | None = None,
    for_s: float | None = None,
) -> Weight:
    """Give *tenant* *weight* times the share of others in its tier, in every process of *group*; 1 is everybody's.

    Raises:
        ConfigError: *weight* is not 1..100, or it would have ended already.
    """
    check_weight(weight)
    scope = Scope(tenant=tenant)
    values = {"group": group, "kind": "weight", "weight": weight, **_scope(scope)}
    values |= {"source": Source.OPERATOR.value, "actor": actor, "reason": reason, "until": until, "for_s": for_s}
    async with connection.transaction():
        row = await (await connection.execute(_SET, values)).fetchone()
        set_to = _weight(_set(row))
        if weight == 1:  # as everybody's: nothing is left to say
            await connection.execute(_UNSET_WEIGHT, {"group": group, "tenant": tenant})
        detail = _detail(scope) | {"weight": weight, "reason": reason, "until": _text(set_to.until)}
        await audit.record(connection, actor=actor, action="control.weight", group=group, detail=detail)
    return set_to


async def forget_ended(connection: Connection, group: str) -> int:
    """Remove the rows of *group* that ended by themselves a while ago. Returns how many."""
    return (await connection.execute(_FORGET_ENDED, {"group": group})).rowcount


def _scope(scope: Scope) -> dict[str, object]:
    tier = None if scope.tier is None else int(scope.tier)
    return {"tenant": scope.tenant, "tier": tier, "type": scope.type, "handler": scope.handler}


def _detail(scope: Scope) -> dict[str, object]:
    named = _scope(scope) | {"tier": None if scope.tier is None else scope.tier.label}
    return {name: value for name, value in named.items() if value is not None}


def _set(row: TupleRow | None) -> TupleRow:
    if row is None:
        raise ConfigError("until: want a time to come, got one that has passed")
    return row


def _pause(columns: TupleRow) -> Pause:
    tenant, tier, event_type, handler, source, _weight, actor, reason, set_at, until = columns
    scope = Scope(tenant=tenant, tier=None if tier is None else Tier(tier), type=event_type, handler=handler)
    return Pause(scope=scope, source=Source(source), actor=actor, reason=reason, set_at=set_at, until=until)


def _weight(columns: TupleRow) -> Weight:
    tenant, _tier, _type, _handler, _source, weight, actor, reason, set_at, until = columns
    return Weight(tenant=tenant, weight=weight, actor=actor, reason=reason, set_at=set_at, until=until)


def _text(time: datetime | None) -> str | None:
    return None if time is None else time.isoformat()


_COLUMNS: Final = sql.SQL(
    "c.tenant, c.tier, c.type, c.handler, c.source, c.weight, c.actor, c.reason, c.set_at, c.until"
)

# One row at least, for the time.
_READ: Final = (
    sql.SQL("""
    SELECT now.at, c.kind, {columns} FROM (SELECT clock_timestamp() AS at) now
    LEFT JOIN consumer.control c ON c.group_name = %(group)s AND (c.until IS NULL OR c.until > now.at)
    ORDER BY c.set_at
""")
    .format(columns=_COLUMNS)
    .as_bytes()
)

_SET: Final = (
    sql.SQL("""
    INSERT INTO consumer.control AS c (
        group_name, kind, tenant, tier, type, handler, source, weight, actor, reason, until
    )
    SELECT %(group)s, %(kind)s, %(tenant)s, %(tier)s, %(type)s, %(handler)s, %(source)s, %(weight)s, %(actor)s,
           %(reason)s, ends.at
    FROM (
        SELECT coalesce(%(until)s::timestamptz, clock_timestamp() + make_interval(secs => %(for_s)s::float8)) AS at
    ) ends
    WHERE ends.at IS NULL OR ends.at > clock_timestamp()
    ON CONFLICT (
        group_name, kind, source, coalesce(tenant, ''), coalesce(tier, -1), coalesce(type, ''), coalesce(handler, '')
    ) DO UPDATE SET weight = excluded.weight, actor = excluded.actor, reason = excluded.reason,
                    set_at = excluded.set_at, until = excluded.until
    RETURNING {columns}
""")
    .format(columns=_COLUMNS)
    .as_bytes()
)

_RESUME: Final = (
    sql.SQL("""
    DELETE FROM consumer.control c
    WHERE c.group_name = %(group)s AND c.kind = 'pause' AND c.source = ANY(%(sources)s)
      AND c.tenant IS NOT DISTINCT FROM %(tenant)s::text AND c.tier IS NOT DISTINCT FROM %(tier)s::smallint
      AND c.type IS NOT DISTINCT FROM %(type)s::text AND c.handler IS NOT DISTINCT FROM %(handler)s::text
    RETURNING {columns}
""")
    .format(columns=_COLUMNS)
    .as_bytes()
)

_UNSET_WEIGHT: Final = """
    DELETE FROM consumer.control WHERE group_name = %(group)s AND kind = 'weight' AND tenant = %(tenant)s
"""

_FORGET_ENDED: Final = """
    DELETE FROM consumer.control WHERE group_name = %(group)s AND until < clock_timestamp() - interval '1 hour'
"""
