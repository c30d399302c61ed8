"""``outbox dead`` as people meet it: whose events failed alike, whose they are now, and what is decided about them."""

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from outbox.shell.exits import CONFIGURATION, DONE, USAGE
from tests.integration.admin.test_cli import Command
from tests.support.processes import ConsoleProcess, Processes
from tests.support.screens import on_terminal
from tests.support.wait import until

SECRET = "hunter2"
_SESSIONS = "pg_stat_activity WHERE datname = current_database() AND application_name = 'outbox'"
_INSERT = """
INSERT INTO consumer.dead (group_name, event_id, handlers, category, error_class, message, fingerprint, attempts,
    dead_at, tier, tenant, type, ledger_at, message_id, app_id, content_type, headers, body)
SELECT 'default', gen_random_uuid(), '{{bill}}', %(category)s, 'KeyError', 'no such order', %(fingerprint)s, 6,
       clock_timestamp() - make_interval(secs => %(age_s)s), 1, %(tenant)s, %(type)s, clock_timestamp(), 'm', 'shop',
       'application/json', '{{"ce-dataversion": "1"}}', convert_to(%(body)s, 'UTF8')
FROM generate_series(1, %(count)s) RETURNING id, event_id"""


class Letters:
    """A database with dead letters in it."""

    def __init__(self, connection: "psycopg.Connection[tuple[object, ...]]") -> None:
        self._connection = connection

    def add(
        self,
        *,
        count: int = 1,
        tenant: str = "acme",
        event_type: str = "order.placed",
        category: str = "exhausted",
        fingerprint: str = "f1",
        age_s: float = 0.0,
    ) -> list[tuple[int, str]]:
        """Bury *count* events that failed alike; their letters' numbers and their ids."""
        values = {
            "count": count,
            "tenant": tenant,
            "type": event_type,
            "category": category,
            "fingerprint": fingerprint,
            "age_s": age_s,
            "body": json.dumps({"card": SECRET}),
        }
        rows = self._connection.execute(_INSERT.replace("{{", "{").replace("}}", "}").encode(), values).fetchall()
        return [(int(str(number)), str(event)) for number, event in rows]

    def rows(self, query: str) -> list[tuple[object, ...]]:
        """What *query* returns, if it returns anything."""
        cursor = self._connection.execute(query.encode())
        return cursor.fetchall() if cursor.description else []

    def count(self, what: str) -> int:
        """How many rows *what* has."""
        return int(str(self.rows(f"SELECT count(*) FROM {what}")[0][0]))


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], migrated_database: str) -> Command:
    return Command(monkeypatch, capsys, migrated_database)


@pytest.fixture
def letters(migrated_database: str) -> Iterator[Letters]:
    with psycopg.connect(migrated_database, autocommit=True) as connection:
        yield Letters(connection)


def listed(command: Command, *arguments: str) -> list[int]:
    code, output = command("dead", "list", "--json", *arguments)
    assert code == DONE, output
    return [one["id"] for one in json.loads(output)]


def test_every_way_to_choose_leaves_what_fits_in_every_command(command: Command, letters: Letters) -> None:
    letters.add(age_s=60)
    ((wanted, event),) = letters.add(
        tenant="tiny", event_type="order.paid", category="permanent", fingerprint="f2", age_s=7200
    )
    choices = [
        [str(wanted)],
        ["--event", event],
        ["--tenant", "tiny"],
        ["--type", "order.paid"],
        ["--category", "permanent"],
        ["--fingerprint", "f2"],
        ["--older-than", "1h"],
    ]
    for chosen in choices:
        assert listed(command, *chosen) == [wanted], chosen
        assert command("dead", "replay", "--dry-run", *chosen) == (DONE, f"would replay 1 dead letter: {wanted}\n")
        assert command("dead", "discard", "--dry-run", *chosen) == (DONE, f"would discard 1 dead letter: {wanted}\n")
        code, output = command("dead", "export", *chosen)
        assert (code, [json.loads(line)["id"] for line in output.splitlines()]) == (DONE, [wanted])
        code, output = command("dead", "groups", "--json", *chosen)
        assert [one["fingerprint"] for one in json.loads(output)] == ["f2"]
    assert listed(command, "--newer-than", "1h", "--older-than", "10s") == [wanted - 1]


def test_what_makes_no_sense_is_usage(command: Command) -> None:
    for arguments in (
        ["list", "--older-than", "2 weeks"],
        ["replay", "--newer-than", "-1h"],
        ["list", "--limit", "0"],
        ["list", "--before", "0"],
        ["replay", "9223372036854775808"],
        ["show", "9223372036854775808"],
        ["own", "f1", "--owner", " "],
        ["own", "f1", "--owner", "a" * 201],
    ):
        code, output = command("dead", *arguments)
        assert (code, len(output.splitlines())) == (USAGE, 1), output
    assert "want an age as 90s, 15m, 2h or 7d, got '2 weeks'" in command("dead", "list", "--older-than", "2 weeks")[1]


