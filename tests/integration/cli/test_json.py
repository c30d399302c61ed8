"""``--json`` prints one document on standard output and nothing else: every command of ours, on a real database."""

import json
from typing import Final

import psycopg
import pytest

from outbox.shell.exits import CONFIGURATION, run_cli
from tests.support.commands import PROGRAMS, every
from tests.support.services import fresh_name

_NOBODY: Final = "019ad5f0-7c2e-7bb0-8d7e-3a5b5c1d2e4f"
#: Every command with --json, and the names in what it prints (of the first element, where that is a list of any).
#: They are promised: scripts read them.
_PRINTS: Final[dict[str, set[str]]] = {
    "outbox migrate": {"chain", "current", "newest", "is_current"},
    "outbox migrate --check": {"chain", "current", "newest", "is_current"},
    "outbox migrate --sql": {"sql"},
    "outbox group add late": {"group", "from"},
    "outbox group list": {"name", "started_at"},
    "outbox group remove late --yes": {
        *("group", "queues", "deferred", "has_tables", "work", "dead", "is_removed"),
    },
    "outbox config show": {"admin"},
    "outbox config check --process admin": {"processes", "not_looked_at", "problems"},
    "outbox config explain OUTBOX_LOG_LEVEL": {"name", "value", "from", "is_missing", "story"},
    "outbox doctor": {"findings", "oks", "warnings", "problems"},
    "outbox pause --tenant acme": {"group", "pauses", "weights"},
    "outbox paused": {"group", "pauses", "weights"},
    "outbox resume --tenant acme": {"group", "pauses", "weights"},
    "outbox tenant show acme": set(),
    "outbox tenant pause acme": {"group", "pauses", "weights"},
    "outbox tenant resume acme": {"group", "pauses", "weights"},
    "outbox tenant weight acme 2": {"group", "pauses", "weights"},
    "outbox tenant offboard acme --dry-run": {"tenant", "queues", "became"},
    f"outbox result {_NOBODY}": set(),
    "outbox deferred list": set(),
    "outbox deferred retry --all": {"retried", "removed", "voids", "refused"},
    "outbox deferred discard --all --dry-run": set(),
    "outbox dead list": set(),
    "outbox dead groups": set(),
    "outbox dead replay --all": {"replayed", "refused", "left"},
    "outbox dead discard --all --yes": {"would_discard", "ids"},
    "outbox dead operator list": set(),
    "outbox dead operator grant ROLE --tenant acme": {"role", "granted"},
    "outbox dead operator revoke ROLE": {"role", "revoked"},
    "outbox replay --from oldest": {"from", "to", "events", "groups"},
    "outbox replay list": set(),
    "outbox rebase --dry-run": {"is_rebased", "difference", "waiting"},
    "outbox-relay status": {
        *("at", "groups", "relays", "free_buckets", "scheduled", "scheduled_due", "next_scheduled_at", "slots"),
        *("leaving", "replays", "problems"),
    },
    "outbox-relay check": {"settings", "is_in_order"},
    "outbox-consumer check APP": {"settings", "event_types", "is_in_order"},
    "outbox-consumer handlers APP": {
        *("event_type", "handler", "payload", "version", "is_async", "is_isolated", "attempts", "deadline_s"),
    },
    "outbox-consumer status": set(),
}
#: They want what is not there in a fresh database; tests of their own hold what they print.
_ELSEWHERE: Final = {
    *("outbox dead show", "outbox dead own", "outbox deferred show", "outbox replay cancel", "outbox-consumer verify"),
    "outbox dev",
}
_APP: Final = "tests.scenarios.billing:consumer"


def test_every_command_with_json_is_held_here_or_says_why_not() -> None:
    held = {known.name for known in every() for line in _PRINTS if line.startswith(known.name)}
    wanted = {known.name for known in every() if "--json" in known.options}
    assert wanted - _ELSEWHERE <= held


def test_each_prints_one_document_with_the_names_that_it_promises(
    migrated_database: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    role = fresh_name("operator")
    monkeypatch.setenv("DATABASE_URL", migrated_database)
    monkeypatch.setenv("OUTBOX_BROKER", "postgres")
    with psycopg.connect(migrated_database, autocommit=True) as owner:
        owner.execute(f"CREATE ROLE {role}".encode())
        try:
            for line, names in _PRINTS.items():
                program, *arguments = line.replace("ROLE", role).replace("APP", _APP).split()
                with pytest.raises(SystemExit) as ended:
                    run_cli(PROGRAMS[program], arguments=[*arguments, "--json"], name=program)
                printed = capsys.readouterr()
                assert ended.value.code in {0, CONFIGURATION}, (line, printed)
                document = json.loads(printed.out)
                first = document[0] if isinstance(document, list) and document else document
                assert names <= set(first), (line, first)
        finally:
            owner.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())
