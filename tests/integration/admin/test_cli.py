"""The ``outbox`` command as people meet it: what it prints, and how it ends."""

import json
import re

import psycopg
import pytest

from outbox.shell.exits import CONFIGURATION, DONE, UNAVAILABLE, USAGE, run_cli
from outbox_admin import migrate
from outbox_admin.cli import app

_NOBODY = "postgresql://postgres:hunter2@127.0.0.1:1/shop"


class Command:
    """Runs ``outbox`` in this process, to its end; the scenarios run the real one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], database_url: str) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys
        self._database_url = database_url

    def __call__(self, *arguments: str, **changes: str) -> tuple[int, str]:
        settings = {"DATABASE_URL": self._database_url, "RABBITMQ_URL": "", **changes}
        with self._monkeypatch.context() as environment:
            for name, value in settings.items():
                environment.setenv(name, value)
            with pytest.raises(SystemExit) as ended:
                run_cli(app, arguments=arguments, name="outbox")
        printed = self._capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, printed.out + printed.err


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], migrated_database: str) -> Command:
    return Command(monkeypatch, capsys, migrated_database)


@pytest.fixture
def bare_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], database: str) -> Command:
    return Command(monkeypatch, capsys, database)


def test_migrate_goes_up_down_and_up_again_and_says_where_it_stands(bare_command: Command, database: str) -> None:
    log, ledger, queues = (chain.newest for chain in migrate.status(database))
    newest = f"outbox: {log}\nconsumer: {ledger}\nbroker: {queues}\n"
    nothing = f"outbox: nothing, newest {log}\nconsumer: nothing, newest {ledger}\nbroker: nothing, newest {queues}\n"
    behind = "outbox: want the newest revision, got outbox and consumer and broker behind it; run 'outbox migrate'\n"
    assert bare_command("migrate", "--check") == (CONFIGURATION, nothing + behind)
    assert bare_command("migrate", "--chain", "consumer") == (DONE, f"consumer: {ledger}\n")
    assert (bare_command("migrate", "--check"))[0] == CONFIGURATION
    for _ in range(2):
        assert bare_command("migrate") == (DONE, newest)
    assert (bare_command("migrate", "--check"))[0] == DONE
    code, output = bare_command("migrate", "--down")
    assert (code, _lines(output)) == (USAGE, 1)
    assert bare_command("migrate", "--down", "--chain", "outbox", "--yes") == (DONE, "outbox: nothing\n")
    assert bare_command("migrate", "--down", "--yes") == (DONE, "outbox: nothing\nconsumer: nothing\nbroker: nothing\n")
    assert bare_command("migrate") == (DONE, newest)


def test_the_printed_sql_is_all_that_a_database_needs(bare_command: Command, database: str) -> None:
    code, script = bare_command("migrate", "--sql", DATABASE_URL="")
    assert code == DONE, script
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(script.encode())
    assert (bare_command("migrate", "--check"))[0] == DONE


def test_migrate_takes_a_libpq_address(bare_command: Command, database: str) -> None:
    # Given anything beside the URL, it comes back as key=value.
    address = psycopg.conninfo.make_conninfo(database, application_name="ours")
    assert "://" not in address
    assert (bare_command("migrate", DATABASE_URL=address))[0] == DONE


def test_migrate_says_in_one_sentence_what_its_user_may_not_do(bare_command: Command, database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS outbox_guest")
        connection.execute("CREATE ROLE outbox_guest LOGIN PASSWORD 'hunter2'")
    try:
        address = psycopg.conninfo.make_conninfo(database, user="outbox_guest", password="hunter2")
        code, output = bare_command("migrate", DATABASE_URL=address)
    finally:
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute("DROP ROLE outbox_guest")
    assert (code, _lines(output)) == (CONFIGURATION, 1), output
    assert "lacks a privilege" in output


@pytest.mark.parametrize(
    ("arguments", "changes", "code", "says"),
    [
        (["frobnicate"], {}, USAGE, "No such command 'frobnicate'"),
        (["migrate", "--chain", "all", "--nope"], {}, USAGE, "No such option: --nope"),
        (["migrate", "--chain", "third"], {}, USAGE, "--chain: want one of outbox, consumer, broker, all, got 'third'"),
        (["migrate", "--check", "--down"], {}, USAGE, "--check goes with neither --down nor --sql"),
        (
            ["migrate"],
            {"DATABASE_URL": ""},
            CONFIGURATION,
            "DATABASE_URL (or OUTBOX_DATABASE_URL): missing, want postgresql://user:password@host:port/database",
        ),
        (["migrate"], {"DATABASE_URL": "mysql://x/y"}, CONFIGURATION, "want postgresql://user:password@host"),
        (["migrate"], {"DATABASE_URL": _NOBODY}, UNAVAILABLE, "the database cannot be reached: "),
        (["group", "list"], {"DATABASE_URL": _NOBODY}, UNAVAILABLE, "the database cannot be reached: "),
        (["dead", "list"], {"DATABASE_URL": _NOBODY}, UNAVAILABLE, "the database cannot be reached: "),
        (["rebase", "--dry-run"], {"DATABASE_URL": _NOBODY}, UNAVAILABLE, "the database cannot be reached: "),
        (["migrate"], {"OUTBOX_LOG_LEVL": "debug"}, CONFIGURATION, "did you mean OUTBOX_LOG_LEVEL?"),
        (["group", "add"], {}, USAGE, "Missing argument 'NAME'"),
        (["group", "add", "Bad Name"], {}, USAGE, "group: want 1..63 of a-z, 0-9, _ and -, got 'Bad Name'"),
        (["group", "add", "default"], {}, CONFIGURATION, "want a new name, got one that reads the log already"),
        (["dead", "list", "--group", "billling"], {}, CONFIGURATION, "group: want one of default, got 'billling'"),
        (["dead", "list", "--category", "odd"], {}, USAGE, "--category: want one of oversized, unreadable"),
        (["dead", "show", "seven"], {}, USAGE, "ID: want a whole number, got 'seven'"),
        (["dead", "show", "7"], {}, CONFIGURATION, "want the number of a dead letter, got 7, which is none"),
        (["dead", "replay"], {}, USAGE, "want ids, a filter or --all, got nothing"),
        (
            ["demo"],
            {"RABBITMQ_URL": ""},
            CONFIGURATION,
            "want RABBITMQ_URL or OUTBOX_BROKER=postgres beside DATABASE_URL, got neither",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_what_cannot_be_done_is_one_sentence_and_an_exit_code(
    command: Command, arguments: list[str], changes: dict[str, str], code: int, says: str
) -> None:
    found, output = command(*arguments, **changes)
    assert (found, _lines(output)) == (code, 1), output
    assert says in output
    assert "hunter2" not in output


@pytest.mark.parametrize(
    "arguments", [["group", "list"], ["group", "add", "billing"], ["dead", "list"], ["rebase", "--yes"]], ids=" ".join
)
def test_a_database_without_our_tables_is_told_how_to_get_them(bare_command: Command, arguments: list[str]) -> None:
    code, output = bare_command(*arguments)
    assert (code, _lines(output)) == (CONFIGURATION, 1), output
    assert "run 'outbox migrate'" in output


def test_groups_are_added_once_and_listed(command: Command) -> None:
    added = "group billing reads every event committed from now on\n"
    assert command("group", "add", "billing") == (DONE, added)
    assert (command("group", "add", "billing"))[0] == CONFIGURATION
    code, output = command("group", "list")
    assert code == DONE
    assert re.fullmatch(r"billing  since [\d: -]+Z\ndefault  since [\d: -]+Z\n", output)
    listed = json.loads((command("group", "list", "--json"))[1])
    assert [group["name"] for group in listed] == ["billing", "default"]


def test_unknown_ids_are_named_before_and_instead_of_anything_done(command: Command) -> None:
    for arguments in (["replay", "7", "8", "--dry-run"], ["discard", "7", "8", "--yes"], ["replay", "7", "8"]):
        code, output = command("dead", *arguments)
        assert code == CONFIGURATION
        wanted = "want open dead letters of group default, got no such: 7, 8"
        assert output.endswith(f"{wanted}; 'outbox dead show ID' tells what became of one\n")
    assert (command("dead", "list"))[1] == "no open dead letters in group default\n"
    assert command("dead", "replay", "--all") == (DONE, "replayed 0, refused 0\n")


def test_help_is_there_for_every_command(command: Command) -> None:
    for arguments in ([], ["migrate"], ["group"], ["dead"], ["dead", "replay"], ["replay"], ["rebase"], ["demo"]):
        code, output = command(*arguments, "--help", DATABASE_URL="")
        assert code == DONE
        assert "Usage: outbox" in output


def test_off_boarding_says_what_there_is_and_asks_for_what_it_needs(command: Command, migrated_database: str) -> None:
    assert command("tenant", "offboard", "acme", "--yes") == (DONE, "0 queues\n")
    with psycopg.connect(migrated_database) as connection:
        connection.execute("insert into outbox.lane (group_name, tier, tenant) values ('default', 1, 'acme')")
    queue = "outbox.lane.default.standard.acme"
    assert command("tenant", "offboard", "acme", "--dry-run") == (DONE, f"{queue}\n1 queue\n")
    assert command("tenant", "offboard", "acme", "-g", "billing", "--dry-run") == (DONE, "0 queues\n")
    code, output = command("tenant", "offboard", "acme", "--yes")
    assert code == CONFIGURATION
    assert output.endswith("RABBITMQ_URL: missing, want the broker's address, or OUTBOX_BROKER=postgres\n")
    code, output = command("tenant", "offboard", "acme", RABBITMQ_URL="amqp://127.0.0.1:1")
    assert (code, "want --yes where nobody can be asked" in output) == (USAGE, True)
    code, output = command("tenant", "offboard", "acme", "--yes", RABBITMQ_URL="amqp://127.0.0.1:1")
    assert (code, output.count("\n")) == (UNAVAILABLE, 1), output
    assert command("tenant", "offboard", "acme", "--group", "No Group")[0] == USAGE
    with psycopg.connect(migrated_database) as connection:
        assert connection.execute("select leaving_at from outbox.lane").fetchall() == [(None,)]
        connection.execute("update outbox.lane set leaving_at = now()")
    assert command("tenant", "offboard", "acme", "--keep") == (DONE, f"{queue}, being off-boarded\nkept 1 queue\n")
    with psycopg.connect(migrated_database) as connection:
        assert connection.execute("select leaving_at from outbox.lane").fetchall() == [(None,)]
        audit = connection.execute("select action, group_name, detail->>'tenant' from outbox.audit").fetchall()
    assert audit == [("tenant.keep", "default", "acme")]


def _lines(output: str) -> int:
    return len(output.splitlines())
