"""The rights that the page on row-level security grants: enough to emit, no more, and those of the shop."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
from psycopg import errors, sql
from sqlalchemy import create_engine, make_url
from sqlalchemy.orm import Session

from outbox import Outbox
from tests.examples.stage import EXAMPLES
from tests.support.services import fresh_name

_PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "row-level-security.md"
_SHOP = EXAMPLES / "shop" / "schema" / "versions" / "s0001_orders.py"


def grants(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(("GRANT ", "ALTER DEFAULT"))]


def page_block() -> str:
    (found,) = (part for part in _PAGE.read_text().split("```sql\n") if part.startswith("CREATE ROLE shop"))
    return found.partition("```")[0]


@pytest.fixture
def emitter_url(migrated_database: str) -> Iterator[str]:
    """A role with the page's rights to emit, and no others."""
    name = fresh_name("emitter")
    to_emit, _, _ = page_block().replace("shop", name).partition("-- to handle")
    with psycopg.connect(migrated_database, autocommit=True) as owner:
        owner.execute(to_emit.encode())
        yield make_url(migrated_database).set(username=name, password="secret").render_as_string(hide_password=False)
        role = sql.Identifier(name)
        owner.execute(sql.SQL("DROP OWNED BY {}").format(role))
        owner.execute(sql.SQL("DROP ROLE {}").format(role))


def test_the_page_grants_what_the_shop_grants() -> None:
    of_shop = [line.replace("{role}", "shop") for line in grants(_SHOP.read_text())]
    assert grants(page_block()) == of_shop[1:]
    assert of_shop[0].endswith("ON orders, order_lines, invoices TO shop;")


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
