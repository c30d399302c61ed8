"""``outbox result`` as people meet it."""

import json
from uuid import uuid4

import psycopg
import pytest

from outbox.shell.exits import CONFIGURATION, DONE, USAGE
from tests.integration.admin.test_cli import Command


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], migrated_database: str) -> Command:
    return Command(monkeypatch, capsys, migrated_database)


def test_what_handlers_returned_is_shown_for_people_and_programs(command: Command, migrated_database: str) -> None:
    event = uuid4()
    with psycopg.connect(migrated_database, autocommit=True) as connection:
        for group, handler, value in (("default", "bill", '{"charge": "ch_1"}'), ("other", "ship", '"déjà"')):
            connection.execute(
                "INSERT INTO consumer.result (event_id, group_name, handler, tenant, result)"
                " VALUES (%s, %s, %s, 'acme', %s)",
                (event, group, handler, value),
            )
        connection.execute("INSERT INTO consumer.group_start VALUES ('default', now())")
    code, shown = command("result", str(event))
    assert code == DONE
    assert all(text in shown for text in ("default", "bill", '{"charge": "ch_1"}', "other", "ship", "déjà"))
    code, shown = command("result", str(event), "--group", "default", "--json")
    (found,) = json.loads(shown)
    assert (code, found["handler"], found["tenant"], found["result"]) == (DONE, "bill", "acme", {"charge": "ch_1"})
    unknown = uuid4()
    assert command("result", str(unknown)) == (DONE, f"no result of event {unknown} is kept\n")
    assert command("result", str(unknown), "-g", "default") == (
        DONE,
        f"no result of event {unknown} is kept in group default\n",
    )
    assert command("result", str(unknown), "--json") == (DONE, "[]\n")
    code, shown = command("result", str(unknown), "-g", "ohter")
    assert (code, "group: want one of default, got 'ohter'" in shown) == (CONFIGURATION, True)
    assert command("result", "no-uuid")[0] == USAGE
