"""``outbox group add --from`` and ``outbox replay`` as people meet them. No relay need run for either."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime

import psycopg
import pytest

from outbox.shell.exits import CONFIGURATION, DONE, USAGE
from tests.integration.admin.test_cli import Command
from tests.integration.relay.running import App, emit, value

PUBLISHED = """
    update outbox.bucket set lo = pg_current_snapshot();
    insert into outbox.lane (group_name, tier, tenant)
    select distinct g.group_name, e.tier, e.tenant from outbox.event e, outbox.consumer_group g"""
AUDIT = "select actor, action, group_name, detail from outbox.audit order by id"


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], migrated_database: str) -> Command:
    return Command(monkeypatch, capsys, migrated_database)


@pytest.fixture
def app(migrated_database: str) -> Iterator[App]:
    """An app whose events the group ``default`` was sent."""
    with psycopg.connect(migrated_database, autocommit=True) as connection:
        yield connection


@pytest.fixture
def since(app: App) -> datetime:
    """Before any event."""
    return _now(app)


def test_a_group_is_started_where_it_is_told(command: Command, app: App, since: datetime) -> None:
    emit(app, count=3)
    emit(app, "globex")
    started = _now(app)
    code, output = command("group", "add", "audit", "--from", since.isoformat(), "--actor", "ops")
    assert (code, output) == (DONE, f"group audit reads every event from {since:%Y-%m-%d %H:%M:%SZ} on\n")
    assert command("group", "add", "late", "--from", started.isoformat())[0] == DONE
    assert command("group", "add", "whole", "--from", "oldest")[0] == DONE
    streams = "select group_name, tenant from outbox.stream order by 1, 2"
    assert app.execute(streams).fetchall() == [
        (group, tenant) for group in ("audit", "whole") for tenant in ("acme", "globex")
    ]
    assert value(app, "select started_at from outbox.consumer_group where group_name = 'late'") == started
    assert value(app, "select min(ledger_at) from outbox.event") == value(
        app, "select started_at from outbox.consumer_group where group_name = 'whole'"
    )
    audit = app.execute(AUDIT).fetchall()
    assert audit[0] == ("ops", "group.add", "audit", {"from": since.isoformat()})
    assert len(audit) == 3


def test_a_group_may_start_at_the_oldest_of_a_log_without_events(command: Command, app: App) -> None:
    assert command("group", "add", "audit", "--from", "oldest")[0] == DONE
    assert value(app, "select count(*) from outbox.stream") == 0


def test_a_replay_says_what_it_will_be_and_is_written_down(command: Command, app: App, since: datetime) -> None:
    emit(app, count=1500)
    emit(app, "globex", count=2)
    app.execute(PUBLISHED)
    app.execute("select outbox.add_group('late')")
    given = ("replay", "--from", since.isoformat())
    code, output = command(*given, "--dry-run")
    assert code == DONE
    assert output.splitlines()[0].endswith(": 1,502 events")
    assert output.splitlines()[1:] == ["      1,500  acme  order.placed", "          2  globex  order.placed"]
    assert value(app, "select count(*) from outbox.replay") == 0
    code, output = command(*given)  # nobody can be asked here
    assert (code, value(app, "select count(*) from outbox.replay")) == (USAGE, 0)
    assert "want --yes where nobody can be asked" in output
    code, output = command(*given, "--yes", "--actor", "ops", "--json")
    assert code == DONE
    asked = json.loads(output)
    assert asked["events"] == 1502
    assert [(group["group"], group["events"]) for group in asked["groups"]] == [("default", 1502)]
    number = asked["groups"][0]["replay"]
    assert command(*given, "--tenant", "globex", "--group", "default")[0] == DONE  # so few need no yes
    (first, second) = json.loads(command("replay", "list", "--json")[1])
    assert (first["tenant"], first["events"], first["ended_at"]) == ("globex", 2, None)
    assert (second["id"], second["events"], second["published"], second["requested_by"]) == (number, 1502, 0, "ops")
    code, output = command("replay", "cancel", str(number))  # nobody can be asked here
    assert (code, "it would ask: Call off replay" in output) == (USAGE, True)
    assert "with 1,502 of 1,502 events left?" in output
    assert command("replay", "cancel", str(number), "--yes") == (DONE, f"replay {number} is called off\n")
    code, output = command("replay", "cancel", str(number))
    assert (code, output) == (
        CONFIGURATION,
        f"outbox: cancel: want the number of an open replay, got {number}, which is none\n",
    )
    assert "called off" in command("replay", "list")[1]
    actions = [(actor, action, group) for actor, action, group, _ in app.execute(AUDIT).fetchall()]
    assert actions[0] == ("ops", "replay.request", "default")
    assert [action for _, action, _ in actions] == ["replay.request", "replay.request", "replay.cancel"]


def test_a_group_is_never_sent_again_what_is_older_than_its_start(command: Command, app: App, since: datetime) -> None:
    """Its consumer takes that for handled; it would be handled after what came later."""
    emit(app, count=3)
    started = _now(app)
    emit(app, count=2)
    assert command("group", "add", "audit", "--from", started.isoformat())[0] == DONE
    app.execute("delete from outbox.stream")
    app.execute(PUBLISHED)
    code, output = command("replay", "--from", since.isoformat(), "--dry-run")
    assert code == DONE
    assert [line for line in output.splitlines() if line.startswith("group")] == [
        f"group audit, from {started:%Y-%m-%d %H:%M:%SZ}, where it starts, to {_to(output)}: 2 events",
        f"group default, from {since:%Y-%m-%d %H:%M:%SZ}, to {_to(output)}: 5 events",
    ]
    assert command("replay", "--from", since.isoformat(), "--to", since.isoformat())[1].startswith("no group was sent")


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["replay"], USAGE, "want --from TIME, got none"),
        (["replay", "--from", "yesterday"], USAGE, "--from: want a time with its offset, as 2026-11-29T12:00:00Z"),
        (["replay", "--from", "2026-11-29T12:00:00"], USAGE, "got '2026-11-29T12:00:00'"),
        (["replay", "--from", "oldest", "--to", "tomorrow"], USAGE, "--to: want a time with its offset"),
        (["replay", "--from", "oldest", "--group", "audti"], CONFIGURATION, "group: want one of default, got 'audti'"),
        (["replay", "--from", "2999-01-01T00:00:00Z"], CONFIGURATION, "--from: want a time that is not ahead"),
        (["replay", "--from", "2020-01-01T00:00:00Z"], CONFIGURATION, "the log keeps every event, 2026-01-01T"),
        (["replay", "cancel", "one"], USAGE, "NUMBER: want a whole number, got 'one'"),
        (["group", "add", "audit", "--from", "2020-01-01"], USAGE, "--from: want a time with its offset"),
        (["group", "add", "audit", "--from", "2020-01-01T00:00:00Z"], CONFIGURATION, "the log keeps every event, 2026"),
        (["group", "add", "audit", "--from", "2999-01-01T00:00:00Z"], CONFIGURATION, "want a start that is not ahead"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_what_cannot_be_replayed_is_one_sentence(
    command: Command, app: App, arguments: list[str], code: int, says: str
) -> None:
    app.execute("update outbox.retained set complete_since = '2026-01-01 00:00 UTC'")
    found, output = command(*arguments)
    assert (found, len(output.splitlines())) == (code, 1), output
    assert says in output
    assert value(app, "select count(*) from outbox.audit") == 0


def _to(output: str) -> str:
    """The end that the first line tells."""
    return output.splitlines()[0].partition(", to ")[2].rpartition(": ")[0]


def _now(app: App) -> datetime:
    found = value(app, "select clock_timestamp()")
    assert isinstance(found, datetime)
    return found.astimezone(UTC)
