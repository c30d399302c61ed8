"""The database goes away, freezes, restarts or turns read-only: the relay waits it out and begins anew."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import NoReturn
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from outbox.errors import WrongDatabase
from outbox.inprocess import InProcessBroker
from outbox_admin import migrate
from outbox_admin.embedded import PostgresNode
from relay.decide.holdings import Holdings
from relay.engine.reader import Reader
from relay.gauges import Gauges
from relay.log import store
from relay.log.sessions import opened
from relay.memory import MemoryPublisher
from tests.integration.relay.copies import copied, same
from tests.integration.relay.running import QUICK, App, arrived, emit, queued, running, start, value
from tests.support.processes import frozen
from tests.support.proxy import Proxy
from tests.support.services import fresh_name
from tests.support.wait import until


@asynccontextmanager
async def proxied(url: str) -> AsyncIterator[tuple[str, Proxy]]:
    """The URL of the same database behind a proxy."""
    parts = urlsplit(url)
    async with Proxy(host=parts.hostname or "", port=parts.port or 0, speaks="postgres") as proxy:
        login, _, _ = parts.netloc.rpartition("@")
        yield urlunsplit(parts._replace(netloc=f"{login}@127.0.0.1:{proxy.port}")), proxy


async def test_a_frozen_connection_is_given_up_at_its_deadline_and_work_goes_on_when_it_thaws(
    url: str, app: App, broker: InProcessBroker
) -> None:
    """A driver that cancels waits for the answer of the server that does not answer."""
    async with proxied(url) as (address, proxy), running(address, broker) as relay:
        proxy.freeze()
        events = emit(app, count=20)
        app.commit()
        async with asyncio.timeout(QUICK.lease_s * 10):
            await relay.sees(lambda gauges: gauges.store_losses > 0, deadline_s=QUICK.lease_s * 10)
        assert not relay.gauges.is_ready
        proxy.thaw()
        await arrived(broker, events)


async def test_what_is_read_beside_a_lost_tenure_is_given_up_at_once_though_the_server_is_frozen(
    url: str, app: App
) -> None:
    """Cancelled, the driver would ask the server to stop and wait five seconds for its answer."""
    async with proxied(url) as (address, proxy), opened(address, QUICK) as sessions:
        reader = Reader(sessions, Holdings(), limits=QUICK, gauges=Gauges())

        async def read_long() -> NoReturn:
            async with sessions.aside() as connection, store.deadline(connection, 600):
                await connection.execute("select pg_sleep(600)")
            raise AssertionError("it slept through")

        reader._start(read_long())
        app.autocommit = True  # within a transaction, what is asked of other sessions stays as it was
        asleep = "select count(*) from pg_stat_activity where query = 'select pg_sleep(600)'"
        await until(lambda: value(app, asleep) == 1, what="the long read")
        proxy.freeze()
        began = time.monotonic()
        sessions.sever()
        await reader.close()
        assert time.monotonic() - began < 2


def lost_more(before: int, gauges: Gauges) -> bool:
    return gauges.store_losses > before


async def test_cut_at_any_moment_of_a_commit_it_loses_nothing_and_repeats_little(
    url: str, app: App, broker: InProcessBroker
) -> None:
    async with proxied(url) as (address, proxy), running(address, broker) as relay:
        events = []
        for moment in ("before_request", "after_request", "before_answer", "after_answer"):
            before = relay.gauges.store_losses
            proxy.fired.clear()
            proxy.cut_at_commit(moment)
            events += emit(app, count=50)
            app.commit()
            async with asyncio.timeout(20):
                await proxy.fired.wait()
            await arrived(broker, events)
            # After its answer a commit's events are out already, and the loss is noticed with the next statement.
            await relay.sees(partial(lost_more, before))
    assert list(dict.fromkeys(queued(broker))) == events


async def test_while_the_database_is_down_connects_are_few_and_jittered(
    url: str, app: App, broker: InProcessBroker
) -> None:
    """MassTransit/MassTransit#5822."""
    async with proxied(url) as (address, proxy), running(address, broker) as relay:
        await proxy.refuse()
        await relay.sees(lambda gauges: gauges.store_losses >= 4)
        proxy.accepted = 0
        await proxy.open()
        events = emit(app, count=20)
        app.commit()
        async with asyncio.timeout(10):
            await arrived(broker, events)
        assert proxy.accepted <= 4


