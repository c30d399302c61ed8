"""``outbox rebase`` as people meet it: what it finds, what it asks, what it did, and how it ends."""

from collections.abc import Iterator

import psycopg
import pytest

from outbox.naming import bucket_of, tenant_hash
from outbox.shell.exits import CONFIGURATION, DONE, TRY_AGAIN, USAGE
from tests.integration.admin.test_cli import Command

Foreign = psycopg.Connection[tuple[object, ...]]

_NOTHING = "the positions belong to this database: nothing to rebase\n"
_EMIT = """
    insert into outbox.event (
        id, bucket, tier, tenant, tenant_hash, type, data_version, source, content_type, payload)
    select gen_random_uuid(), %s, 1, 'acme', %s, 'order.placed', 1, 'shop', 'x', '' from generate_series(1, %s)"""


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], migrated_database: str) -> Command:
    return Command(monkeypatch, capsys, migrated_database)


@pytest.fixture
def foreign(migrated_database: str) -> Iterator[Foreign]:
    """A session on a database that has seven published events, five that one group lacks, and two that both lack."""
    hashed = tenant_hash("acme")
    with psycopg.connect(migrated_database, autocommit=True) as connection:
        connection.execute(_EMIT, (bucket_of(hashed), hashed, 7))
        connection.execute("select outbox.add_group('audit')")
        connection.execute(_EMIT, (bucket_of(hashed), hashed, 5))
        connection.execute(
            "update outbox.bucket set lo = pg_current_snapshot(), last_seq = default where group_name = 'default'"
        )
        connection.execute(_EMIT, (bucket_of(hashed), hashed, 2))
        connection.execute("update outbox.origin set system_identifier = 42")
        yield connection


def test_a_database_that_needs_none_is_told_so(command: Command) -> None:
    assert command("rebase") == (DONE, _NOTHING)
    assert command("rebase", "--dry-run") == (DONE, _NOTHING)
    assert command("rebase", "--yes") == (DONE, _NOTHING)


def test_it_tells_what_each_group_will_be_sent_before_it_asks_and_after_it_is_done(
    command: Command, foreign: Foreign
) -> None:
    code, found = command("rebase", "--dry-run")
    assert code == DONE
    difference, audit, default, again, nothing = found.splitlines()
    assert difference.startswith(
        "the positions belong to another database: want system identifier 42 as in the stored "
    )
    assert audit == "group audit    7 events to be published"
    assert default == "group default  2 events to be published"
    assert again.endswith(" are among them, and come again")
    assert nothing == "nothing was changed"
    # Nobody can be asked here: it has told what it would do, and does not do it.
    code, asked = command("rebase")
    assert (code, asked.splitlines()[:4]) == (USAGE, found.splitlines()[:4])
    assert "want --yes where nobody can be asked" in asked.splitlines()[4]
    assert (command("rebase", "--dry-run")) == (DONE, found)

    code, done = command("rebase", "--yes", "--actor", "zoë")
    assert code == DONE
    assert done.splitlines()[:3] == found.splitlines()[1:4]
    assert done.splitlines()[3] == "rebased 128 bases and 0 streams"
    assert done.splitlines()[4].endswith(" events were stamped anew; the dead row that each left is vacuum's to remove")
    assert command("rebase", "--yes") == (DONE, _NOTHING)
    row = foreign.execute("select actor, action, group_name, detail -> 'waiting' from outbox.audit").fetchall()
    assert row == [("zoë", "rebase", None, {"audit": 7, "default": 2})]


def test_what_stands_in_its_way_is_one_sentence_and_an_exit_code(command: Command, foreign: Foreign) -> None:
    foreign.execute("update outbox.bucket set expires_at = clock_timestamp() + interval '9 s' where bucket = 4")
    code, output = command("rebase", "--yes")
    assert (code, len(output.splitlines())) == (TRY_AGAIN, 1)
    assert "leases: want no relay at work, got 2 buckets held" in output
    foreign.execute("update outbox.bucket set expires_at = '-infinity'")
    code, output = command("group", "add", "late")
    assert (code, len(output.splitlines())) == (CONFIGURATION, 1)
    assert output.endswith("; stop the apps and run 'outbox rebase'\n")
