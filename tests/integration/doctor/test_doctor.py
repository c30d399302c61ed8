"""Each fault is made for real, and the doctor names it with its remedy."""

import dataclasses
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from pydantic import SecretStr

from consumer.rabbitmq.connection import Address, close, connect, open_channel
from outbox.errors import BrokerUnavailable
from outbox.event import Tier
from outbox.naming import Lane
from outbox.shell.exits import CONFIGURATION, DONE, run_cli
from outbox.topology import QueueKind, group_queues, lane_arguments
from outbox_admin.cli import app
from outbox_admin.doctor import management_facts, postgres_facts, sessions
from outbox_admin.doctor.examination import Patient, examine
from outbox_admin.doctor.finding import Finding, Level
from outbox_admin.doctor.needs import Process
from outbox_admin.embedded import PostgresNode
from outbox_admin.settings import AdminSettings
from tests.integration.admin.test_dead_cli import Letters
from tests.integration.relay.copies import copied, same
from tests.support.processes import Processes
from tests.support.rabbit import RabbitNode
from tests.support.services import Rabbit, fresh_name
from tests.support.wait import until

_NOBODY = "postgresql://postgres@127.0.0.1:1/shop"
_TAKEN = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND application_name ~ '^outbox-(relay|consumer)'
"""
_SHOP = """
from consumer import Consumer, Context
from outbox.event import EventModel

class OrderPlaced(EventModel, type="orders.order.placed", version=1):
    order_id: int

consumer = Consumer("billing")

