"""The script, run by its README: a file in, rows, events and greetings out; or nothing at all."""

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import make_url

from tests.examples.conftest import QUICK, Place
from tests.examples.stage import Stage, set_up


@pytest.fixture(scope="module")
def crm(place: Place) -> Iterator[Stage]:
    """The script's tables and both processes, set up and started by its README, in a database of its role's own."""
    user = make_url(place.role_url)
    with psycopg.connect(place.owner_url, autocommit=True) as connection:
        role, database = sql.Identifier(place.role), sql.Identifier(user.database or "")
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(role, sql.Literal(user.password)))
        connection.execute(sql.SQL("ALTER DATABASE {} OWNER TO {}").format(database, role))
    settings = {"DATABASE_URL": place.role_url, "RABBITMQ_URL": place.rabbitmq_url}
    with set_up("script", settings=settings, more=QUICK) as stage:
        yield stage


async def test_a_file_is_taken_in_and_each_customer_greeted_once(crm: Stage, place: Place) -> None:
    (run,) = crm.blocks("Try")
    assert crm.shell(run) == "3 new, 0 known\n"
    assert crm.shell(run) == "0 new, 3 known\n"
    assert crm.shell(run.replace("acme", "globex")) == "3 new, 0 known\n"
    assert place.rows("SELECT tier, count(*) FROM outbox.event GROUP BY tier") == [(2, 6)]
    crm.start("outbox-relay")
    crm.start("outbox-consumer")
    done = "SELECT count(*) FROM consumer.ledger WHERE state = 'done'"
    await place.until_value(done, 6)
    greeted = "SELECT tenant_id, count(*), count(DISTINCT customer_id) FROM greetings GROUP BY tenant_id ORDER BY 1"
    assert place.rows(greeted) == [("acme", 3, 3), ("globex", 3, 3)]


@pytest.mark.parametrize(
    ("last", "says"), [('eve@example.com,"Eve', "unexpected end of data"), ("eve@example.com", "NotNullViolation")]
)
def test_a_file_that_ends_in_the_middle_leaves_no_row_and_no_event(
    crm: Stage, place: Place, tmp_path: Path, last: str, says: str
) -> None:
    (tmp_path / "broken.csv").write_text(f"email,name\ndave@example.com,Dave\n{last}")
    (run,) = crm.blocks("Try")
    with pytest.raises(AssertionError, match=says):
        crm.shell(run.replace(" acme customers.csv", f" broken {tmp_path}/broken.csv"))
    assert place.value("SELECT count(*) FROM customers WHERE tenant_id = 'broken'") == 0
    assert place.value("SELECT count(*) FROM outbox.event WHERE tenant = 'broken'") == 0


def test_the_tables_owner_is_bound_by_the_policies(crm: Stage, place: Place) -> None:
    with psycopg.connect(place.role_url) as connection:
        assert connection.execute("SELECT count(*) FROM customers").fetchone() == (0,)
        connection.execute("SELECT set_config('app.current_tenant_id', 'acme', true)")
        assert connection.execute("SELECT count(*), min(tenant_id), max(tenant_id) FROM customers").fetchone() == (
            3,
            "acme",
            "acme",
        )
