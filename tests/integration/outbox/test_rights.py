"""The rights that a page grants to an app: enough to emit and to cancel, and none to read events."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
from psycopg import errors, sql
from sqlalchemy import create_engine, make_url
from sqlalchemy.orm import Session

from outbox import Outbox
from tests.support.services import fresh_name

_PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "roles.md"


@pytest.fixture
def emitter_url(migrated_database: str) -> Iterator[str]:
    """A role with the page's rights to emit, and no others."""
    name = fresh_name("emitter")
    _, _, granted = _PAGE.read_text().partition("-- an app that emits")
    grants = "--" + granted.partition("-- the relay")[0].replace("shop_app", name)
    role = sql.Identifier(name)
    with psycopg.connect(migrated_database, autocommit=True) as owner:
        owner.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'secret'").format(role))
        owner.execute(grants.encode())
        yield make_url(migrated_database).set(username=name, password="secret").render_as_string(hide_password=False)
        owner.execute(sql.SQL("DROP OWNED BY {}").format(role))
        owner.execute(sql.SQL("DROP ROLE {}").format(role))


def test_a_role_with_the_rights_to_emit_emits_and_reads_nothing(emitter_url: str, migrated_database: str) -> None:
    engine = create_engine(make_url(emitter_url).set(drivername="postgresql+psycopg"))
    outbox = Outbox(source="/test")
    for _ in range(2):
        with Session(engine) as session, session.begin():
            outbox.emit(session, "a.b", {"n": 1}, tenant="acme", ordering_key="k", idempotency_key="once")
            outbox.emit(session, "a.b", {"n": 2}, tenant="acme", ordering_key="k")
            later = outbox.emit(session, "a.b", {"n": 3}, tenant="acme", delay=timedelta(days=1))
        with Session(engine) as session, session.begin():
            assert outbox.cancel(session, later.id, tenant="acme")
    engine.dispose()
    with psycopg.connect(migrated_database) as owner:
        assert owner.execute("SELECT count(*) FROM outbox.event").fetchone() == (3,)
    with psycopg.connect(emitter_url) as connection, pytest.raises(errors.InsufficientPrivilege):
        connection.execute("SELECT payload FROM outbox.event")
