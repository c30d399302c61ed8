"""A role that was granted some tenants' dead letters decides about those alone, and the database holds the line."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

import psycopg
import pytest
from psycopg import sql

from consumer.store import dead, dead_list, operators
from consumer.store import replay as store
from consumer.store.dead_list import DeadFilter
from consumer.store.stored import Connection
from outbox.errors import ConfigError
from tests.integration.consumer.conftest import Connect
from tests.integration.consumer.test_dead import new_dead
from tests.support.services import fresh_name
from tests.support.waiting_events import GROUP, an_event, keyed

OPEN = DeadFilter(group=GROUP)
FORBIDDEN = [
    "INSERT INTO consumer.work SELECT * FROM consumer.work",
    "UPDATE consumer.dead SET tenant = 'acme'",
    "UPDATE consumer.dead SET resolution = NULL",
    "DELETE FROM consumer.dead",
    "SELECT body FROM consumer.dead",
    "SELECT headers FROM consumer.dead",
    "SELECT trace FROM consumer.dead_trace",
    "DELETE FROM consumer.audit",
    "UPDATE consumer.audit SET actor = 'somebody'",
    "INSERT INTO consumer.audit (actor, action, group_name, detail, role_name) VALUES ('', '', '', '{}', 'lead')",
    "INSERT INTO consumer.dead_operator (role_name, tenant, granted_by) VALUES (session_user, 'rival', '')",
    "SELECT consumer.resolve_dead('[]', 'replayed', '')",
    "SET ROLE postgres",
]


@dataclass(frozen=True)
class Desk:
    """The owner's connection, a limited role's, and a letter of the tenant that it was granted and one of another's."""

    owner: Connection
    operator: Connection
    role: str
    ours: int
    theirs: int


@pytest.fixture
async def desk(connect: Connect, migrated_database: str) -> AsyncIterator[Desk]:
    owner = await connect()
    role = fresh_name("operator")
    name = sql.Identifier(role)
    await owner.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'hunter2'").format(name))
    try:
        ours = await dead.put(owner, new_dead(an_event(tenant="acme")))
        theirs = await dead.put(owner, new_dead(an_event(tenant="rival")))
        await operators.grant(owner, role, ["acme"], actor="lead", payloads=False, traces=False)
        address = psycopg.conninfo.make_conninfo(migrated_database, user=role, password="hunter2")
        async with await psycopg.AsyncConnection.connect(address, autocommit=True) as operator:
            yield Desk(owner=owner, operator=operator, role=role, ours=ours, theirs=theirs)
    finally:
        await owner.execute(sql.SQL("DROP OWNED BY {}").format(name))
        await owner.execute(sql.SQL("DROP ROLE {}").format(name))


async def value(connection: Connection, query: str) -> object:
    row = await (await connection.execute(query.encode())).fetchone()
    return None if row is None else row[0]


async def test_an_operator_sees_replays_and_discards_its_tenants_letters_and_no_others(desk: Desk) -> None:
    listed = await dead_list.matching(desk.operator, replace(OPEN, state=None))
    assert [one.summary.tenant for one in listed] == ["acme"]
    assert await dead_list.count(desk.operator, OPEN) == (1, desk.ours)
    (group,) = await dead_list.groups(desk.operator, OPEN)
    assert (group.letters, group.tenants) == (1, 1)
    assert await dead_list.one(desk.operator, desk.theirs) is None

    both = [desk.ours, desk.theirs]
    resolved = await store.replay(desk.operator, GROUP, both, actor="zoë")
    assert (resolved.ids, resolved.refused) == ((desk.ours,), ())
    assert await value(desk.owner, "SELECT array_agg(tenant) FROM consumer.work") == ["acme"]
    (letter,) = await dead_list.matching(desk.operator, replace(OPEN, state=None))
    assert letter.outcome == "pending"  # told without a right to look at what waits
    await dead.put(desk.owner, new_dead(keyed(3, tenant="acme")))
    assert len((await store.discard(desk.operator, GROUP, [desk.theirs, desk.ours + 2], actor="zoë")).ids) == 1
    assert await value(desk.owner, "SELECT count(*) FROM consumer.dead WHERE resolution IS NULL") == 1