@consumer.on(OrderPlaced)
def bill(event: OrderPlaced, ctx: Context) -> None: ...
"""
LANE = Lane(group="default", tier=Tier.STANDARD, tenant="acme")


def a_patient(
    database: str, rabbitmq: str | None, *, kind: QueueKind = "classic", management: str | None = None
) -> Patient:
    places = AdminSettings(
        database_url=SecretStr(database),
        broker="rabbitmq" if rabbitmq else "postgres",
        rabbitmq_url=SecretStr(rabbitmq) if rabbitmq else None,
    )
    roles = {Process.RELAY: database, Process.CONSUMER: database}
    return Patient(places=places, roles=roles, group=None, slots=10, queue_kind=kind, management=management)


async def found(patient: Patient, subject: str) -> list[Finding]:
    return [finding async for finding in examine(patient) if finding.subject == subject]


async def only(patient: Patient, subject: str) -> Finding:
    (finding,) = await found(patient, subject)
    return finding


@pytest.fixture
def lane(migrated_database: str) -> Iterator[psycopg.Connection]:
    """The lane as a relay has noted it."""
    with psycopg.connect(migrated_database, autocommit=True) as owner:
        owner.execute("INSERT INTO outbox.lane (group_name, tier, tenant) VALUES ('default', 1, 'acme')")
        yield owner


async def declared(vhost: str, *, kind: QueueKind, messages: int = 0) -> None:
    connection = await connect(Address(url=vhost, name="test"))
    try:
        channel = await open_channel(connection, Address(url=vhost, name="test"), has_confirms=True)
        for queue in group_queues("default", kind):
            await channel.queue_declare(queue.name, durable=True, arguments=dict(queue.arguments))
        await channel.queue_declare(LANE.queue, durable=True, arguments=dict(lane_arguments(kind)))
        for _ in range(messages):
            await channel.basic_publish(b"{}", routing_key=LANE.queue)
    finally:
        await close(connection)


async def test_a_fresh_deployment_has_warnings_and_no_problem(migrated_database: str, vhost: str) -> None:
    every = [finding async for finding in examine(a_patient(migrated_database, vhost))]
    assert not [finding for finding in every if finding.level is Level.PROBLEM]
    assert {finding.subject for finding in every} >= {
        *("python", "packages", "postgresql", "primary", "role", "clock", "schema", "privileges", "connections"),
        *("transactions", "replication slots", "pooler", "relays", "retention", "groups", "rabbitmq", "lanes"),
    }
    assert all(finding.remedy for finding in every if finding.level is not Level.OK)


async def test_queues_in_postgresql_alone_are_looked_at_too(migrated_database: str) -> None:
    every = [finding async for finding in examine(a_patient(migrated_database, None))]
    assert not [finding for finding in every if finding.level is Level.PROBLEM]
    assert "rabbitmq" not in {finding.subject for finding in every}


async def test_what_cannot_be_reached_stops_no_other_check(migrated_database: str, vhost: str) -> None:
    every = {finding.subject: finding async for finding in examine(a_patient(_NOBODY, vhost))}
    assert every["database"].level is Level.PROBLEM
    assert "cannot be reached" in every["database"].says
    assert every["rabbitmq"].level is Level.OK
    every = {finding.subject: finding async for finding in examine(a_patient(migrated_database, "amqp://127.0.0.1:1/"))}
    assert every["rabbitmq"].level is Level.PROBLEM
    assert every["schema"].level is Level.OK


async def test_refused_credentials_are_a_problem(migrated_database: str, vhost: str) -> None:
    finding = await only(a_patient(migrated_database, vhost.replace("guest:guest", "guest:wrong")), "rabbitmq")
    assert finding.level is Level.PROBLEM
    assert "wrong" not in finding.says


async def test_a_schema_that_is_not_there_is_to_be_migrated(database: str) -> None:
    behind = await found(a_patient(database, None), "schema")
    assert [finding.remedy for finding in behind] == [
        f"outbox migrate --chain {chain}" for chain in ("outbox", "consumer", "broker")
    ]
    assert {finding.level for finding in behind} == {Level.PROBLEM}
    for subject in ("relays", "groups"):
        assert (await only(a_patient(database, None), subject)).remedy == "outbox migrate"


async def test_a_superuser_is_a_problem_once_the_app_has_policies(migrated_database: str) -> None:
    patient = a_patient(migrated_database, None)
    assert (await only(patient, "role")).level is Level.WARNING
    with psycopg.connect(migrated_database, autocommit=True) as owner:
        owner.execute("CREATE TABLE orders (tenant text); CREATE POLICY own ON orders USING (true)")
    assert (await only(patient, "role")).level is Level.PROBLEM


async def test_a_role_that_may_do_nothing_is_told_every_grant(migrated_database: str) -> None:
    role = fresh_name("guest")
    with psycopg.connect(migrated_database, autocommit=True) as owner:
        owner.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'x'".encode())
        try:
            url = psycopg.conninfo.make_conninfo(migrated_database, user=role, password="x")
            lacking = await found(a_patient(url, None), "privileges")
            assert f'GRANT USAGE ON SCHEMA outbox TO "{role}"' in {finding.remedy for finding in lacking}
            assert f'GRANT INSERT ON consumer.work TO "{role}"' in {finding.remedy for finding in lacking}
            assert {finding.level for finding in lacking} == {Level.PROBLEM}
            assert (await only(a_patient(url, None), "role")).level is Level.OK
        finally:
            owner.execute(f"DROP ROLE {role}".encode())


async def test_a_database_that_only_reads_takes_no_events(migrated_database: str) -> None:
    name = psycopg.conninfo.conninfo_to_dict(migrated_database)["dbname"]
    with psycopg.connect(migrated_database, autocommit=True) as owner:
        owner.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on".encode())
    assert (await only(a_patient(migrated_database, None), "primary")).level is Level.PROBLEM


async def test_a_standby_takes_no_events(faulty_postgres: PostgresNode) -> None:
    with copied(faulty_postgres, signal="standby") as standby:
        finding = await only(a_patient(same(faulty_postgres.dsn(), standby, here=faulty_postgres), None), "primary")
    assert (finding.level, finding.remedy) == (Level.PROBLEM, "set DATABASE_URL to the primary")


async def test_a_clock_that_is_off_is_measured(migrated_database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = time.time
    monkeypatch.setattr(time, "time", lambda: right() - 120.0)
    finding = await only(a_patient(migrated_database, None), "clock")
    assert finding.level is Level.PROBLEM
    assert finding.says.startswith("PostgreSQL's clock is 120.0 s ahead of")


async def test_an_open_transaction_and_its_owner_are_seen(migrated_database: str) -> None:
    with psycopg.connect(migrated_database, application_name="long one") as other:
        other.execute("SELECT 1")
        async with postgres_facts.asking(migrated_database, within_s=10) as connection:
            facts = await postgres_facts.sessions(connection, slots=10, has_queues=False)
        assert facts.open_oldest_s > 0
    late = dataclasses.replace(facts, open_oldest_s=400.0, open_oldest_by="pid 7 of postgres, long one")
    (finding,) = sessions.transactions(late)
    assert (finding.level, finding.remedy) == (Level.WARNING, "SELECT pg_terminate_backend(7), if nobody needs it")


async def test_a_transaction_that_was_prepared_and_forgotten_is_seen(migrated_database: str) -> None:
    gid = fresh_name("gid")
    with psycopg.connect(migrated_database, autocommit=True) as other:
        other.execute(f"BEGIN; CREATE TABLE forgotten (); PREPARE TRANSACTION '{gid}'".encode())
        try:
            async with postgres_facts.asking(migrated_database, within_s=10) as connection:
                facts = await postgres_facts.sessions(connection, slots=10, has_queues=False)
        finally:
            other.execute(f"ROLLBACK PREPARED '{gid}'".encode())
    assert facts.prepared >= 1
    (finding,) = sessions.transactions(dataclasses.replace(facts, prepared_oldest_s=90.0, open_oldest_s=0.0))
    assert finding.subject == "prepared transactions"


async def test_a_queue_with_other_arguments_is_named(
    lane: psycopg.Connection, migrated_database: str, vhost: str
) -> None:
    await declared(vhost, kind="classic")
    assert (await only(a_patient(migrated_database, vhost), "queues")).level is Level.OK
    drifted = await found(a_patient(migrated_database, vhost, kind="quorum"), "queue arguments")
    assert drifted[-1].says == (
        f"{LANE.queue}: x-overflow is none, the settings want reject-publish; the relay will not publish to it"
    )
    assert [finding.level for finding in drifted] == [Level.PROBLEM] * 3


async def test_a_lane_that_nobody_consumes_is_a_problem_once_it_holds_events(
    lane: psycopg.Connection, migrated_database: str, vhost: str
) -> None:
    patient = a_patient(migrated_database, vhost)
    await declared(vhost, kind="classic")
    assert (await only(patient, "lanes")).level is Level.WARNING
    await declared(vhost, kind="classic", messages=2)
    finding = await only(patient, "lanes")
    assert (finding.level, "hold 2 events and nobody consumes them" in finding.says) == (Level.PROBLEM, True)


async def test_looking_makes_no_queue(
    lane: psycopg.Connection, migrated_database: str, vhost: str, rabbit_node: Rabbit
) -> None:
    assert (await only(a_patient(migrated_database, vhost), "queues")).level is Level.WARNING
    assert rabbit_node.management.queue_names(vhost.rpartition("/")[2]) == []


async def test_a_policy_that_loses_messages_is_named(
    lane: psycopg.Connection, migrated_database: str, vhost: str, rabbit_node: Rabbit
) -> None:
    await declared(vhost, kind="classic")
    management, name = rabbit_node.management, vhost.rpartition("/")[2]
    policy = {"pattern": "^outbox\\.", "definition": {"message-ttl": 60_000}, "apply-to": "queues"}
    management._call("PUT", f"/api/policies/{name}/short", policy)  # type: ignore[arg-type]
    patient = a_patient(migrated_database, vhost, management=management.url)
    lossy = await found(patient, "queue policies")
    assert any(f"a policy sets message-ttl on {LANE.queue}" in finding.says for finding in lossy)


async def test_a_group_without_a_consumer_is_named(lane: psycopg.Connection, migrated_database: str) -> None:
    lane.execute("INSERT INTO outbox.consumer_group (group_name) VALUES ('idle')")
    says = [finding.says for finding in await found(a_patient(migrated_database, None), "groups")]
    assert "group idle has no consumer that is alive" in says


async def test_dead_letters_are_counted_and_told_once(migrated_database: str) -> None:
    with psycopg.connect(migrated_database, autocommit=True) as owner:
        Letters(owner).add(count=2)
    findings = [finding async for finding in examine(a_patient(migrated_database, None))]
    assert [(one.subject, one.says, one.remedy) for one in findings if "dead letter" in one.says] == [
        ("dead letters", "default: 2 open dead letters", "outbox dead groups --group default")
    ]


async def test_every_connection_of_relay_and_consumer_is_counted(
    migrated_database: str, processes: Processes, tmp_path: Path
) -> None:
    (tmp_path / "shop.py").write_text(_SHOP)
    settings = {"DATABASE_URL": migrated_database, "OUTBOX_BROKER": "postgres", "OUTBOX_CONSUMER_SLOTS": "2"}
    for command in (("outbox-relay", "run"), ("outbox-consumer", "run", "shop:consumer")):
        processes.start(*command, settings=settings, cwd=tmp_path)
    async with postgres_facts.asking(migrated_database, within_s=120.0) as connection:

        async def taken() -> int:
            (row,) = await (await connection.execute(_TAKEN)).fetchall()
            return int(str(row[0]))

        async def are_at_work() -> bool:
            return await taken() >= 14

        await until(are_at_work, deadline_s=60)
        wanted = (await postgres_facts.sessions(connection, slots=2, has_queues=True)).wanted
        assert await taken() <= wanted <= 17


async def test_a_memory_alarm_is_seen_by_the_http_api(faulty_rabbit: RabbitNode) -> None:
    api = management_facts.Api.beside(faulty_rabbit.url(), faulty_rabbit.management.url)
    assert not any(node.has_memory_alarm for node in (await management_facts.management(api)).nodes)
    faulty_rabbit.block()
    try:
        told = await management_facts.management(api)
    finally:
        faulty_rabbit.unblock()
    assert [node.has_memory_alarm for node in told.nodes] == [True]
    assert abs(told.clock_s) < 5.0


@pytest.mark.parametrize("slash", ["", "/"])
async def test_the_http_api_may_lie_below_a_path(faulty_rabbit: RabbitNode, slash: str) -> None:
    with _path_prefix(faulty_rabbit, "/rabbit"):
        url = f"{faulty_rabbit.management.url}/rabbit{slash}"
        api = management_facts.Api.beside(faulty_rabbit.url(), url)
        assert len((await management_facts.management(api)).nodes) == 1
        beside = management_facts.Api.beside(faulty_rabbit.url(), faulty_rabbit.management.url)
        with pytest.raises(BrokerUnavailable, match="answers 404"):
            await management_facts.management(beside)


@contextmanager
def _path_prefix(node: RabbitNode, prefix: str) -> Iterator[None]:
    """Let *node* serve its HTTP API below *prefix*, as ``management.path_prefix`` does from its start."""

    def serve(below: str) -> None:
        node.ctl(
            "eval",
            f'application:set_env(rabbitmq_management, path_prefix, "{below}"), rabbit_mgmt_app:reset_dispatcher([]).',
        )

    serve(prefix)
    try:
        yield
    finally:
        serve("")


def test_the_command_prints_a_line_per_check_and_ends_with_78_on_a_problem(
    migrated_database: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OUTBOX_BROKER", "postgres")
    for url, code in ((migrated_database, DONE), (_NOBODY, CONFIGURATION)):
        monkeypatch.setenv("DATABASE_URL", url)
        with pytest.raises(SystemExit) as ended:
            run_cli(app, arguments=["doctor", "--json"], name="outbox")
        told = json.loads(capsys.readouterr().out)
        assert ended.value.code == code
        assert (told["problems"] > 0) is (code != DONE)
        assert {finding["level"] for finding in told["findings"]} <= {"ok", "warning", "problem"}


def test_an_app_that_does_not_load_and_a_database_without_tables_hide_no_other_check(
    database: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OUTBOX_BROKER", "postgres")
    monkeypatch.setenv("DATABASE_URL", database)
    with pytest.raises(SystemExit) as ended:
        run_cli(app, arguments=["doctor", "nowhere:consumer", "--json"], name="outbox")
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert ended.value.code == CONFIGURATION
    assert [one["says"] for one in findings if one["subject"] == "app"] == [
        "want the module nowhere, got no module named nowhere"
    ]
    assert [one["level"] for one in findings if one["subject"] == "schema"] == ["problem"] * 3
    assert "privileges" not in {one["subject"] for one in findings}  # of nothing, all are there