async def test_a_restarted_database_is_found_again_and_nothing_is_lost(
    faulty_postgres: PostgresNode, broker: InProcessBroker
) -> None:
    url = faulty_postgres.dsn("relay_faults")
    with psycopg.connect(faulty_postgres.dsn(), autocommit=True) as connection:
        connection.execute("create database relay_faults")
    migrate.upgrade(url, chains=("outbox",))
    relay = start(url, MemoryPublisher(broker), limits=replace(QUICK, lease_s=30.0))
    await relay.owns()
    with psycopg.connect(url) as app:
        events = emit(app, count=3000)
        app.commit()
    await relay.sees(lambda gauges: gauges.published > 100)
    await asyncio.to_thread(faulty_postgres.kill)
    await relay.sees(lambda gauges: gauges.store_losses > 0, deadline_s=QUICK.lease_s * 10)
    await asyncio.to_thread(faulty_postgres.start)
    async with asyncio.timeout(10):  # far less than the lease: it takes back what is its own
        await relay.owns()
        await arrived(broker, events)
    await relay.crash()
    assert list(dict.fromkeys(queued(broker))) == events


async def test_a_database_that_turned_read_only_is_waited_out(url: str, app: App, broker: InProcessBroker) -> None:
    name = value(app, "select current_database()")
    app.commit()
    async with running(url, broker) as relay:
        with psycopg.connect(url, autocommit=True) as admin:
            admin.execute(f'alter database "{name}" set default_transaction_read_only = on')
            admin.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where application_name = 'outbox-relay' and datname = current_database()"
            )
            await relay.sees(lambda gauges: gauges.store_losses >= 2)
            admin.execute("set default_transaction_read_only = off")
            admin.execute(f'alter database "{name}" reset default_transaction_read_only')
        events = emit(app)
        app.commit()
        await arrived(broker, events)
        await until(lambda: relay.gauges.unpersisted == 0, what="everything to be persisted")


@pytest.fixture
def private(faulty_postgres: PostgresNode) -> Iterator[str]:
    """The URL of a migrated database on a private node."""
    name = fresh_name("private")
    with psycopg.connect(faulty_postgres.dsn(), autocommit=True) as connection:
        connection.execute(f'create database "{name}"'.encode())
    url = faulty_postgres.dsn(name)
    migrate.upgrade(url, chains=("outbox",))
    yield url
    faulty_postgres.start()


async def test_a_server_that_is_stopped_whole_is_worked_with_again_within_ten_seconds_of_its_return(
    faulty_postgres: PostgresNode, private: str, broker: InProcessBroker
) -> None:
    async with running(private, broker) as relay:
        with psycopg.connect(private) as app:
            events = emit(app, count=500)
            app.commit()
            with frozen(faulty_postgres.pid):
                await relay.sees(lambda gauges: gauges.store_losses >= 2, what="a connection tried again in vain")
                assert not relay.gauges.is_ready
            async with asyncio.timeout(10):
                events += emit(app, count=20)
                app.commit()
                await arrived(broker, events)
    assert list(dict.fromkeys(queued(broker))) == events


async def test_without_a_free_connection_slot_it_waits_for_one(
    faulty_postgres: PostgresNode, private: str, broker: InProcessBroker
) -> None:
    """53300, too many connections: an app that leaks them takes the relay's place when that loses its own."""
    async with running(private, broker) as relay:
        with psycopg.connect(private, autocommit=True) as app, contextlib.ExitStack() as leaked:
            while relay.gauges.store_losses < 2:
                with contextlib.suppress(psycopg.OperationalError):
                    while True:
                        leaked.enter_context(psycopg.connect(faulty_postgres.dsn()))
                app.execute(
                    "select pg_terminate_backend(pid) from pg_stat_activity where application_name like 'outbox%'"
                )
                await asyncio.sleep(0)
            events = emit(app, count=20)
            leaked.close()
            async with asyncio.timeout(10):
                await arrived(broker, events)
        assert relay.gauges.leases_lost == 0


async def test_idle_sessions_ended_by_an_administrator_cost_nothing(
    url: str, app: App, broker: InProcessBroker
) -> None:
    async with running(url, broker) as relay:
        for losses in (1, 2, 3):
            app.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where application_name = 'outbox-relay' and datname = current_database()"
            )
            events = emit(app)
            app.commit()
            async with asyncio.timeout(10):
                await arrived(broker, events)
            await relay.sees(partial(lost_more, losses - 1))
            await relay.owns()
        assert relay.gauges.leases_lost == 0


async def test_a_standby_met_during_a_failover_is_waited_out(
    faulty_postgres: PostgresNode, private: str, broker: InProcessBroker
) -> None:
    """It may be the address that leads there for a moment; at the start it is the setting that is wrong."""
    with copied(faulty_postgres, signal="standby") as standby:
        async with proxied(private) as (address, proxy), running(address, broker) as relay:
            proxy.turn(host="127.0.0.1", port=standby.port)
            await relay.sees(lambda gauges: gauges.store_losses >= 3, what="the standby to be refused")
            proxy.turn(host="127.0.0.1", port=faulty_postgres.port)
            with psycopg.connect(private) as app:
                events = emit(app, count=20)
                app.commit()
            async with asyncio.timeout(10):
                await arrived(broker, events)
        with pytest.raises(WrongDatabase, match="want a primary, got a standby"):
            await start(same(private, standby, here=faulty_postgres), MemoryPublisher(broker)).task
