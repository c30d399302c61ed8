"""Asking PostgreSQL; nothing is changed, and each question ends within its session's limit."""

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, LiteralString

from psycopg import sql

from outbox.shell import severed
from outbox.shell.secrets import shown_url
from outbox.shell.severed import Connection
from outbox_admin import migrate
from outbox_admin.doctor.facts import Chain, Missing, Privileges, Server, Session, Sessions
from outbox_admin.doctor.needs import Needs

_NAME: Final = "outbox doctor"
_CONNECT_S: Final = 5.0
#: What a relay takes; docs/how-to/sizing.md says when it takes more.
_PER_RELAY: Final = 5
#: What a consumer takes beside one for each slot.
_PER_CONSUMER: Final = 4
#: What either takes in the database that the queues are in.
_PER_BROKER: Final = 3


@asynccontextmanager
async def asking(url: str, *, within_s: float) -> AsyncIterator[Connection]:
    """A session on *url* for at most *within_s*. Raises ConfigError or StoreUnavailable."""
    connection = await severed.connect(
        url, severed.ANY_PLAN, application_name=_NAME, connect_s=_CONNECT_S, statement_s=within_s
    )
    try:
        async with severed.deadline(connection, within_s):
            yield connection
    finally:
        await severed.close(connection)


async def server(connection: Connection, url: str) -> Server:
    """The server, the role, and the clock."""
    row = await _row(connection, _SERVER)
    best: tuple[float, float] | None = None
    for _ in range(_CLOCK_ASKED):
        before = time.time()
        (theirs,) = await _row(connection, "SELECT extract(epoch FROM clock_timestamp())::float8")
        after = time.time()
        error_s = (after - before) / 2
        if best is None or error_s < best[1]:
            best = (float(theirs) - (before + after) / 2, error_s)
    assert best is not None  # noqa: S101 - it was asked
    version, version_num, role, is_superuser, bypasses, policies, is_standby, is_read_only = row
    return Server(
        address=shown_url(url),
        version=str(version),
        version_num=int(version_num),
        role=str(role),
        is_superuser=bool(is_superuser),
        bypasses_rls=bool(bypasses),
        policies=int(policies),
        is_standby=bool(is_standby),
        is_read_only=bool(is_read_only),
        clock_s=best[0],
        error_s=best[1],
    )


async def chains(connection: Connection) -> list[Chain]:
    """Where each chain stands."""
    found = []
    for name in migrate.CHAINS:
        table = sql.Identifier(migrate.schema_of(name), "alembic_version")
        current = None
        if await _may_read(connection, table.as_string()):
            (current,) = await _row(connection, sql.SQL("SELECT max(version_num) FROM {}").format(table))
        found.append(Chain(name=name, current=current, newest=migrate.newest(name)))
    return found


async def privileges(connection: Connection, process: str, needs: Sequence[Needs]) -> Privileges:
    """What the connecting role lacks of *needs*; what is not there at all is the schema check's to tell."""
    (role,) = await _row(connection, "SELECT current_user::text")
    objects, missing = 0, []
    for one in needs:
        for kind, name, privilege, has in await _rows(connection, _LACKS, one.schema, *_asked(one)):
            objects += 1
            if not has:
                missing.append(_missing(str(role), str(kind), str(name), str(privilege)))
    return Privileges(role=str(role), process=process, objects=objects, missing=tuple(missing))


async def sessions(connection: Connection, *, slots: int, has_queues: bool) -> Sessions:
    """Connections, prepared and open transactions, replication slots.

    Args:
        slots: of each consumer here.
        has_queues: the queues are in this database.
    """
    queues = _PER_BROKER if has_queues else 0
    row = await _row(connection, _SESSIONS)
    held = await _rows(connection, _SLOTS)
    relays = await _alive(connection, "outbox.relay")
    consumers = await _alive(connection, "consumer.incarnation")
    return Sessions(
        max_connections=row[0],
        reserved=row[1],
        used=row[2],
        wanted=relays * (_PER_RELAY + queues) + consumers * (slots + _PER_CONSUMER + queues),
        max_prepared=row[3],
        prepared=row[4],
        prepared_oldest_s=row[5],
        open_oldest_s=row[6],
        open_oldest_by=row[7],
        slots={str(name): int(age) for name, age in held},
    )


async def session(connection: Connection) -> Session:
    """Whether a session is one server process from its begin to its end, as LISTEN and prepared statements need."""
    backends = set()
    await connection.execute("SELECT set_config('outbox.doctor', 'kept', false)")
    kept = []
    for _ in range(_POOLER_ASKED):
        backend, setting = await _row(connection, "SELECT pg_backend_pid(), current_setting('outbox.doctor', true)")
        backends.add(backend)
        kept.append(setting == "kept")
    own = connection.info.backend_pid in backends
    return Session(keeps_settings=all(kept), keeps_backend=len(backends) == 1 and own)


