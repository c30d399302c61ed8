"""``outbox config``: read by somebody who wonders where a value comes from."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from outbox.shell.exits import CONFIGURATION, DONE, USAGE, run_cli
from outbox_admin.cli import app

URL = "postgresql://shop:s3cret@db/shop"
Command = Callable[..., tuple[int, str]]


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run ``outbox config`` in a directory of its own; the exit code and what it printed."""
    monkeypatch.chdir(tmp_path)
    for name in ("DATABASE_URL", "RABBITMQ_URL", "AMQP_URL", "CLOUDAMQP_URL", "PGHOST", "PGDATABASE", "PGSERVICE"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: str, dotenv: str = "", toml: str = "") -> tuple[int, str]:
        (tmp_path / ".env").write_text(dotenv)
        (tmp_path / "outbox.toml").write_text(toml)
        with pytest.raises(SystemExit) as left:
            run_cli(app, arguments=["config", *arguments], name="outbox")
        told = capsys.readouterr()
        return int(left.value.code or 0), told.out + told.err

    return run


def test_a_value_is_shown_with_where_it_is_from_and_no_password(command: Command) -> None:
    code, told = command("show", dotenv=f"DATABASE_URL={URL}\n", toml='[relay]\nbroker = "postgres"\nlease_s = 30\n')
    assert code == DONE
    rows = [" ".join(line.split()) for line in told.splitlines()]
    assert "OUTBOX_RELAY_DATABASE_URL postgresql://shop:***@db/shop .env line 1, DATABASE_URL" in rows
    assert "OUTBOX_RELAY_LEASE_S 30 outbox.toml [relay] lease_s" in rows
    assert "OUTBOX_RELAY_WINDOW 2000 default" in rows
    # Of the consumer, which has no broker, nothing is said here.
    assert [row for row in rows if row.startswith("outbox")] == ["outbox-relay", "outbox"]
    assert "s3cret" not in told


def test_json_has_values_of_their_own_type_and_no_password(command: Command) -> None:
    code, told = command(
        "show", "-p", "relay", "--json", dotenv=f"DATABASE_URL={URL}\nRABBITMQ_URL=amqp://u:s3cret@mq/\n"
    )
    assert code == DONE
    assert "s3cret" not in told
    rows = {row["name"]: row for row in json.loads(told)["relay"]["settings"]}
    assert (rows["OUTBOX_RELAY_LEASE_S"]["value"], rows["OUTBOX_RELAY_LISTEN"]["value"]) == (15.0, False)
    assert rows["OUTBOX_RELAY_RABBITMQ_URL"]["value"] == "amqp://u:***@mq/"
    assert rows["OUTBOX_RELAY_BROKER_DATABASE_URL"]["value"] is None


def test_a_list_is_shown_as_a_variable_would_have_it(command: Command) -> None:
    told = command("explain", "tiers", toml='[consumer]\ntiers = ["bulk", "interactive"]\n')[1]
    assert "  now      bulk,interactive, from outbox.toml [consumer] tiers" in told.splitlines()


def test_what_is_wrong_is_shown_beside_the_rest(command: Command) -> None:
    code, told = command("show", "-p", "relay", dotenv="OUTBOX_RELAY_WINDOW=0\nOUTBOX_BROKER=postgres\n")
    assert code == CONFIGURATION
    assert "OUTBOX_RELAY_DATABASE_URL             missing" in told
    assert told.splitlines()[-3:] == [
        "outbox-relay: DATABASE_URL (or OUTBOX_DATABASE_URL, OUTBOX_RELAY_DATABASE_URL): missing, want"
        " postgresql://user:password@host:port/database",
        "outbox-relay: OUTBOX_RELAY_WINDOW (.env line 1): want an integer, 1..100000, got '0'",
        "outbox: 2 problems in the settings, told above",
    ]


