"""``outbox-consumer`` as people meet it: what it prints, and how it ends."""

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import psycopg
import pytest

from outbox.event import Tier
from outbox.naming import Lane
from relay.postgres.publisher import PostgresPublisher
from tests.contracts.publishers import outgoing, settle
from tests.support.processes import Processes
from tests.support.services import Rabbit, fresh_name

APP = """
from consumer import Consumer, Context
from outbox.event import EventModel

class OrderPlaced(EventModel, type="orders.order.placed", version=3):
    order_id: int

consumer = Consumer("billing")

@consumer.on(OrderPlaced, deadline_s=5)
def bill(event: OrderPlaced, ctx: Context) -> None: ...
"""


class Command:
    def __init__(self, processes: Processes, directory: Path, settings: Mapping[str, str]) -> None:
        self._processes = processes
        self._directory = directory
        self.settings = dict(settings)

    async def __call__(self, *arguments: str, **changes: str) -> tuple[int, str]:
        settings = {name: value for name, value in {**self.settings, **changes}.items() if value}
        process = self._processes.start("outbox-consumer", *arguments, settings=settings, cwd=self._directory)
        code = await process.ended(deadline_s=60)
        return code, process.output


@pytest.fixture
def command(processes: Processes, tmp_path: Path, migrated_database: str, vhost: str) -> Command:
    (tmp_path / "shop.py").write_text(APP)
    settings = {"DATABASE_URL": migrated_database, "RABBITMQ_URL": vhost, "OUTBOX_CONSUMER_START_S": "0"}
    return Command(processes, tmp_path, settings)


async def test_check_says_that_all_is_in_order_and_shows_every_setting(command: Command) -> None:
    code, output = await command("check", "shop:consumer")
    assert code == 0, output
    assert "OUTBOX_CONSUMER_SLOTS=10" in output
    assert "in order: 1 event type\n" in output


async def test_an_app_may_have_packages_named_admin_and_migrations(command: Command, tmp_path: Path) -> None:
    for name in ("admin", "migrations"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"OF = 'the app: {name}'\n")
    imports = "import admin, migrations\nassert admin.OF, migrations.OF\n"
    (tmp_path / "shop.py").write_text(imports + APP)
    code, output = await command("check", "shop:consumer")
    assert code == 0, output
    (tmp_path / "test_shop.py").write_text(f"{imports}\ndef test_it(): ...\n")
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_shop.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert "1 passed" in ended.stdout, ended.stdout + ended.stderr


async def test_a_tier_that_does_not_exist_is_a_wrong_command_line(command: Command) -> None:
    code, output = await command("run", "shop:consumer", "--tiers", "interactive,urgent")
    assert code == 64
    assert "want some of interactive,standard,bulk, got 'urgent'" in " ".join(output.split())


async def test_handlers_lists_what_is_handled_without_any_service(command: Command) -> None:
    code, output = await command("handlers", "shop:consumer", DATABASE_URL="", RABBITMQ_URL="")
    assert code == 0, output
    for part in ("orders.order.placed", "bill", "OrderPlaced v3", "sync", "5 s"):
        assert part in output


async def test_status_of_an_empty_database_is_calm_and_json_where_it_is_wanted(command: Command) -> None:
    code, output = await command("status", RABBITMQ_URL="", OUTBOX_CONSUMER_SLOTS="wrong")
    assert (code, output.strip()) == (0, "no group has handled anything yet")
    code, output = await command("status", "--json")
    assert (code, json.loads(output)) == (0, [])