async def test_without_a_grant_nothing_is_seen_and_nothing_can_be_decided(desk: Desk) -> None:
    assert await operators.revoke(desk.owner, desk.role, None, actor="lead") == ["acme"]
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        await dead_list.count(desk.operator, OPEN)
    # A grant of the table alone opens nothing either.
    await desk.owner.execute(sql.SQL("GRANT USAGE ON SCHEMA consumer TO {}").format(sql.Identifier(desk.role)))
    await desk.owner.execute(sql.SQL("GRANT SELECT ON consumer.dead TO {}").format(sql.Identifier(desk.role)))
    assert await value(desk.operator, "SELECT count(*) FROM consumer.dead") == 0
    assert (await store.replay(desk.operator, GROUP, [desk.ours, desk.theirs], actor="zoë")).ids == ()
    assert await store.own(desk.operator, GROUP, "f", owner="me", actor="zoë") == 0
    assert await value(desk.owner, "SELECT count(*) FROM consumer.work") == 0


async def test_an_operator_can_neither_make_events_nor_read_them_nor_change_what_is_written_of_it(desk: Desk) -> None:
    for statement in FORBIDDEN:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            await desk.operator.execute(statement.encode())


async def test_payloads_and_traces_are_granted_apart_and_for_the_same_tenants(desk: Desk) -> None:
    await operators.grant(desk.owner, desk.role, ["acme"], actor="lead", payloads=True, traces=True)
    assert await value(desk.operator, "SELECT count(body) FROM consumer.dead") == 1
    assert await dead.trace(desk.operator, desk.ours) == "Traceback: ..."
    assert await dead.trace(desk.operator, desk.theirs) is None
    (found,) = await operators.every(desk.owner)
    assert (found.role, found.tenant, found.sees_payloads, found.sees_traces) == (desk.role, "acme", True, True)


async def test_the_audit_says_which_role_asked_whatever_name_was_given(desk: Desk) -> None:
    await store.replay(desk.operator, GROUP, [desk.ours], actor="the chief")
    query = "SELECT array_agg(actor || ' ' || role_name ORDER BY id) FROM consumer.audit WHERE action = 'dead.replay'"
    assert await value(desk.owner, query) == [f"the chief {desk.role}"]


async def test_members_of_a_role_that_was_granted_tenants_have_them_too(desk: Desk) -> None:
    """A role switched to counts as itself: rights are neither kept nor gained by it."""
    team = fresh_name("team")
    await desk.owner.execute(sql.SQL("CREATE ROLE {}").format(sql.Identifier(team)))
    try:
        await operators.grant(desk.owner, team, ["rival"], actor="lead", payloads=False, traces=False)
        member = sql.SQL("GRANT {} TO {}").format(sql.Identifier(team), sql.Identifier(desk.role))
        await desk.owner.execute(member)
        assert await dead_list.count(desk.operator, OPEN) == (2, desk.theirs)
        await desk.operator.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(team)))
        assert await dead_list.count(desk.operator, OPEN) == (1, desk.theirs)
        assert (await store.replay(desk.operator, GROUP, [desk.ours, desk.theirs], actor="zoë")).ids == (desk.theirs,)
    finally:
        await desk.owner.execute(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(team)))
        await desk.owner.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(team)))


async def test_a_role_that_sees_everybody_cannot_be_limited_and_an_unknown_one_is_named(desk: Desk) -> None:
    grant = sql.SQL("GRANT INSERT ON consumer.work TO {}").format(sql.Identifier(desk.role))
    await desk.owner.execute(grant)
    assert await value(desk.operator, "SELECT count(*) FROM consumer.dead") == 2  # as a consumer's own role
    for role, says in ((desk.role, "sees every tenant"), ("nobody_at_all", "which is none")):
        with pytest.raises(ConfigError, match=says):
            await operators.grant(desk.owner, role, ["acme"], actor="lead", payloads=False, traces=False)
