"""One sentence and the right code for every way to fail."""

import io
import json
import logging

import pytest
import structlog
import typer

from outbox import errors
from outbox.shell import commands, exits, logs

app = typer.Typer()
_RAISED: dict[str, BaseException] = {
    "config": errors.ConfigError("OUTBOX_X: missing"),
    "store": errors.StoreUnavailable("the database cannot be reached"),
    "broker": errors.BrokerUnavailable("the broker cannot be reached"),
    "refused by the database": errors.StoreRefused("the database does not let us in"),
    "refused by the broker": errors.BrokerRefused("the broker does not let us in"),
    "lease": errors.LeaseLost("another relay owns bucket 3"),
    "schema": errors.SchemaMissing("the database is not migrated"),
    "event": errors.InvalidEvent("want JSON,\n  got 'x'"),
    "bug": ZeroDivisionError("a bug"),
    "exit": typer.Exit(3),
    "interrupt": KeyboardInterrupt(),
}


@app.command()
def fail(how: str) -> None:
    """Fail as asked."""
    if how in _RAISED:
        raise _RAISED[how]


@app.command()
def rest(times: int = 1) -> None:
    """Do nothing."""


def _run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        exits.run_cli(app, arguments=arguments, name="outbox")
    assert isinstance(caught.value.code, int)
    return caught.value.code


@pytest.mark.parametrize(
    ("how", "code"),
    [
        ("nothing", 0),
        ("config", 78),
        ("store", 69),
        ("broker", 69),
        ("refused by the database", 78),
        ("refused by the broker", 78),
        ("lease", 75),
        ("schema", 78),
        ("event", 64),
        ("exit", 3),
        ("interrupt", 130),
    ],
)
def test_each_error_has_its_code_and_at_most_one_line(how: str, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("fail", how) == code
    told = capsys.readouterr().err
    assert len(told.splitlines()) == (0 if how in {"nothing", "exit", "interrupt"} else 1)
    assert "Traceback" not in told


def test_a_server_that_is_away_says_who_looks_closer(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("fail", "store") == 69
    assert capsys.readouterr().err == "outbox: the database cannot be reached; 'outbox doctor' looks closer\n"


@pytest.mark.parametrize("arguments", [["nonsense"], ["fail"], ["rest", "--times", "x"], ["rest", "--bogus"]])
def test_a_wrong_command_line_is_usage_in_one_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(*arguments) == 64
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_help_is_no_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("--help") == 0
    assert "Fail as asked" in capsys.readouterr().out


def test_a_fault_of_ours_is_one_sentence_that_says_how_to_report_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("fail", "bug") == exits.FAULT
    says = "outbox: a fault of ours: ZeroDivisionError: a bug; please report what 'outbox --debug ...' prints of it\n"
    assert capsys.readouterr().err == says


def test_a_fault_that_repeats_an_address_repeats_no_password(capsys: pytest.CaptureFixture[str]) -> None:
    program = commands.root(help="A program.", epilog="")

    @program.command()
    def parse() -> None:
        """Fail as a library may."""
        raise ValueError("cannot parse postgresql://app:s3cret@db/app")

    with pytest.raises(SystemExit):
        exits.run_cli(commands.extended(program), arguments=["parse"], name="outbox")
    assert "cannot parse postgresql://app:***@db/app" in capsys.readouterr().err


def test_debug_keeps_its_traceback() -> None:
    program = commands.root(help="A program.", epilog="")
    program.command()(fail)
    with pytest.raises(ZeroDivisionError):
        exits.run_cli(commands.extended(program), arguments=["--debug", "fail", "bug"], name="outbox")


def test_a_process_that_logs_keeps_a_faults_traceback_in_its_log() -> None:
    log, root = io.StringIO(), logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        logs.configure(level="info", format="json", stream=log)
        assert _run("fail", "bug") == exits.FAULT
    finally:
        structlog.reset_defaults()
        root.handlers[:] = handlers
        root.setLevel(level)
    (record,) = map(json.loads, log.getvalue().splitlines())
    assert (record["level"], record["event"]) == ("critical", "ended by a fault of ours")
    assert "in fail" in record["exception"]


def test_every_error_of_ours_has_a_code() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.OutboxError)]
    assert {exits.code_of(kind("x")) for kind in kinds} <= {64, 69, 75, 78}