def test_check_tells_everything_wrong_for_all_processes_at_once(command: Command) -> None:
    code, told = command(
        "check",
        dotenv=f"DATABASE_URL={URL}\nRABBITMQ_URL=http://mq\n",
        toml="[relay]\nwindo = 5\n[consumer]\nslots = 1\n",
    )
    assert code == CONFIGURATION
    assert told.splitlines() == [
        "outbox-relay, outbox-consumer, outbox: RABBITMQ_URL (.env line 2):"
        " want amqp://user:password@host:port/vhost, got 'http://mq'",
        "outbox-relay: [relay] windo (outbox.toml): no such setting, did you mean [relay] window?",
        "outbox-consumer: [consumer] slots (outbox.toml): want an integer, 2..1000, got 1",
        "outbox: 3 problems in the settings, told above",
    ]


def test_a_process_that_nothing_is_said_to_is_not_looked_at_unless_it_is_asked_for(command: Command) -> None:
    dotenv = f"OUTBOX_CONSUMER_DATABASE_URL={URL}\nRABBITMQ_URL=amqp://mq\n"
    assert command("check", dotenv=dotenv) == (
        DONE,
        "ok: the settings of outbox-consumer are in order\n"
        "not looked at: outbox-relay, which lacks DATABASE_URL\n"
        "not looked at: outbox, which lacks DATABASE_URL\n",
    )
    code, told = command("check", "--process", "relay", dotenv=dotenv)
    assert code == CONFIGURATION
    assert told.startswith("outbox-relay: DATABASE_URL (or OUTBOX_DATABASE_URL, OUTBOX_RELAY_DATABASE_URL): missing")


def test_nothing_at_all_is_missing_everything(command: Command) -> None:
    code, told = command("check")
    assert code == CONFIGURATION
    assert "outbox-consumer: RABBITMQ_URL" in told


@pytest.mark.parametrize("name", ["OUTBOX_RELAY_LEASE_S", "outbox_relay_lease_s", "relay.lease_s", "[relay] lease_s"])
def test_a_setting_is_explained_by_any_of_its_names(command: Command, name: str) -> None:
    code, told = command("explain", name, dotenv="OUTBOX_RELAY_LEASE_S=20\n", toml="[relay]\nlease_s = 30\n")
    assert code == DONE
    assert told.splitlines() == [
        "OUTBOX_RELAY_LEASE_S, of outbox-relay",
        "  Seconds until a dead relay's buckets are taken over; renewed at a third of it.",
        "  value    a number, 3..600",
        "  default  15",
        "  now      20, from .env line 1, OUTBOX_RELAY_LEASE_S",
        "  read from these, the first that is given wins:",
        "    environment variable OUTBOX_RELAY_LEASE_S  not given",
        "    .env line 1, OUTBOX_RELAY_LEASE_S          20  <- this one",
        "    outbox.toml [relay] lease_s                30",
        "    default                                    15",
    ]


def test_a_wrong_value_is_explained_as_wrong(command: Command) -> None:
    told = command("explain", "relay.chunk", toml="[relay]\nchunk = 0\n")[1]
    assert "  wrong    [relay] chunk (outbox.toml): want an integer, 1..10000, got 0" in told.splitlines()


def test_a_name_of_several_processes_is_explained_for_each(command: Command) -> None:
    told = command("explain", "lease_s")[1]
    assert [line for line in told.splitlines() if not line.startswith(" ")] == [
        "OUTBOX_RELAY_LEASE_S, of outbox-relay",
        "",
        "OUTBOX_CONSUMER_LEASE_S, of outbox-consumer",
    ]
    assert "outbox-relay" not in command("explain", "lease_s", "-p", "consumer")[1]


def test_libpqs_variables_and_the_files_names_are_explained_too(command: Command) -> None:
    assert "libpq's PGHOST, PGSERVICE or PGDATABASE" in command("explain", "PGHOST", "-p", "admin")[1]
    assert command("explain", "outbox_config")[1].startswith(
        "OUTBOX_CONFIG: the file that is read instead of outbox.toml"
    )


@pytest.mark.parametrize(
    ("name", "like"),
    [("OUTBOX_RELAY_LEES_S", "such as OUTBOX_RELAY_LEASE_S"), ("leese", "such as lease_s"), ("qqq", "")],
)
def test_an_unknown_name_is_answered_with_the_nearest(command: Command, name: str, like: str) -> None:
    code, told = command("explain", name)
    assert code == USAGE
    assert f"want the name of a setting{', ' if like else ' ('}{like}" in told
