"""Operators: database roles that see, replay and discard the dead letters of some tenants, and of no others.

The database holds the line, by row-level security and by functions that ask for the role; no setting of a process
can cross it. Such a role can write neither events nor letters, and cannot remove what the audit says of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from psycopg import sql

from consumer.store import audit
from consumer.store.stored import Connection
from outbox.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """A role that may decide about a tenant's dead letters. *sees_payloads* and *sees_traces* hold for all of its."""

    role: str
    tenant: str
    sees_payloads: bool
    sees_traces: bool
    granted_by: str
    granted_at: datetime


async def grant(
    connection: Connection, role: str, tenants: Sequence[str], *, actor: str, payloads: bool, traces: bool
) -> None:
    """Let *role*, and every role that is a member of it, decide about the dead letters of *tenants*.

    Args:
        payloads: whether it may read what the events say, too; a later grant without it takes nothing back.
        traces: whether it may read stack traces.

    Raises:
        ConfigError: there is no such role, or it sees every tenant anyway.
    """
    async with connection.transaction():
        await _check(connection, role)
        for statement in (*_GRANTS, *((_PAYLOADS,) if payloads else ()), *((_TRACES,) if traces else ())):
            await connection.execute(statement.format(role=sql.Identifier(role)))
        for tenant in sorted(set(tenants)):
            await connection.execute(_ADD, {"role": role, "tenant": tenant, "actor": actor})
        detail = {"role": role, "tenants": sorted(set(tenants)), "payloads": payloads, "traces": traces}
        await audit.record(connection, actor=actor, action="dead.operator.grant", group="", detail=detail)


async def revoke(connection: Connection, role: str, tenants: Sequence[str] | None, *, actor: str) -> list[str]:
    """Take *tenants* from *role*, or all that it has, and then its rights too. Returns which were taken."""
    async with connection.transaction():
        values = {"role": role, "tenants": None if tenants is None else list(tenants)}
        taken = sorted(tenant for (tenant,) in await (await connection.execute(_REMOVE, values)).fetchall())
        left = await (await connection.execute(_HAS_ANY, values)).fetchone()
        if left is None:
            for statement in _REVOKES:
                await connection.execute(statement.format(role=sql.Identifier(role)))
        detail = {"role": role, "tenants": taken}
        await audit.record(connection, actor=actor, action="dead.operator.revoke", group="", detail=detail)
        return taken


async def every(connection: Connection) -> list[Operator]:
    """Every role and tenant that were granted, roles that are gone included."""
    cursor = await connection.execute(_EVERY)
    return [
        Operator(
            role=role,
            tenant=tenant,
            sees_payloads=bool(payloads),
            sees_traces=bool(traces),
            granted_by=granted_by,
            granted_at=granted_at,
        )
        for role, tenant, payloads, traces, granted_by, granted_at in await cursor.fetchall()
    ]


async def _check(connection: Connection, role: str) -> None:
    row = await (await connection.execute(_SEES_ALL, {"role": role})).fetchone()
    if row is None:
        raise ConfigError(f"operator: want a role of this database server, got {role[:80]!r}, which is none")
    if row[0]:
        raise ConfigError(
            f"operator: want a role that is limited, got {role[:80]!r}, which may write consumer.work and so sees"
            " every tenant"
        )


_SEES_ALL: Final = """
    SELECT has_table_privilege(oid, 'consumer.work', 'INSERT') FROM pg_roles WHERE rolname = %(role)s
"""
# All but what the event says: its headers and its payload.
_GRANTS: Final = (
    sql.SQL("GRANT USAGE ON SCHEMA consumer TO {role}"),
    sql.SQL("""
    GRANT SELECT (id, group_name, event_id, handlers, category, error_class, message, fingerprint, attempts, dead_at,
        published_at, resolution, resolved_at, resolved_by, tier, tenant, type, ordering_key, key_number, ledger_at,
        content_type, payload_bytes) ON consumer.dead TO {role}
    """),
    sql.SQL("GRANT SELECT ON consumer.dead_owner TO {role}"),
    sql.SQL("GRANT INSERT (actor, action, group_name, detail) ON consumer.audit TO {role}"),
)
_PAYLOADS: Final = sql.SQL("GRANT SELECT ON consumer.dead TO {role}")
_TRACES: Final = sql.SQL("GRANT SELECT ON consumer.dead_trace TO {role}")
_REVOKES: Final = (
    sql.SQL("REVOKE ALL ON consumer.dead, consumer.dead_owner, consumer.dead_trace, consumer.audit FROM {role}"),
    sql.SQL("REVOKE USAGE ON SCHEMA consumer FROM {role}"),
)
_ADD: Final = """
    INSERT INTO consumer.dead_operator AS o (role_name, tenant, granted_by) VALUES (%(role)s, %(tenant)s, %(actor)s)
    ON CONFLICT (role_name, tenant) DO NOTHING
"""
_REMOVE: Final = """
    DELETE FROM consumer.dead_operator
    WHERE role_name = %(role)s AND (%(tenants)s::text[] IS NULL OR tenant = ANY (%(tenants)s::text[]))
    RETURNING tenant
"""
_HAS_ANY: Final = "SELECT FROM consumer.dead_operator WHERE role_name = %(role)s LIMIT 1"
_EVERY: Final = """
    SELECT o.role_name, o.tenant, has_column_privilege(r.oid, 'consumer.dead', 'body', 'SELECT'),
           has_table_privilege(r.oid, 'consumer.dead_trace', 'SELECT'), o.granted_by, o.granted_at
    FROM consumer.dead_operator o LEFT JOIN pg_roles r ON r.rolname = o.role_name
    ORDER BY o.role_name, o.tenant
"""