def test_where_the_default_group_has_none_the_groups_that_have_some_are_named(
    command: Command, letters: Letters
) -> None:
    letters.add(count=2)
    letters.rows("UPDATE consumer.dead SET group_name = 'billing'")
    hint = "group billing has 2 open dead letters: --group billing\n"
    for verb in ("groups", "list"):
        assert command("dead", verb) == (DONE, f"no open dead letters in group default\n{hint}")
        assert hint not in command("dead", verb, "--group", "billing")[1]
    assert command("dead", "replay", "--all") == (DONE, f"replayed 0, refused 0\n{hint}")


def test_pages_of_a_list_say_how_to_go_on(command: Command, letters: Letters) -> None:
    numbers = [number for number, _ in letters.add(count=5)]
    code, output = command("dead", "list", "--limit", "2")
    assert (code, output.splitlines()[-1]) == (DONE, f"more may follow: --before {numbers[3]}")
    assert listed(command, "--before", str(numbers[3]), "--limit", "2") == [numbers[2], numbers[1]]


def test_what_failed_alike_is_one_group_with_its_owner_until_it_is_nobodys(command: Command, letters: Letters) -> None:
    letters.add(count=3)
    letters.add(tenant="tiny")
    letters.add(fingerprint="f2")
    code, output = command("dead", "own", "f1", "--owner", "team-billing", "--actor", "zoë")
    assert (code, output) == (DONE, "f1, 4 open: team-billing looks after them\n")
    above, below = command("dead", "groups")[1].splitlines()[1:]
    assert all(word in above for word in ("f1", "4", "2", "exhausted", "order.placed", "team-billing", "no such order"))
    assert "f2" in below
    assert "team-billing" not in below
    assert json.loads(command("dead", "list", "--json", "--fingerprint", "f1")[1])[0]["owner"] == "team-billing"
    assert command("dead", "own", "f1", "--nobody")[0] == DONE
    assert letters.count("consumer.dead_owner") == 0
    audit = letters.rows("SELECT actor, action, detail->>'owner' FROM consumer.audit ORDER BY id LIMIT 1")
    assert audit == [("zoë", "dead.own", "team-billing")]
    assert "want the fingerprint of open dead letters" in command("dead", "own", "f9", "--owner", "me")[1]
    assert "want --owner NAME or --nobody, got neither" in command("dead", "own", "f1")[1]


def test_a_replayed_letter_tells_how_it_went(command: Command, letters: Letters) -> None:
    (pending, _), (done, done_event), (again, event) = letters.add(count=3)
    assert command("dead", "replay", "--all", "--actor", "zoë") == (DONE, "replayed 3, refused 0\n")
    letters.rows(f"DELETE FROM consumer.work WHERE event_id IN ('{event}', '{done_event}')")
    ((newer, _),) = letters.add()
    letters.rows(f"UPDATE consumer.dead SET event_id = '{event}' WHERE id = {newer}")
    _, output = command("dead", "list", "--state", "replayed")
    by_id = {int(line.split()[0]): line for line in output.splitlines()[1:]}
    assert "replayed by zoë: pending" in by_id[pending]
    assert "replayed by zoë: done" in by_id[done]
    assert f"replayed by zoë: dead again as {newer}" in by_id[again]
    assert listed(command) == [newer]
    assert json.loads(command("dead", "show", str(newer))[1])["earlier"] == 1


def test_payloads_are_shown_and_exported_only_when_asked_for_and_the_audit_tells(
    command: Command, letters: Letters, tmp_path: Path
) -> None:
    ((number, _),) = letters.add()
    plain = [command("dead", *one)[1] for one in (["list"], ["groups"], ["show", str(number)], ["export"])]
    assert not any(SECRET in output for output in plain)
    assert json.loads(plain[3])["payload_bytes"] == len(json.dumps({"card": SECRET}))
    assert json.loads(json.loads(command("dead", "show", str(number), "--payload")[1])["payload"]) == {"card": SECRET}
    file = tmp_path / "letters.jsonl"
    assert command("dead", "export", "--payload", "-o", str(file)) == (DONE, f"exported 1 to {file}\n")
    (exported,) = [json.loads(line) for line in file.read_text().splitlines()]
    assert (exported["id"], exported["headers"]) == (number, {"ce-dataversion": "1"})
    assert SECRET in exported["payload"]
    assert file.stat().st_mode & 0o077 == 0
    audit = letters.rows("SELECT action, detail->>'payload' FROM consumer.audit ORDER BY id")
    assert audit == [("dead.export", "false"), ("dead.show", "true"), ("dead.export", "true")]


def test_a_trace_is_shown_line_by_line_and_characters_as_themselves(command: Command, letters: Letters) -> None:
    ((number, _),) = letters.add(tenant="caf\u00e9")
    letters.rows(f"INSERT INTO consumer.dead_trace (dead_id, trace) VALUES ({number}, E'KeyError\\n  in bill\\n')")
    output = command("dead", "show", str(number), "--trace")[1]
    assert '"tenant": "caf\u00e9"' in output
    assert json.loads(output)["trace"] == ["KeyError", "  in bill"]
    assert (
        json.loads(command("dead", "show", str(number), "--trace", "--json")[1])["trace"] == json.loads(output)["trace"]
    )


