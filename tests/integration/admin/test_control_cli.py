"""``outbox pause | resume | paused`` and ``outbox tenant show | pause | resume | weight`` as people meet them."""

import asyncio
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from consumer.decide.heartbeat import Heartbeat, Running
from consumer.outcome import DeadCategory
from consumer.store import dead, incarnation, work
from consumer.store.dead import NewDead
from consumer.store.work import Reason
from outbox.event import Tier
from outbox.shell.exits import CONFIGURATION, DONE, UNAVAILABLE, USAGE
from tests.integration.admin.test_cli import Command
from tests.integration.relay.running import App, emit
from tests.support.waiting_events import an_event, new_work, stored_of

AUDIT = "SELECT actor, action, group_name, detail FROM consumer.audit ORDER BY id"
GROUP = "default"


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], migrated_database: str) -> Command:
    return Command(monkeypatch, capsys, migrated_database)


@pytest.fixture
def app(migrated_database: str) -> Iterator[App]:
    with psycopg.connect(migrated_database, autocommit=True) as connection:
        yield connection


def parsed(command: Command, *arguments: str) -> Any:
    code, output = command(*arguments, "--json")
    assert code == DONE, output
    return json.loads(output)


def test_a_tenant_is_paused_in_every_group_with_who_why_and_until_and_resumed(command: Command, app: App) -> None:
    command("group", "add", "billing")
    code, output = command(
        "tenant", "pause", "acme", "--for", "2h", "--reason", "its database is full", "--actor", "ann"
    )
    assert code == DONE
    assert output.count("tenant acme") == 2
    (of_billing, of_default) = parsed(command, "paused")
    assert (of_billing["group"], of_default["group"]) == ("billing", "default")
    (pause,) = of_billing["pauses"]
    assert pause["scope"] == {"tenant": "acme", "tier": None, "type": None, "handler": None}
    assert (pause["actor"], pause["reason"], pause["source"]) == ("ann", "its database is full", "operator")
    left = datetime.fromisoformat(pause["until"]) - datetime.now(UTC)
    assert timedelta(minutes=115) < left <= timedelta(hours=2, minutes=1)

    command("tenant", "pause", "acme", "--type", "orders.placed", "--group", "billing")
    code, output = command("tenant", "resume", "acme", "--actor", "bob")
    assert (code, output.splitlines()) == (
        DONE,
        [
            "group billing: tenant acme goes on; ann had paused it",
            "group default: tenant acme goes on; ann had paused it",
            f"group billing: still paused: tenant acme, type orders.placed, by {_login(app)}",
        ],
    )
    assert [row[:3] for row in app.execute(AUDIT).fetchall()] == [
        ("ann", "control.pause", "billing"),
        ("ann", "control.pause", "default"),
        (_login(app), "control.pause", "billing"),
        ("bob", "control.resume", "billing"),
        ("bob", "control.resume", "default"),
    ]
    assert command("tenant", "resume", "acme")[0] == CONFIGURATION


def _login(app: App) -> str:
    row = app.execute("SELECT actor FROM consumer.audit WHERE actor NOT IN ('ann', 'bob') LIMIT 1").fetchone()
    assert row is not None
    return str(row[0])


