"""``outbox deferred`` as people meet it: whose events could not be published, why, and what they decide about them."""

import json
from collections.abc import Iterator
from typing import LiteralString
from uuid import UUID, uuid4

import psycopg
import pytest

from outbox.event import Tier
from outbox.naming import Lane, bucket_of, tenant_hash
from outbox.shell.exits import CONFIGURATION, DONE, USAGE
from tests.integration.admin.test_cli import Command

_SECRET = "hunter2"
_INSERT = """
insert into outbox.deferred (group_name, state, category, reason, attempts, due_at, token, id, bucket, tier, tenant,
    tenant_hash, type, data_version, source, content_type, payload, ordering_key, key_number, key_first, actor)
values (%s, %s, %s, 'no such queue', 7, now() + interval '1 hour', %s, %s, %s, 1, %s, %s, %s, 1, 'shop',
    'application/json', %s, %s, %s, false, 'zoë')"""


class Deferred:
    """A database with deferred events in it."""

    def __init__(self, connection: "psycopg.Connection[tuple[object, ...]]") -> None:
        self._connection = connection

    def add(
        self,
        *,
        group: str = "default",
        state: str = "dead",
        category: str = "unroutable",
        tenant: str = "acme",
        event_type: str = "order.placed",
        number: int | None = None,
        token: int | None = None,
        event_id: UUID | None = None,
    ) -> UUID:
        """Put one aside; with a *number* it has an ordering key."""
        one, hashed = event_id or uuid4(), tenant_hash(tenant)
        key = None if number is None else "order-1"
        values = (group, state, category, token, one, bucket_of(hashed), tenant, hashed, event_type)
        self._connection.execute(_INSERT, (*values, _SECRET.encode(), key, number))
        return one

    def execute(self, statement: LiteralString, values: tuple[object, ...]) -> None:
        """Run *statement*."""
        self._connection.execute(statement, values)

    def rows(self, query: str) -> list[tuple[object, ...]]:
        """What *query* returns."""
        return self._connection.execute(query.encode()).fetchall()


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], migrated_database: str) -> Command:
    return Command(monkeypatch, capsys, migrated_database)


@pytest.fixture
def deferred(migrated_database: str) -> Iterator[Deferred]:
    with psycopg.connect(migrated_database, autocommit=True) as connection:
        connection.execute("select outbox.add_group('billing')")
        yield Deferred(connection)


def test_the_list_says_whose_what_and_why_and_shows_no_payload(command: Command, deferred: Deferred) -> None:
    first = deferred.add(tenant="acme", category="too_large")
    second = deferred.add(tenant="tiny", state="retry", group="billing")
    code, output = command("deferred", "list")
    assert code == DONE
    above, below = output.splitlines()[1:]
    assert all(word in above for word in (str(second), "billing", "retry", "tiny", "unroutable", "no such queue"))
    assert all(word in below for word in (str(first), "default", "dead", "acme", "order.placed", "too_large", "7"))
    code, output = command("deferred", "list", "--json")
    listed = json.loads(output)
    assert [one["id"] for one in listed] == [str(second), str(first)]
    assert (listed[1]["tier"], listed[1]["category"], listed[1]["payload_bytes"]) == ("standard", "too_large", 7)
    assert _SECRET not in output


@pytest.mark.parametrize(
    "arguments",
    [
        ["--group", "billing"],
        ["--tenant", "tiny"],
        ["--type", "order.paid"],
        ["--category", "forbidden"],
        ["--state", "retry"],
    ],
    ids=" ".join,
)
def test_every_filter_leaves_what_fits(command: Command, deferred: Deferred, arguments: list[str]) -> None:
    deferred.add()
    wanted = deferred.add(group="billing", tenant="tiny", event_type="order.paid", category="forbidden", state="retry")
    assert [one["id"] for one in json.loads(command("deferred", "list", "--json", *arguments)[1])] == [str(wanted)]