def test_an_export_that_fails_leaves_the_file_as_it_was_and_is_in_the_audit(
    command: Command, letters: Letters, tmp_path: Path
) -> None:
    file = tmp_path / "letters.jsonl"
    file.write_text("yesterday's")
    letters.add()
    letters.rows("DROP FUNCTION consumer.is_replay_pending")  # what a list asks for
    assert command("dead", "export", "--payload", "-o", str(file))[0] == CONFIGURATION
    assert file.read_text() == "yesterday's"
    assert list(tmp_path.iterdir()) == [file]
    assert letters.rows("SELECT action, detail->>'letters' FROM consumer.audit") == [("dead.export", "1")]
    code, output = command("dead", "export", "-o", str(tmp_path / "nowhere" / "x"))
    assert (code, "want a file that can be written" in output) == (CONFIGURATION, True)


def test_letters_by_the_ten_thousand_are_listed_grouped_exported_and_replayed(
    command: Command, letters: Letters, tmp_path: Path
) -> None:
    letters.add(count=19_000)
    letters.add(count=1_000, fingerprint="f2")
    letters.rows("ANALYZE consumer.dead")
    assert len(listed(command, "--fingerprint", "f2", "--limit", "10")) == 10
    assert [one["letters"] for one in json.loads(command("dead", "groups", "--json")[1])] == [19_000, 1_000]
    file = tmp_path / "letters.jsonl"
    assert command("dead", "export", "-o", str(file))[1] == f"exported 20,000 to {file}\n"
    with file.open() as lines:
        numbers = [json.loads(line)["id"] for line in lines]
    assert numbers == sorted(set(numbers))
    assert len(numbers) == 20_000
    code, output = command("dead", "replay", "--all", "--dry-run")
    assert output.endswith(" and 19,980 more\n")
    code, output = command("dead", "replay", "--all")
    assert (code, "want --yes where nobody can be asked" in output) == (USAGE, True)
    replay = ("dead", "replay", "--fingerprint", "f2", "--per-s", "100000", "--yes")
    assert command(*replay, "--limit", "999") == (DONE, "replayed 999, refused 0\n")
    assert command(*replay) == (DONE, "replayed 1, refused 0\n")
    assert letters.count("consumer.work") == letters.count("(SELECT DISTINCT event_id FROM consumer.work) w") == 1_000


async def test_a_replay_that_is_killed_in_the_middle_loses_and_doubles_nothing_when_it_is_run_again(
    letters: Letters, migrated_database: str, processes: Processes
) -> None:
    letters.add(count=60)
    settings = {"DATABASE_URL": migrated_database}
    for end in (ConsoleProcess.kill, ConsoleProcess.interrupt):
        before = letters.count("consumer.work")
        process = processes.start("outbox", "dead", "replay", "--all", "--per-s", "5", settings=settings)

        def has_begun(before: int = before) -> bool:
            return letters.count("consumer.work") > before

        await until(has_begun, what="the first to be replayed")
        end(process)
        await process.ended()
        # What a killed process asked for last may still be done.
        await until(lambda: not letters.count(_SESSIONS), what="its session to end")
    assert re.search(r"replayed \d+, refused 0, left \d+: run it again\n", process.output), process.output
    assert 0 < letters.count("consumer.work") < 60
    assert letters.count("consumer.work") == letters.count("consumer.dead WHERE resolution = 'replayed'")
    process = processes.start("outbox", "dead", "replay", "--all", "--per-s", "1000", settings=settings)
    assert await process.ended() == DONE, process.output
    assert letters.count("consumer.work") == 60
    replayed = letters.rows("SELECT sum(jsonb_array_length(detail->'ids')) FROM consumer.audit")
    assert replayed == [(60,)]


def test_a_terminal_sees_how_far_a_replay_is(letters: Letters, migrated_database: str) -> None:
    letters.add(count=30)
    ours, theirs = pty.openpty()
    environment = {"PATH": os.environ["PATH"], "DATABASE_URL": migrated_database, "TERM": "xterm"}
    command = [str(Path(sys.executable).with_name("outbox")), "dead", "replay", "--all", "--per-s", "100"]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    printed = b""
    try:
        while chunk := os.read(ours, 4096):
            printed += chunk
    except OSError:  # the other side is closed
        os.close(ours)
    assert process.wait(timeout=20) == DONE, printed
    assert b"30/30" in printed
    assert b"replayed 30, refused 0" in printed


def test_a_replay_of_nothing_shows_no_progress(migrated_database: str, tmp_path: Path) -> None:
    settings = {"DATABASE_URL": migrated_database}
    ended = on_terminal("outbox", "dead", "replay", "--type", "none", cwd=tmp_path, settings=settings)
    assert (ended.code, ended.screen.split("\r\n")) == (DONE, ["replayed 0, refused 0", ""])