def _asked(needs: Needs) -> tuple[list[str], list[str], list[str], list[str]]:
    tables = [
        (name.replace("*", "%").replace("_", r"\_"), privilege)
        for name, list_ in needs.tables.items()
        for privilege in list_
    ]
    return (
        [name for name, _ in tables],
        [privilege for _, privilege in tables],
        list(needs.sequences),
        list(needs.functions),
    )


def _missing(role: str, kind: str, name: str, privilege: str) -> Missing:
    on = name if kind == "table" else f"{kind.upper()} {name}"
    what = name if kind == "table" else f"{kind} {name}"
    return Missing(what=what, privilege=privilege, grant=f'GRANT {privilege} ON {on} TO "{role}"')


async def _may_read(connection: Connection, table: str) -> bool:
    """Whether *table* is there, and this role may read it."""
    schema = table.partition(".")[0].strip('"')
    (is_open,) = await _row(
        connection,
        "SELECT coalesce((SELECT has_schema_privilege(oid, 'USAGE') FROM pg_namespace WHERE nspname = %s), false)",
        schema,
    )
    if not is_open:  # the look-up itself would be refused
        return False
    (may,) = await _row(connection, "SELECT coalesce(has_table_privilege(to_regclass(%s), 'SELECT'), false)", table)
    return bool(may)


async def _alive(connection: Connection, table: str) -> int:
    """How many leases hold in *table*; none where it is not there, or not to be read."""
    if not await _may_read(connection, table):
        return 0
    counting = sql.SQL("SELECT count(*) FROM {} WHERE expires_at > clock_timestamp()")
    return int((await _row(connection, counting.format(sql.Identifier(*table.split(".")))))[0])


async def _row(connection: Connection, query: LiteralString | sql.Composed, *values: object) -> tuple[Any, ...]:
    row = await (await connection.execute(query, values)).fetchone()
    assert row is not None  # noqa: S101 - it has one row
    return row


async def _rows(connection: Connection, query: LiteralString, *values: object) -> list[tuple[Any, ...]]:
    return await (await connection.execute(query, values)).fetchall()


_CLOCK_ASKED: Final = 3
_POOLER_ASKED: Final = 5
_SERVER: Final = """
SELECT current_setting('server_version'), current_setting('server_version_num')::int, r.rolname, r.rolsuper,
       r.rolbypassrls, (SELECT count(*) FROM pg_policy p JOIN pg_class c ON c.oid = p.polrelid
                        WHERE c.relnamespace IS DISTINCT FROM to_regnamespace('consumer')),
       pg_is_in_recovery(), current_setting('default_transaction_read_only')::bool
FROM pg_roles r WHERE r.rolname = current_user"""
_LACKS: Final = r"""
WITH s AS (SELECT oid, nspname FROM pg_namespace WHERE nspname = %s),
tables AS (SELECT * FROM unnest(%s::text[], %s::text[]) t (name, privilege)),
here AS (SELECT c.oid, format('%%I.%%I', s.nspname, c.relname) AS name, c.relname, c.relkind
         FROM pg_class c JOIN s ON c.relnamespace = s.oid)
SELECT 'schema', s.nspname::text, 'USAGE', has_schema_privilege(s.oid, 'USAGE') FROM s
UNION ALL
SELECT 'table', h.name, t.privilege, has_table_privilege(h.oid, t.privilege)
FROM tables t JOIN here h ON h.relname LIKE t.name AND h.relkind IN ('r', 'p')
UNION ALL
SELECT 'sequence', h.name, 'USAGE', has_sequence_privilege(h.oid, 'USAGE')
FROM unnest(%s::text[]) q (name) JOIN here h ON h.relname = q.name AND h.relkind = 'S'
UNION ALL
SELECT 'function', p.oid::regprocedure::text, 'EXECUTE', has_function_privilege(p.oid, 'EXECUTE')
FROM unnest(%s::text[]) f (name) CROSS JOIN s
JOIN pg_proc p ON p.pronamespace = s.oid AND p.proname || '(' || oidvectortypes(p.proargtypes) || ')' = f.name
ORDER BY 1, 2, 3"""
_SESSIONS: Final = """
SELECT current_setting('max_connections')::int,
       current_setting('superuser_reserved_connections')::int,
       (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'),
       current_setting('max_prepared_transactions')::int,
       (SELECT count(*) FROM pg_prepared_xacts),
       coalesce((SELECT max(extract(epoch FROM clock_timestamp() - prepared)) FROM pg_prepared_xacts), 0)::float8,
       coalesce((SELECT max(extract(epoch FROM clock_timestamp() - xact_start)) FROM pg_stat_activity
                 WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()), 0)::float8,
       coalesce((SELECT format('pid %%s of %%s, %%s', pid, usename, coalesce(nullif(application_name, ''), 'no name'))
                 FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()
                   AND xact_start IS NOT NULL ORDER BY xact_start LIMIT 1), '')"""
_SLOTS: Final = """
SELECT slot_name, greatest(age(xmin), age(catalog_xmin)) FROM pg_replication_slots
WHERE xmin IS NOT NULL OR catalog_xmin IS NOT NULL ORDER BY 2 DESC"""