def test_what_is_everybodys_is_paused_only_when_somebody_said_yes(command: Command, app: App) -> None:
    for scope in (("--type", "orders.placed"), ("--tier", "bulk"), ("--handler", "bill"), ("--group", "default")):
        code, output = command("pause", *scope)
        assert (code, "want --yes" in output) == (USAGE, True)
        assert command("pause", *scope, "--yes")[0] == DONE
    assert command("pause", "--tenant", "acme", "--tier", "bulk")[0] == DONE
    ((of_default),) = parsed(command, "paused")
    assert len(of_default["pauses"]) == 5
    assert of_default["pauses"][1]["scope"]["tier"] == "bulk"
    code, output = command("resume", "--all")
    assert (code, output.count("goes on"), output.count("still paused")) == (DONE, 5, 0)
    assert command("paused") == (DONE, "nothing is paused\n")
    assert command("resume", "--all")[0] == CONFIGURATION


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("pause",), USAGE, "want --tenant, --type, --tier, --handler or --group, got nothing"),
        (("resume",), USAGE, "want --tenant, --type, --tier, --handler, --group or --all, got nothing"),
        (("resume", "--all", "--tier", "bulk"), USAGE, "want --all or what was paused, got both"),
        (("pause", "--tier", "slow"), USAGE, "--tier: want one of interactive, standard, bulk, got 'slow'"),
        (("pause", "--type", "no type"), USAGE, "event type: want"),
        (("tenant", "pause", ""), USAGE, "tenant: want text"),
        (("tenant", "pause", "acme", "--group", "biling"), CONFIGURATION, "group: want one of default, got 'biling'"),
        (("tenant", "pause", "acme", "--group", "B!"), USAGE, "group"),
        (("tenant", "pause", "acme", "--for", "soon"), USAGE, "--for: want an age as 90s, 15m, 2h or 7d, got 'soon'"),
        (("tenant", "pause", "acme", "--for", "1h", "--until", "2040-01-01T00:00:00Z"), USAGE, "want --for or --until"),
        (("tenant", "pause", "acme", "--until", "2020-01-01T00:00:00Z"), CONFIGURATION, "want a time to come"),
        (("tenant", "pause", "acme", "--until", "noon"), USAGE, "--until: want a time with its offset"),
        (("tenant", "weight", "acme", "0"), USAGE, "want at least 1"),
        (("tenant", "resume", "acme"), CONFIGURATION, "want what is paused, got tenant acme"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_what_cannot_be_meant_is_refused_in_one_sentence(
    command: Command, app: App, arguments: tuple[str, ...], code: int, said: str
) -> None:
    ended, output = command(*arguments)
    assert (ended, said in output, output.count("\n")) == (code, True, 1), output
    assert app.execute("SELECT count(*) FROM consumer.control").fetchone() == (0,)
    assert app.execute("SELECT count(*) FROM consumer.audit").fetchone() == (0,)


async def fill(database_url: str) -> None:
    """Leave something of *acme*, and of another tenant, in every place."""
    async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as connection:
        paused = an_event(tier=Tier.BULK)
        rows = [
            new_work(an_event(), group=GROUP, delay_s=600),
            new_work(an_event(), group=GROUP, reason=Reason.HELD),
            new_work(an_event(), group=GROUP, reason=Reason.WAITING),
            new_work(an_event(tenant="globex"), group=GROUP),
            new_work(paused, group=GROUP),
        ]
        await work.put(connection, rows)
        await connection.execute("UPDATE consumer.work SET due_before_pause = now() WHERE event_id = %s", (paused.id,))
        buried = an_event()
        letter = NewDead(
            group=GROUP,
            event_id=buried.id,
            stored=stored_of(buried),
            category=DeadCategory.PERMANENT,
            message="m",
            fingerprint="f",
        )
        await dead.put(connection, letter)
        runs = tuple(
            Running(tenant=tenant, tier=Tier.INTERACTIVE, type="orders.order.placed", events=2)
            for tenant in ("acme", "globex")
        )
        process = await incarnation.begin(connection, GROUP, host="web-1", pid=7, lease_s=30)
        await incarnation.renew(connection, process, lease_s=30, heartbeat=Heartbeat(running=runs))


def test_a_type_or_handler_that_no_process_has_is_paused_with_a_word_about_it(
    command: Command, migrated_database: str
) -> None:
    async def start() -> None:
        async with await psycopg.AsyncConnection.connect(migrated_database, autocommit=True) as connection:
            knows = {"orders.order.placed": {"bill": (1, 1)}}
            await incarnation.begin(connection, GROUP, host="web-1", pid=7, lease_s=30, knows=knows)

    def pause(*options: str) -> str:
        code, output = command("pause", *options, "--yes")
        assert code == DONE, output
        return " ".join(output.split())

    assert "runs now" not in pause("--type", "orders.order.palced")  # nobody runs, so nobody can tell
    asyncio.run(start())
    assert "handles 'orders.order.palced'; it is paused all the same. Did you mean orders.order.placed?" in pause(
        "--type", "orders.order.palced"
    )
    assert "--handler: no process that runs now handles 'mail'; it is paused all the same." in pause(
        "--handler", "mail"
    )
    assert "runs now" not in pause("--type", "orders.order.placed", "--handler", "bill")


def test_all_that_there_is_of_a_tenant_is_shown_by_group_tier_and_type(
    command: Command, app: App, migrated_database: str
) -> None:
    emit(app, "acme", count=3)
    emit(app, "globex")
    asyncio.run(fill(migrated_database))
    command("tenant", "weight", "acme", "7", "--for", "1d")
    command("pause", "--type", "orders.order.placed", "--reason", "broken", "--yes")
    command("tenant", "pause", "globex")

    found = parsed(command, "tenant", "show", "acme")
    counts = {(one["tier"], one["type"], one["where"]): one["events"] for one in found["counts"]}
    assert counts == {
        ("standard", "order.placed", "unpublished"): 3,
        ("interactive", "orders.order.placed", "running"): 2,
        ("standard", "orders.order.placed", "retry"): 1,
        ("standard", "orders.order.placed", "held"): 1,
        ("standard", "orders.order.placed", "waiting"): 1,
        ("bulk", "orders.order.placed", "paused"): 1,
        ("standard", "orders.order.placed", "dead"): 1,
    }
    assert found["weights"] == {"default": 7}
    assert [(one["group"], one["reason"]) for one in found["pauses"]] == [("default", "broken")]
    only = parsed(command, "tenant", "show", "acme", "--tier", "bulk", "--type", "orders.order.placed")
    assert [one["where"] for one in only["counts"]] == ["paused"]

    code, output = command("tenant", "show", "acme")
    assert code == DONE
    assert "group default: weight 7" in output
    assert "type orders.order.placed is paused until somebody resumes it" in output
    assert "globex" not in output
    assert "nothing of tenant nobody is waiting" in command("tenant", "show", "nobody")[1]


def test_a_tenant_is_shown_while_the_broker_is_away(command: Command, app: App) -> None:
    emit(app, "acme")
    for tenant in ("acme", "globex"):
        app.execute(
            "INSERT INTO consumer.lane (group_name, tier, tenant, queue) VALUES ('default', 1, %s, %s)", (tenant,) * 2
        )
    away = {"RABBITMQ_URL": "amqp://guest@127.0.0.1:1/"}
    code, output = command("tenant", "show", "acme", **away)
    assert code == DONE, output
    assert "what lies in queues is not known: " in output
    assert "error when creating transport" not in output
    assert "order.placed            1" in output
    nothing = "nothing of tenant globex is waiting, running or dead, as far as is known without the broker"
    assert nothing in command("tenant", "show", "globex", **away)[1]


def test_a_weight_is_set_shown_and_taken_back(command: Command, app: App) -> None:
    code, output = command("tenant", "weight", "acme", "3", "--reason", "a migration")
    assert (code, "a migration" in output) == (DONE, True)
    assert parsed(command, "paused")[0]["weights"][0]["weight"] == 3
    assert command("tenant", "weight", "acme", "1")[0] == DONE
    assert parsed(command, "paused")[0]["weights"] == []
    assert app.execute("SELECT count(*) FROM consumer.audit WHERE action = 'control.weight'").fetchone() == (2,)


def test_a_group_that_is_still_run_is_not_removed_and_one_that_is_not_says_what_would_go(
    command: Command, app: App, migrated_database: str
) -> None:
    assert command("group", "remove", "search")[0] == CONFIGURATION
    asyncio.run(fill(migrated_database))
    code, output = command("group", "remove", "default", "--yes")
    assert (code, output) == (
        CONFIGURATION,
        "outbox: group default: want no process of it alive, got 1; stop outbox-consumer first\n",
    )
    app.execute("DELETE FROM consumer.incarnation")
    assert command("group", "remove", "default", "--dry-run") == (
        DONE,
        "group default: 2 queues, 5 work rows, 1 open dead letter, 0 deferred events\n",
    )
    assert command("group", "remove", "default")[0] != DONE
    # With the broker away nothing is begun: its queues could not be removed, and later nobody would know them.
    assert command("group", "remove", "default", "--yes", RABBITMQ_URL="amqp://guest@127.0.0.1:1/")[0] == UNAVAILABLE
    assert app.execute("SELECT count(*) FROM outbox.consumer_group").fetchone() == (1,)
    assert app.execute("SELECT count(*) FROM consumer.work").fetchone() == (5,)