def test_show_prints_the_payload_when_it_is_asked_for_and_wants_a_group_where_several_have_it(
    command: Command, deferred: Deferred
) -> None:
    one = deferred.add(number=3)
    code, output = command("deferred", "show", str(one))
    assert (code, _SECRET in output) == (DONE, False)
    shown = json.loads(output)
    assert (shown["ordering_key"], shown["key_number"], shown["actor"]) == ("order-1", 3, "zoë")
    assert json.loads(command("deferred", "show", str(one), "--payload")[1])["payload"] == _SECRET
    deferred.add(event_id=one, group="billing")
    code, output = command("deferred", "show", str(one))
    assert (code, "want --group, since it is deferred in several: billing, default" in output) == (CONFIGURATION, True)
    assert json.loads(command("deferred", "show", str(one), "--group", "billing")[1])["group"] == "billing"


def test_a_retry_begins_with_the_first_attempt_at_once_and_is_audited(command: Command, deferred: Deferred) -> None:
    dead, other = deferred.add(), deferred.add(tenant="other")
    assert command("deferred", "retry", str(dead), "--actor", "zoë") == (DONE, "due now: 1, refused: 0\n")
    rows = deferred.rows("select id, state, attempts, due_at <= clock_timestamp() from outbox.deferred order by tenant")
    assert rows == [(dead, "retry", 0, True), (other, "dead", 7, False)]
    ((actor, action, group, detail),) = deferred.rows("select actor, action, group_name, detail from outbox.audit")
    assert (actor, action, group) == ("zoë", "deferred.retry", None)
    assert detail["retried"] == [{"group": "default", "id": str(dead)}]  # type: ignore[index]


def test_a_retry_makes_no_queue_of_an_off_boarded_tenant_again_unless_it_is_told_to(
    command: Command, deferred: Deferred
) -> None:
    gone, back, stays = deferred.add(tenant="gone"), deferred.add(tenant="back"), deferred.add(tenant="stays")
    for tenant in ("gone", "back"):
        lane = Lane(group="default", tier=Tier.STANDARD, tenant=tenant)
        detail = json.dumps({"tenant": tenant, "tier": "standard", "queue": lane.queue})
        deferred.execute(
            "insert into outbox.audit (actor, action, group_name, detail) values (%s, %s, %s, %s)",
            ("ann", "tenant.offboarded", "default", detail),
        )
    deferred.execute("insert into outbox.lane (group_name, tier, tenant) values (%s, %s, %s)", ("default", 1, "back"))
    code, output = command("deferred", "retry", "--all")
    because = "its tenant was off-boarded, and a retry would make its queue again; discard it, or add --revive"
    assert (code, output) == (DONE, f"{gone} of group default stays: {because}\ndue now: 2, refused: 1\n")
    states = "select id from outbox.deferred where state = 'retry'"
    assert {one for (one,) in deferred.rows(states)} == {back, stays}
    assert command("deferred", "retry", str(gone), "--revive") == (DONE, "due now: 1, refused: 0\n")


def test_a_discarded_event_is_gone_and_one_with_a_key_leaves_a_void_without_its_body(
    command: Command, deferred: Deferred
) -> None:
    deferred.add()
    keyed = deferred.add(number=3)
    said = "discarded: 2, leaving a void: 1, refused: 0\n"
    code, output = command("deferred", "discard", "--all", "--yes", "--actor", "zoë")
    assert (code, output.endswith(said)) == (DONE, True)
    rows = deferred.rows(
        "select id, state, attempts, due_at <= clock_timestamp(), payload, content_type, actor, key_number"
        " from outbox.deferred"
    )
    assert rows == [(keyed, "void", 0, True, b"", "", None, 3)]
    assert deferred.rows("select actor, action from outbox.audit") == [("zoë", "deferred.discard")]
    # What is discarded is discarded once, and is no event again.
    code, output = command("deferred", "discard", str(keyed), "--yes")
    assert (code, str(keyed) in output) == (CONFIGURATION, True)
    assert command("deferred", "discard", "--all", "--yes") == (DONE, "would discard 0 deferred events\n")
    assert command("deferred", "retry", str(keyed)) == (DONE, "due now: 1, refused: 0\n")
    assert deferred.rows("select state from outbox.deferred") == [("void",)]


