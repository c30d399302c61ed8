"""What every command of every program owes a person: held on typer's own tree, so that a new one cannot forget it."""

import inspect
from typing import Final

import pytest

from outbox.shell.commands import Pending
from outbox.shell.exits import run_cli
from outbox_admin.cli import app as outbox
from tests.support.commands import PROGRAMS, Known, every, parse

_EVERY: Final = every()
#: What does something; `outbox replay` does, and has commands below it too.
_LEAVES: Final = [known for known in _EVERY if not known.is_group or known.command.invoke_without_command]
# Each with the reason why it prints no JSON document.
_WITHOUT_JSON: Final = {
    "outbox demo": "a show for people",
    "outbox dev": "runs until it is stopped",
    "outbox dead export": "its output is JSON, one letter a line, however many",
    "outbox-relay run": "a service, which logs",
    "outbox-consumer run": "a service, which logs",
}
_DESTROYS: Final = {
    *("outbox migrate", "outbox rebase", "outbox group remove", "outbox tenant offboard", "outbox replay cancel"),
    *("outbox dead discard", "outbox deferred discard"),
}


def _ids(found: list[Known]) -> list[str]:
    return [known.name for known in found]


each = pytest.mark.parametrize("known", _EVERY, ids=_ids(_EVERY))
each_leaf = pytest.mark.parametrize("known", _LEAVES, ids=_ids(_LEAVES))


def _printed(arguments: list[str], capsys: pytest.CaptureFixture[str], program: str) -> tuple[object, str, str]:
    with pytest.raises(SystemExit) as ended:
        run_cli(PROGRAMS[program], arguments=arguments, name=program)
    printed = capsys.readouterr()
    return ended.value.code, printed.out, printed.err


@each
def test_help_says_in_one_line_what_it_does_and_what_each_option_means(known: Known) -> None:
    first = inspect.cleandoc(known.command.help or "").split("\n\n")[0]
    assert first.endswith("."), first
    assert len(" ".join(first.split())) <= 160
    for parameter in known.command.params:
        assert parameter.help, f"{known.name} {parameter.name} has no help"


@each_leaf
def test_help_says_when_to_use_it(known: Known) -> None:
    paragraphs = inspect.cleandoc(known.command.help).split("\n\n")
    assert any(paragraph.startswith("Use it ") for paragraph in paragraphs[1:]), known.command.help


@each_leaf
def test_help_has_an_example_and_each_is_parsed_as_that_command(known: Known) -> None:
    assert known.examples
    for example in known.examples:
        assert parse(example).path == known.path, example


@pytest.mark.parametrize("program", PROGRAMS)
@each
def test_h_is_help(known: Known, program: str, capsys: pytest.CaptureFixture[str]) -> None:
    if known.path[0] != program:
        return
    shown = [_printed([*known.path[1:], option], capsys, program) for option in ("-h", "--help")]
    assert shown[0] == shown[1]
    code, out, err = shown[0]
    assert (code, err) == (0, "")
    assert f"Usage: {known.name}" in out
    assert "<bool>" not in out


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_program_tells_its_version(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert _printed(["--version"], capsys, program) == (0, f"{program} 0.1.0\n", "")


@each_leaf
def test_what_shows_something_has_json(known: Known) -> None:
    assert ("--json" in known.options) is (known.name not in _WITHOUT_JSON), known.name


@each_leaf
def test_what_destroys_can_be_confirmed_by_an_option_and_nothing_else_is_called_so(known: Known) -> None:
    if known.name in _DESTROYS:
        assert {"--yes", "-y"} <= known.options


def test_no_option_is_spelled_in_two_ways() -> None:
    """One word per thing: what one command calls --group another must not call --of-group."""
    for known in _LEAVES:
        for parameter in known.command.params:
            if parameter.name == "as_json":
                assert parameter.opts == ["--json"]
            if parameter.name == "group" and parameter.param_type_name == "option":
                assert parameter.opts == ["--group", "-g"], known.name
            if parameter.name == "yes":
                assert parameter.opts == ["--yes", "-y"], known.name


def test_the_overview_says_what_the_command_says_itself() -> None:
    context = outbox.make_context("outbox", [], resilient_parsing=True)
    for name in outbox.list_commands(context):
        pending = outbox.commands[name]
        assert isinstance(pending, Pending)
        _, loaded, _ = outbox.resolve_command(context, [name])
        assert loaded is not None
        first = " ".join(inspect.cleandoc(loaded.help or "").split("\n\n")[0].split())
        assert pending.short_help == first, name


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("outbox migrat", "No such command 'migrat'. Did you mean 'migrate'? Try 'outbox --help'."),
        ("outbox dead lst", "No such command 'lst'. Did you mean 'list'? Try 'outbox dead --help'."),
        (
            "outbox dead list --gruop x",
            "No such option: --gruop. Did you mean '--group'? Try 'outbox dead list --help'.",
        ),
        ("outbox-relay stat", "No such command 'stat'. Did you mean 'status'? Try 'outbox-relay --help'."),
        (
            "outbox-consumer run app:consumer --broker rabitmq",
            "--broker: want one of rabbitmq, postgres, got 'rabitmq'. Try 'outbox-consumer run --help'.",
        ),
        (
            "outbox config check -p shop",
            "--process: want one of relay, consumer, admin, got 'shop'. Try 'outbox config check --help'.",
        ),
        ("outbox dead list --limit 0", "--limit: want at least 1, got '0'. Try 'outbox dead list --help'."),
        ("outbox dead list --event 7", "--event: want a UUID, got '7'. Try 'outbox dead list --help'."),
        (
            "outbox tenant offboard acme --within 0",
            "--within: want at least 1, got '0'. Try 'outbox tenant offboard --help'.",
        ),
        (
            f"outbox dead show {2**63}",
            f"ID: want at most {2**63 - 1}, got {2**63}. Try 'outbox dead show --help'.",
        ),
        ("outbox dead replay", "want ids, a filter or --all, got nothing. Try 'outbox dead replay --help'."),
        (
            "outbox dead show first",
            "ID: want a whole number, got 'first'. Try 'outbox dead show --help'.",
        ),
    ],
)
def test_a_slip_is_one_sentence_that_says_what_was_meant(
    line: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    program, *arguments = line.split()
    assert _printed(arguments, capsys, program) == (64, "", f"{program}: {says}\n")