@pytest.mark.parametrize(
    ("app", "changes", "code", "says"),
    [
        (
            "shop:consumer",
            {"OUTBOX_CONSUMER_SLOTS": "0"},
            78,
            "OUTBOX_CONSUMER_SLOTS: want an integer, 2..1000, got '0'",
        ),
        ("shop:consumer", {"OUTBOX_CONSUMER_SLOT": "2"}, 78, "did you mean OUTBOX_CONSUMER_SLOTS"),
        ("shop:consumer", {"DATABASE_URL": "nonsense"}, 78, "DATABASE_URL"),
        ("shop:consumer", {"DATABASE_URL": "postgresql://x@127.0.0.1:1/x"}, 69, "the database cannot be reached"),
        ("shop:consumer", {"RABBITMQ_URL": "amqp://127.0.0.1:1/"}, 69, "127.0.0.1:1"),
        ("shop:consumer", {"OUTBOX_CONSUMER_HORIZON_DAYS": "300"}, 78, "horizon"),
        ("shop:nothing", {}, 78, "want a Consumer as shop:nothing"),
        ("gone:consumer", {}, 78, "no module named gone"),
    ],
    ids=["slots", "unknown setting", "database url", "no database", "no broker", "horizon", "no consumer", "no module"],
)
@pytest.mark.parametrize("what", ["check", "run"])
async def test_bad_input_is_one_sentence_and_the_right_exit_code(
    command: Command, what: str, app: str, changes: dict[str, str], code: int, says: str
) -> None:
    ended, output = await command(what, app, **changes)
    told = [line for line in output.splitlines() if line.startswith("outbox-consumer: ")]
    assert (ended, len(told)) == (code, 1), output
    assert says in told[0]
    assert "Traceback" not in output


@pytest.mark.parametrize("refused", ["login", "vhost", "permission"])
@pytest.mark.parametrize("what", ["check", "run"])
async def test_a_user_that_the_broker_refuses_is_a_wrong_setting_at_the_start(
    command: Command, vhost: str, rabbit_node: Rabbit, what: str, refused: str
) -> None:
    user, (place, _, name) = fresh_name("narrow"), vhost.rpartition("/")
    rabbit_node.management.add_user(user, "secret")
    try:
        if refused != "vhost":
            rabbit_node.management.allow(user, name, configure="^$" if refused == "permission" else ".*")
        password = "wrong" if refused == "login" else "secret"
        url = f"amqp://{user}:{password}@{place.rpartition('@')[2]}/{name}"
        code, output = await command(what, "shop:consumer", RABBITMQ_URL=url, OUTBOX_CONSUMER_START_S="600")
    finally:
        rabbit_node.management.delete_user(user)
    assert code == 78, output
    assert re.search(r"^outbox-consumer: .*(ACCESS_REFUSED|NOT_ALLOWED)", output, re.MULTILINE), output
    assert password not in output


async def test_a_database_that_is_not_migrated_is_named_as_such(command: Command, database: str) -> None:
    code, output = await command("run", "shop:consumer", DATABASE_URL=database)
    assert code == 78
    assert "outbox migrate" in output


async def test_a_command_line_that_is_wrong_is_usage(command: Command) -> None:
    code, output = await command("run")
    assert code == 64
    assert "Try 'outbox-consumer run --help'" in output


async def test_queues_in_postgresql_are_checked_and_shown_without_rabbitmq(
    command: Command, migrated_database: str
) -> None:
    code, output = await command("check", "shop:consumer", "--broker", "postgres", RABBITMQ_URL="")
    assert code == 0, output
    lane = Lane(group="billing", tier=Tier.BULK, tenant="acme")
    publisher = PostgresPublisher(url=migrated_database)
    await publisher.open()
    assert not await publisher.declare([lane])
    await publisher.send(outgoing(3, lane))
    await settle(publisher, 3)
    await publisher.close()
    with psycopg.connect(migrated_database) as connection:
        connection.execute(
            "insert into consumer.lane (group_name, tier, tenant, queue) values ('billing', 2, 'acme', %s)",
            (lane.queue,),
        )
    code, output = await command("status", "--json", RABBITMQ_URL="", OUTBOX_BROKER="postgres")
    assert code == 0, output
    assert json.loads(output)["queued"] == [{"tier": "bulk", "tenant": "acme", "events": 3}]
