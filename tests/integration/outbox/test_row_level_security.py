"""The tenant setting: made at the start of each transaction, gone with it, whatever happens."""

import asyncio
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import ProgrammingError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from outbox import InvalidEvent, Outbox, bind_tenant, tenant_scope
from outbox.errors import ConfigError
from outbox.schema import TENANT_SETTING
from tests.integration.outbox.shop import OrderPlaced, logged, new_outbox

_SETTING = sa.text(f"select current_setting('{TENANT_SETTING}', true)")
_FAIL = sa.text("select 1/0")
_POLICY = f"""
    create table note (tenant text not null, body text not null);
    alter table note enable row level security;
    create policy own on note using (tenant = current_setting('{TENANT_SETTING}', true));
    grant select, insert on note to {{role}};
    grant usage on schema outbox to {{role}};
    grant insert on outbox.event to {{role}};
    grant usage on sequence outbox.event_seq to {{role}};
"""


@pytest.fixture(autouse=True)
def _with_an_outbox(outbox: Outbox) -> None:
    """The setting is an outbox's; each test has one."""


def setting(session: Session) -> str:
    return session.scalar(_SETTING) or ""


def test_the_setting_is_made_in_each_transaction_and_ends_with_it(engine: sa.Engine) -> None:
    one = engine.execution_options()
    with one.connect() as connection, Session(connection) as session:
        bind_tenant(session, "acme")
        for ending in (session.commit, session.rollback, session.commit):
            assert setting(session) == "acme"
            ending()
        assert connection.scalar(_SETTING) in ("", None)
    with Session(engine) as session:
        assert setting(session) == ""


_WITHOUT_AN_OUTBOX = f"""
import os
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session
from outbox.tenancy import enter_tenant, tenant_scope
engine = create_engine(os.environ["DATABASE_URL"])
def show():
    with Session(engine) as session:
        print(session.scalar(text("select current_setting('{TENANT_SETTING}', true)")))
with tenant_scope("acme"):
    show()
enter_tenant("globex")
show()
"""


