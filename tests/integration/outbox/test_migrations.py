"""The migration chains: up, down and up again, as calls and as SQL text, on empty and on used databases."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from outbox import Outbox, schema
from outbox_admin import migrate
from outbox_admin.migrate import CHAINS, Chain
from tests.integration.outbox.conftest import psycopg_url
from tests.integration.outbox.shop import OrderPlaced

# Everything that a migration makes, as text that is the same in two databases with the same contents.
_CATALOGUE = """
    select 'column', c.table_schema, c.table_name, c.column_name || ' ' || c.ordinal_position,
        concat_ws(' ', c.udt_name, c.is_nullable, c.column_default, c.is_identity)
    from information_schema.columns c where c.table_schema in ('outbox', 'consumer', 'outbox_broker')
    union all
    select 'relation', n.nspname, r.relname, r.relkind::text,
        concat_ws(' ', r.reloptions::text, r.relacl::text, pg_get_expr(r.relpartbound, r.oid))
    from pg_class r join pg_namespace n on n.oid = r.relnamespace
    where n.nspname in ('outbox', 'consumer', 'outbox_broker')
    union all
    select 'constraint', n.nspname, r.relname, c.conname, pg_get_constraintdef(c.oid)
    from pg_constraint c join pg_class r on r.oid = c.conrelid join pg_namespace n on n.oid = r.relnamespace
    where n.nspname in ('outbox', 'consumer', 'outbox_broker')
    union all
    select 'index', i.schemaname, i.tablename, i.indexname, i.indexdef
    from pg_indexes i where i.schemaname in ('outbox', 'consumer', 'outbox_broker')
    union all
    select 'function', n.nspname, p.proname, p.proacl::text, pg_get_functiondef(p.oid)
    from pg_proc p join pg_namespace n on n.oid = p.pronamespace
    where n.nspname in ('outbox', 'consumer', 'outbox_broker')
    union all
    select 'group', 'outbox', g.group_name, count(*)::text, ''
    from outbox.consumer_group g join outbox.bucket b using (group_name) group by g.group_name
    order by 1, 2, 3, 4, 5
"""
_ANYTHING_LEFT = """
    select n.nspname || '.' || r.relname from pg_class r join pg_namespace n on n.oid = r.relnamespace
    where n.nspname in ('outbox', 'consumer', 'outbox_broker') and r.relname not like 'alembic_version%'
    union all
    select n.nspname || '.' || p.proname from pg_proc p join pg_namespace n on n.oid = p.pronamespace
    where n.nspname in ('outbox', 'consumer', 'outbox_broker')
"""


def run(dsn: str, script: str) -> list[tuple[Any, ...]]:
    """Run *script* as psql would, and return the rows of its last statement, if it has any."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        cursor = connection.execute(script.encode())
        while cursor.nextset():
            pass
        return cursor.fetchall() if cursor.description else []


def positions(dsn: str) -> Sequence[str | None]:
    return [status.current for status in migrate.status(dsn)]


def use(dsn: str) -> None:
    """Leave events in every table that an app writes to."""
    engine = sa.create_engine(psycopg_url(dsn))
    outbox = Outbox("/svc/shop")
    with Session(engine) as session, session.begin():
        outbox.emit(session, OrderPlaced(order_id=1), tenant="acme", ordering_key="k", idempotency_key="once")
        outbox.emit(session, OrderPlaced(order_id=2), tenant="acme", delay=timedelta(hours=1))
    engine.dispose()


def test_the_chains_go_up_down_and_up_on_an_empty_database(database: str) -> None:
    assert positions(database) == [None, None, None]
    migrate.upgrade(database)
    first = run(database, _CATALOGUE)
    migrate.upgrade(database)
    assert run(database, _CATALOGUE) == first
    assert all(status.is_current for status in migrate.status(database))

    migrate.downgrade(database)
    assert run(database, _ANYTHING_LEFT) == []
    assert positions(database) == [None, None, None]

    migrate.upgrade(database)
    assert run(database, _CATALOGUE) == first


def test_the_chains_go_down_and_up_on_a_used_database(database: str) -> None:
    migrate.upgrade(database)
    first = run(database, _CATALOGUE)
    use(database)
    migrate.downgrade(database)
    assert run(database, _ANYTHING_LEFT) == []
    migrate.upgrade(database)
    assert run(database, _CATALOGUE) == first
    use(database)


@pytest.mark.parametrize("chain", CHAINS)
def test_a_chain_goes_alone(database: str, chain: Chain) -> None:
    migrate.upgrade(database, chains=(chain,))
    assert [status.chain for status in migrate.status(database) if status.is_current] == [chain]
    migrate.downgrade(database, chains=(chain,))
    assert run(database, _ANYTHING_LEFT) == []


def test_the_sql_text_makes_what_the_upgrade_makes(database: str, migrated_database: str) -> None:
    run(database, migrate.sql())

    assert run(database, _CATALOGUE) == run(migrated_database, _CATALOGUE)
    assert all(status.is_current for status in migrate.status(database))


def test_the_sql_text_unmakes_it_again(database: str) -> None:
    migrate.upgrade(database)
    use(database)
    run(database, migrate.sql(down=True))

    assert run(database, _ANYTHING_LEFT) == []
    migrate.upgrade(database)


@pytest.mark.filterwarnings("ignore:Did not recognize type")
@pytest.mark.parametrize("table", schema.metadata.sorted_tables, ids=lambda table: table.name)
def test_the_tables_are_as_the_code_names_them(shared_engine: sa.Engine, table: sa.Table) -> None:
    inspector = sa.inspect(shared_engine)
    found = {column["name"]: column for column in inspector.get_columns(table.name, schema=table.schema)}

    assert list(found) == [column.name for column in table.columns]
    for column in table.columns:
        reflected = found[column.name]
        assert reflected["nullable"] == column.nullable, column
        assert is_same_type(reflected["type"], column.type), column
    key = inspector.get_pk_constraint(table.name, schema=table.schema)["constrained_columns"]
    assert set(key) == {column.name for column in table.primary_key}


def is_same_type(reflected: sa.types.TypeEngine[Any], ours: sa.types.TypeEngine[Any]) -> bool:
    if reflected._type_affinity is ours._type_affinity:
        return getattr(reflected, "timezone", None) == getattr(ours, "timezone", None)
    # What SQLAlchemy has no type for, we read as text.
    return isinstance(reflected, sa.types.NullType) and isinstance(ours, sa.Text)
