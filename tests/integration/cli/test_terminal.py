"""The commands on a terminal and in a pipe, as the real programs."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from tests.support.screens import Ended, environment, on_terminal, piped, script

_PROGRAMS = ("outbox", "outbox-relay", "outbox-consumer")
_NO = 130
_LONG = "x" * 300


def _asked_to_remove(database: str, tmp_path: Path, *, answer: str) -> Ended:
    given = {"DATABASE_URL": database}
    return on_terminal("outbox", "migrate", "--down", cwd=tmp_path, types={"[y/N]": answer}, settings=given)


def test_a_question_says_how_much_would_go_and_no_changes_nothing(migrated_database: str, tmp_path: Path) -> None:
    ended = on_terminal(
        *("outbox", "migrate", "--down"),
        cwd=tmp_path,
        types={"[y/N]": "n\n"},
        settings={"DATABASE_URL": migrated_database},
    )
    assert ended.code == _NO
    assert "tables of consumer and outbox and outbox_broker with about" in ended.screen
    assert "nothing was changed" in ended.screen
    assert piped("outbox", "migrate", "--check", cwd=tmp_path, DATABASE_URL=migrated_database).returncode == 0


def test_a_question_is_no_part_of_the_output_and_yes_goes_on(migrated_database: str, tmp_path: Path) -> None:
    ended = on_terminal(
        *("outbox", "migrate", "--down", "--json"),
        cwd=tmp_path,
        types={"[y/N]": "y\n"},
        out_is_piped=True,
        settings={"DATABASE_URL": migrated_database},
    )
    assert ended.code == 0, ended.screen
    assert [chain["current"] for chain in json.loads(ended.out)] == [None, None, None]
    assert "removing tables" in ended.screen


def test_ctrl_c_at_a_question_ends_with_130_and_no_traceback(migrated_database: str, tmp_path: Path) -> None:
    ended = on_terminal(
        *("outbox", "migrate", "--down"),
        cwd=tmp_path,
        types={"[y/N]": "\x03"},
        settings={"DATABASE_URL": migrated_database},
    )
    assert ended.code == _NO
    assert "Traceback" not in ended.screen


def test_where_nobody_can_be_asked_it_says_how_much_and_wants_yes(migrated_database: str, tmp_path: Path) -> None:
    ended = piped("outbox", "migrate", "--down", cwd=tmp_path, DATABASE_URL=migrated_database)
    assert (ended.returncode, ended.stdout) == (64, "")
    assert "tables of consumer and outbox and outbox_broker" in ended.stderr
    assert "want --yes where nobody can be asked" in ended.stderr


def test_progress_is_shown_on_a_terminal_alone(database: str, tmp_path: Path) -> None:
    shown = on_terminal("outbox", "migrate", cwd=tmp_path, out_is_piped=True, settings={"DATABASE_URL": database})
    assert "migrating" in shown.screen
    assert "migrating" not in shown.out
    again = piped("outbox", "migrate", cwd=tmp_path, DATABASE_URL=database)
    assert again.stderr == ""


@pytest.mark.parametrize(
    ("settings", "is_coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
def test_a_terminal_gets_colours_unless_it_or_somebody_does_not_want_them(
    settings: dict[str, str], is_coloured: bool, migrated_database: str, tmp_path: Path
) -> None:
    settings |= {"DATABASE_URL": migrated_database}
    ended = on_terminal("outbox-relay", "status", cwd=tmp_path, settings=settings)
    assert ended.code == 0, ended.screen
    assert (re.search(r"\x1b\[(?:\d;)*3[0-7]m", ended.screen) is not None) is is_coloured


def test_a_pipe_gets_colours_only_if_somebody_insists(migrated_database: str, tmp_path: Path) -> None:
    plain = piped("outbox-relay", "status", cwd=tmp_path, DATABASE_URL=migrated_database)
    assert "\x1b" not in plain.stdout
    forced = piped("outbox-relay", "status", cwd=tmp_path, DATABASE_URL=migrated_database, FORCE_COLOR="1")
    assert "\x1b[" in forced.stdout


def test_a_pipe_gets_whole_rows_and_a_terminal_all_of_their_text(migrated_database: str, tmp_path: Path) -> None:
    with psycopg.connect(migrated_database, autocommit=True) as owner:
        owner.execute(
            "INSERT INTO consumer.control (group_name, kind, tenant, source, actor, reason)"
            " VALUES ('default', 'pause', 'acme', 'operator', 'ann', %s)",
            (_LONG,),
        )
    for settings in ({}, {"FORCE_COLOR": "1"}, {"COLUMNS": "40"}):
        lines = piped("outbox", "paused", cwd=tmp_path, DATABASE_URL=migrated_database, **settings).stdout.splitlines()
        assert any(_LONG in line for line in lines), (settings, lines)
    screen = on_terminal("outbox", "paused", cwd=tmp_path, settings={"DATABASE_URL": migrated_database}).screen
    assert screen.count("x") >= len(_LONG)
    assert "…" not in screen


def test_a_settings_name_is_shown_whole_on_a_narrow_terminal(tmp_path: Path) -> None:
    settings = {"DATABASE_URL": f"postgresql://shop@{'x' * 60}/shop", "OUTBOX_BROKER": "postgres"}
    screen = on_terminal("outbox", "config", "show", "-p", "relay", cwd=tmp_path, settings=settings).screen
    assert "OUTBOX_RELAY_ORDERING_RETENTION_DAYS  30 " in screen
    assert screen.count("x") >= 60


@pytest.mark.parametrize("program", _PROGRAMS)
def test_help_imports_neither_sqlalchemy_nor_a_driver(program: str) -> None:
    package = {"outbox": "outbox_admin", "outbox-relay": "relay", "outbox-consumer": "consumer"}[program]
    asked = f"import sys; sys.argv = ['x', '--help']; import {package}.cli as c\ntry: c.main()\nexcept SystemExit: pass"
    heavy = "; print(sorted({'sqlalchemy', 'pydantic', 'psycopg', 'aiormq', 'structlog'} & set(sys.modules)))"
    ended = subprocess.run(
        [sys.executable, "-c", f"{asked}\nimport sys{heavy}"], capture_output=True, text=True, check=True, timeout=60
    )
    assert ended.stdout.splitlines()[-1] == "[]"


# ------------------------------------------------------------------ completion

_BASH = """
eval "$({variable}=source_bash {program})"
COMP_WORDS=({words}) COMP_CWORD={at}
{function} {program}
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