def test_nothing_is_discarded_unasked_by_a_dry_run_or_beside_the_filter(command: Command, deferred: Deferred) -> None:
    dead, retried = deferred.add(), deferred.add(state="retry")
    before = deferred.rows("select * from outbox.deferred order by id")
    for verb in ("retry", "discard"):
        code, output = command("deferred", verb, str(dead), "--dry-run")
        assert (code, output.splitlines()[0], str(dead) in output) == (DONE, f"would {verb} 1 deferred event", True)
        assert [one["id"] for one in json.loads(command("deferred", verb, str(dead), "--dry-run", "--json")[1])]
    code, output = command("deferred", "discard", str(dead))
    assert (code, "want --yes where nobody can be asked" in output) == (USAGE, True)
    assert deferred.rows("select * from outbox.deferred order by id") == before
    assert not deferred.rows("select from outbox.audit")
    # A filter means the dead, unless it is told otherwise.
    resolved = json.loads(command("deferred", "discard", "--tenant", "acme", "--yes", "--json")[1])
    assert resolved["removed"] == [{"group": "default", "id": str(dead)}]
    assert deferred.rows("select id from outbox.deferred") == [(retried,)]
    command("deferred", "discard", "--tenant", "acme", "--state", "retry", "--yes")
    assert not deferred.rows("select from outbox.deferred")


@pytest.mark.parametrize("verb", ["retry", "discard"])
def test_what_a_relay_has_in_hand_is_refused_and_what_a_dead_one_had_is_not(
    command: Command, deferred: Deferred, verb: str
) -> None:
    held = deferred.add(state="retry", token=7)
    deferred.rows("update outbox.bucket set token = 7, expires_at = now() + interval '1 hour' returning bucket")
    code, output = command("deferred", verb, str(held), *(["--yes"] if verb == "discard" else []), "--json")
    resolved = json.loads(output)
    assert (code, resolved["refused"][0]["id"]) == (DONE, str(held))
    assert "a relay is sending it at this moment" in resolved["refused"][0]["because"]
    assert deferred.rows("select state, attempts, token from outbox.deferred") == [("retry", 7, 7)]
    deferred.rows("update outbox.bucket set expires_at = now() - interval '1 second' returning bucket")
    code, output = command("deferred", verb, str(held), *(["--yes"] if verb == "discard" else []), "--json")
    assert json.loads(output)["refused"] == []
    assert not deferred.rows("select from outbox.deferred where token is not null")


def test_what_another_operator_has_locked_is_refused_and_not_waited_for(
    command: Command, deferred: Deferred, migrated_database: str
) -> None:
    locked, free = deferred.add(), deferred.add()
    with psycopg.connect(migrated_database) as other:
        other.execute("select from outbox.deferred where id = %s for update", (locked,))
        code, output = command("deferred", "discard", "--all", "--yes", "--json")
        resolved = json.loads(output)
    assert code == DONE
    assert [one["id"] for one in resolved["refused"]] == [str(locked)]
    assert [one["id"] for one in resolved["removed"]] == [str(free)]


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["retry"], USAGE, "want ids, a filter or --all, got nothing"),
        (["discard", "--all", "--state", "void"], USAGE, "want retry or dead, got void"),
        (["show", "seven"], USAGE, "ID: want a UUID, got 'seven'"),
        (["list", "--group", "billling"], CONFIGURATION, "group: want one of billing, default, got 'billling'"),
        (["list", "--category", "odd"], USAGE, "--category: want one of unroutable, too_large"),
        (["retry", "01890a5d-ac96-774b-bcce-b302099a8057"], CONFIGURATION, "want deferred events (retry or dead or"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
@pytest.mark.usefixtures("deferred")
def test_what_cannot_be_done_is_one_sentence(command: Command, arguments: list[str], code: int, says: str) -> None:
    found, output = command("deferred", *arguments)
    assert (found, output.splitlines()[-1].count(says)) == (code, 1), output