def test_a_process_without_an_outbox_has_the_setting_too(engine: sa.Engine) -> None:
    url = engine.url.render_as_string(hide_password=False)
    command = [sys.executable, "-c", _WITHOUT_AN_OUTBOX]
    done = subprocess.run(
        command, env=os.environ | {"DATABASE_URL": url}, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stdout.split() == ["acme", "globex"], done.stderr


def test_a_scope_sets_it_for_transactions_that_begin_inside(engine: sa.Engine) -> None:
    with Session(engine) as session:
        with tenant_scope("acme"):
            assert setting(session) == "acme"
            with session.begin_nested():
                assert setting(session) == "acme"
            session.commit()
            with tenant_scope("other"):
                assert setting(session) == "other"
                session.commit()
        assert setting(session) == ""


def test_the_session_goes_before_the_scope(engine: sa.Engine) -> None:
    with tenant_scope("scope"), Session(engine) as session:
        bind_tenant(session, "session")
        assert setting(session) == "session"


def test_a_tenant_is_bound_once_per_transaction(engine: sa.Engine) -> None:
    with Session(engine) as session:
        session.begin()
        bind_tenant(session, "acme")
        assert setting(session) == "acme"
        bind_tenant(session, "acme")
        with pytest.raises(InvalidEvent, match=r"^tenant: want it bound before the transaction's first statement"):
            bind_tenant(session, "other")
        session.rollback()
        bind_tenant(session, "other")
        assert setting(session) == "other"
    with Session(engine) as session:
        setting(session)
        with pytest.raises(InvalidEvent, match=r"^tenant: want it bound before the transaction's first statement"):
            bind_tenant(session, "late")


def test_a_session_in_autocommit_has_no_transaction_to_hold_it(engine: sa.Engine) -> None:
    with Session(engine.execution_options(isolation_level="AUTOCOMMIT")) as session:
        bind_tenant(session, "acme")
        with pytest.raises(InvalidEvent, match=r"^tenant: want a session with transactions, got one in AUTOCOMMIT$"):
            session.scalar(_SETTING)
        session.rollback()


def test_an_app_names_its_own_setting_or_none(engine: sa.Engine) -> None:
    new_outbox(tenant_setting="shop.tenant")
    with tenant_scope("acme"), Session(engine) as session:
        assert session.scalar(sa.text("select current_setting('shop.tenant', true)")) == "acme"
    new_outbox(tenant_setting=None)
    with pytest.raises(ConfigError, match=r"^tenant_setting: want a name with a dot"):
        new_outbox(tenant_setting="tenant")


def test_a_thousand_tenants_never_see_each_others_setting(engine: sa.Engine) -> None:
    """A setting made once per connection outlives the request it was made for, on a pooled connection."""
    pooled = sa.create_engine(engine.url, pool_size=3, max_overflow=0)
    draw = random.Random(7)
    sessions: list[tuple[str, Session]] = []
    for number in range(1_000):
        if len(sessions) == 3:
            name, session = sessions.pop(draw.randrange(3))
            end(session, draw, name)
        session = Session(pooled)
        name = f"tenant-{number}" if number % 5 else ""
        if name:
            bind_tenant(session, name)
        assert setting(session) == name
        sessions.append((name, session))
    for name, session in sessions:
        end(session, draw, name)
    pooled.dispose()


def end(session: Session, draw: random.Random, name: str) -> None:
    assert setting(session) == name
    match draw.randrange(4):
        case 0:
            session.commit()
        case 1:
            session.rollback()
        case 2:
            with pytest.raises(sa.exc.DataError):
                session.execute(_FAIL)
        case _:
            pass
    session.close()


async def test_a_thousand_tenants_at_once_never_see_each_others_setting(engine: sa.Engine) -> None:
    """A setting made once per connection outlives the request it was made for, on a pooled connection."""
    pooled = create_async_engine(engine.url, pool_size=4, max_overflow=0)

    async def request(number: int) -> None:
        name = f"tenant-{number}"
        with tenant_scope(name):
            async with AsyncSession(pooled) as session:
                assert await session.scalar(_SETTING) == name
                await asyncio.sleep(0)
                if number % 3 == 0:
                    with pytest.raises(sa.exc.DataError):
                        await session.execute(_FAIL)
                    return
                assert await session.scalar(_SETTING) == name
                if number % 3 == 1:
                    await session.commit()

    await asyncio.gather(*(request(number) for number in range(1_000)))
    async with AsyncSession(pooled) as session:
        assert await session.scalar(_SETTING) in ("", None)
    await pooled.dispose()


async def test_an_async_session_can_be_bound(async_engine: AsyncEngine) -> None:
    async with AsyncSession(async_engine) as session:
        bind_tenant(session, "acme")
        assert await session.scalar(_SETTING) == "acme"


@pytest.fixture
def ordinary(engine: sa.Engine) -> Iterator[sa.Engine]:
    """The database as a role that row-level security applies to, with a table that has a policy."""
    role = f"fairpost_test_{random.randrange(10**12)}"
    with engine.begin() as connection:
        connection.execute(sa.text(f"create role {role} login password 'secret'"))
        connection.execute(sa.text(_POLICY.format(role=role)))
    ordinary = sa.create_engine(engine.url.set(username=role, password="secret"))
    yield ordinary
    ordinary.dispose()
    with engine.begin() as connection:
        connection.execute(sa.text(f"drop table note; drop owned by {role}; drop role {role}"))


def test_policies_on_the_apps_own_tables_hold(ordinary: sa.Engine, engine: sa.Engine, outbox: Outbox) -> None:
    for tenant in ("acme", "globex"):
        with tenant_scope(tenant), Session(ordinary) as session, session.begin():
            session.execute(sa.text("insert into note values (:t, 'own')"), {"t": tenant})
            outbox.emit(session, OrderPlaced(order_id=1))
    with tenant_scope("acme"), Session(ordinary) as session:
        assert session.scalars(sa.text("select tenant from note")).all() == ["acme"]
        with pytest.raises(ProgrammingError, match="row-level security"):
            session.execute(sa.text("insert into note values ('globex', 'forged')"))
        session.rollback()
    with Session(ordinary) as session:
        assert session.scalars(sa.text("select tenant from note")).all() == []

    assert [row.tenant for row in logged(engine)] == ["acme", "globex"]


def test_an_apps_role_needs_no_more_than_these_grants(ordinary: sa.Engine, engine: sa.Engine, outbox: Outbox) -> None:
    with engine.begin() as connection:
        connection.execute(
            sa.text(f"""
                grant select, insert, update on outbox.ordering, outbox.key to {ordinary.url.username};
                grant select, insert, delete on outbox.scheduled to {ordinary.url.username};
                grant delete on outbox.key to {ordinary.url.username};
            """)
        )
    with tenant_scope("acme"), Session(ordinary) as session, session.begin():
        outbox.emit(session, OrderPlaced(order_id=1), ordering_key="k", idempotency_key="once")
        waiting = outbox.emit(session, OrderPlaced(order_id=2), delay=timedelta(hours=1))
    with tenant_scope("acme"), Session(ordinary) as session, session.begin():
        assert outbox.cancel(session, waiting.id)
        with pytest.raises(ProgrammingError, match="permission denied"), session.begin_nested():
            session.execute(sa.text("select payload from outbox.event"))

    assert len(logged(engine)) == 1