def _completed(words: str, tmp_path: Path, **settings: str) -> list[str]:
    program = words.split(maxsplit=1)[0]
    name = program.replace("-", "_").upper()
    at = len(words.split()) - (0 if words.endswith(" ") else 1)
    text = _BASH.format(
        variable=f"_{name}_COMPLETE",
        program=script(program),
        words=words if not words.endswith(" ") else f"{words}''",
        at=at,
        function=f"_{program.replace('-', '_')}_completion",
    )
    # Completion asks the program by the name that was typed.
    known = environment(**settings) | {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    ended = subprocess.run(
        ["bash", "-c", text], cwd=tmp_path, env=known, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.stderr == "", ended.stderr
    return [line.split("\t")[0] for line in ended.stdout.splitlines() if line]


@pytest.mark.parametrize(
    ("words", "among"),
    [
        ("outbox de", ["deferred", "dead", "demo"]),
        ("outbox dead re", ["replay"]),
        ("outbox dead list --cat", ["--category"]),
        ("outbox dead list --category per", ["permanent"]),
        ("outbox pause --tier i", ["interactive"]),
        ("outbox-relay ch", ["check"]),
        ("outbox-consumer run --broker p", ["postgres"]),
    ],
)
def test_bash_completes_commands_options_and_values(words: str, among: list[str], tmp_path: Path) -> None:
    assert set(among) <= set(_completed(words, tmp_path))


def test_groups_are_completed_from_the_configured_database_and_from_no_other(
    migrated_database: str, tmp_path: Path
) -> None:
    words = "outbox dead list --group d"
    assert _completed(words, tmp_path, DATABASE_URL=migrated_database) == ["default"]
    assert _completed(words, tmp_path) == []
    assert _completed(words, tmp_path, DATABASE_URL="postgresql://postgres@127.0.0.1:1/nowhere") == []


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_can_read_what_is_printed_for_them(shell: str, tmp_path: Path) -> None:
    found = shutil.which(shell)
    if found is None:
        pytest.skip(f"{shell} is not installed")
    source = subprocess.run(
        [script("outbox")],
        env=environment(_OUTBOX_COMPLETE=f"source_{shell}"),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
    assert "_OUTBOX_COMPLETE" in source
    (tmp_path / "completion").write_text(source)
    ended = subprocess.run([found, "-n", "completion"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
