"""The SQL of docs/how-to/roles.md gives what app, relay and consumer need, and no less would do."""

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa
from psycopg import sql
from sqlalchemy.orm import Session

from outbox import Outbox
from outbox_admin.doctor import postgres_facts
from outbox_admin.doctor.needs import Process, needs_of
from tests.support.processes import Processes
from tests.support.services import fresh_name
from tests.support.wait import until

_PAGE = Path(__file__).parents[3] / "docs/how-to/roles.md"
_APP = """
from consumer import Consumer, Dead
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

consumer = Consumer("default")


@consumer.on("orders.order.placed")
async def bill(event: dict, session: AsyncSession) -> Dead | None:
    if event["number"] == 3:
        return Dead("want a number below 3, got 3")
    await session.execute(text("INSERT INTO bill (event) VALUES (:number)"), {"number": str(event["number"])})
"""
_DONE = """
SELECT (SELECT count(*) FROM bill), (SELECT count(*) FROM consumer.dead WHERE published_at IS NOT NULL)
"""


@dataclass(frozen=True)
class Roles:
    """A database, and in it a role per process with what the page grants."""

    owner: psycopg.Connection
    names: dict[str, str]
    urls: dict[str, str]


@pytest.fixture
def roles(migrated_database: str) -> Iterator[Roles]:
    names = {f"shop_{process}": fresh_name(process.value) for process in Process}
    page = _PAGE.read_text()
    with psycopg.connect(migrated_database, autocommit=True) as owner:
        owner.execute("CREATE TABLE bill (event text)")
        for block in re.findall(r"```sql\n(.*?)```", page, re.DOTALL):
            owner.execute(re.sub(r"shop_\w+", lambda found: names[found[0]], block).encode())
        owner.execute(sql.SQL("GRANT INSERT ON bill TO {}").format(sql.Identifier(names["shop_consumer"])))
        urls = {
            process.value: psycopg.conninfo.make_conninfo(
                migrated_database, user=names[f"shop_{process}"], password="change-me"
            )
            for process in Process
        }
        yield Roles(owner, names, urls)
        for name in names.values():
            owner.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(sql.Identifier(name)))


async def _missing(url: str, process: Process) -> list[str]:
    async with postgres_facts.asking(url, within_s=10) as connection:
        found = await postgres_facts.privileges(connection, process, needs_of(process, has_queues=True))
    assert found.objects
    return [one.grant for one in found.missing]


async def test_the_page_grants_what_each_process_needs(roles: Roles) -> None:
    for process in Process:
        assert await _missing(roles.urls[process], process) == []


async def test_each_grant_that_is_taken_away_is_found_and_the_remedy_gives_it_back(roles: Roles) -> None:
    for process, taken in [
        (Process.APP, "INSERT ON outbox.event"),
        (Process.APP, "USAGE ON SEQUENCE outbox.event_seq"),
        (Process.RELAY, "TRUNCATE ON outbox.stream"),
        (Process.RELAY, "SELECT ON outbox.event_3"),
        (Process.RELAY, "EXECUTE ON FUNCTION outbox.truncate_slot(integer,interval)"),
        (Process.CONSUMER, "UPDATE ON consumer.work"),
        (Process.CONSUMER, "INSERT ON consumer.ledger_7"),
        (Process.CONSUMER, "DELETE ON outbox_broker.message"),
    ]:
        role = roles.names[f"shop_{process}"]
        roles.owner.execute(f'REVOKE {taken} FROM "{role}"'.encode())
        (remedy,) = await _missing(roles.urls[process], process)
        assert remedy == f'GRANT {taken} TO "{role}"'
        roles.owner.execute(remedy.encode())
        assert await _missing(roles.urls[process], process) == []


async def test_a_schema_that_is_closed_to_a_role_hides_no_other_chain(roles: Roles) -> None:
    chain = "outbox.alembic_version"
    roles.owner.execute(f'GRANT SELECT ON {chain} TO "{roles.names["shop_app"]}"'.encode())
    async with postgres_facts.asking(roles.urls["app"], within_s=10) as connection:
        found = {one.name: one.current for one in await postgres_facts.chains(connection)}
    assert found["outbox"] is not None
    assert found["consumer"] is found["broker"] is None


async def test_app_relay_and_consumer_work_as_these_roles(
    roles: Roles, processes: Processes, tmp_path: Path, vhost: str
) -> None:
    (tmp_path / "app.py").write_text(textwrap.dedent(_APP))
    common = {"RABBITMQ_URL": vhost, "OUTBOX_QUEUE_KIND": "classic"}
    relay = {
        **common,
        "DATABASE_URL": roles.urls["relay"],
        "OUTBOX_RELAY_JANITOR_S": "1",
        "OUTBOX_RELAY_HEALTH_PORT": "0",
    }
    consumer = {**common, "DATABASE_URL": roles.urls["consumer"], "OUTBOX_CONSUMER_HEALTH_PORT": "0"}
    running = [
        processes.start("outbox-relay", "run", settings=relay),
        processes.start("outbox-consumer", "run", "app:consumer", settings=consumer, cwd=tmp_path),
    ]
    engine = sa.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(roles.urls["app"]))
    outbox = Outbox(source="/svc/shop")
    with Session(engine) as session, session.begin():
        for number in range(3):
            outbox.emit(
                session,
                "orders.order.placed",
                {"number": number},
                tenant="acme",
                ordering_key="order-1",
                idempotency_key=f"order-{number}",
            )
        soon = timedelta(milliseconds=100)
        outbox.emit(session, "orders.order.placed", {"number": 3}, tenant="globex", delay=soon)
    engine.dispose()

    def is_billed() -> bool:
        for process in running:
            assert process.is_running(), process.output
            assert "lacks a privilege" not in process.output, process.output
        return roles.owner.execute(_DONE).fetchone() == (3, 1)

    await until(is_billed, deadline_s=40.0, what="three events to be handled, and one to be dead")
    for process in running:
        process.terminate()
        assert await process.ended() == 0, process.output
