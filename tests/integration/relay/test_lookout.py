"""How long the oldest event has waited, whoever is to send it: the figure that somebody is called for."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit, urlunsplit

import psycopg
from structlog.testing import capture_logs

from outbox.inprocess import InProcessBroker
from relay.engine.lookout import Lookout, run_lookout
from relay.gauges import Gauges
from relay.log import standing, store
from relay.log.standing import Standing
from tests.integration.relay.faulty_publisher import FaultyPublisher
from tests.integration.relay.running import App, arrived, committed, emit, running
from tests.support.proxy import Proxy
from tests.support.wait import until


async def look(url: str) -> Standing:
    connection = await store.connect(url, store.ANY_PLAN, connect_s=5.0, statement_s=5.0)
    try:
        return await standing.read(connection, within_s=5.0)
    finally:
        await store.close(connection)


def grow_old(app: App, tenant: str, seconds: float) -> None:
    app.execute(
        "update outbox.event set ledger_at = ledger_at - make_interval(secs => %s) where tenant = %s", (seconds, tenant)
    )
    app.commit()


async def test_without_a_relay_it_is_the_age_of_the_first_event_and_of_no_published_one(
    url: str, app: App, broker: InProcessBroker
) -> None:
    assert await look(url) == Standing(oldest_unpublished_s=0.0, deferred={"retry": 0, "dead": 0, "void": 0})
    async with running(url, broker) as relay:
        events = emit(app, "published", count=20)
        app.commit()
        await arrived(broker, events, "published")
        await relay.hand_over()
    grow_old(app, "published", 9000.0)
    assert (await look(url)).oldest_unpublished_s == 0.0
    committed(app, 3, "first")
    committed(app, 3, "second")
    grow_old(app, "first", 700.0)
    grow_old(app, "second", 300.0)
    assert 700.0 <= (await look(url)).oldest_unpublished_s < 760.0


async def test_a_transaction_that_was_open_when_the_base_was_taken_counts_once_it_has_committed(
    url: str, app: App, broker: InProcessBroker
) -> None:
    with psycopg.connect(url) as late:
        emit(late, "late")
        async with running(url, broker) as relay:
            events = emit(app, "other", count=5)
            app.commit()
            await arrived(broker, events, "other")
            await relay.sees(lambda gauges: gauges.unpersisted == 0)
            await relay.hand_over()
        assert (await look(url)).oldest_unpublished_s == 0.0
        late.commit()
    grow_old(app, "late", 500.0)
    assert 500.0 <= (await look(url)).oldest_unpublished_s < 560.0


async def test_a_tenant_that_is_behind_on_its_own_counts_from_where_it_is(
    url: str, app: App, broker: InProcessBroker
) -> None:
    publisher = FaultyPublisher(broker)
    async with running(url, broker, publisher=publisher) as relay:
        done = committed(app, 5, "silent")
        await arrived(broker, done, "silent")
        await relay.sees(lambda gauges: gauges.unpersisted == 0)
        publisher.is_silent = lambda outgoing: outgoing.lane.tenant == "silent"
        committed(app, 10, "silent")
        await relay.sees(lambda gauges: gauges.in_flight == 10)
        others = emit(app, count=10)
        app.commit()
        await arrived(broker, others)
        await relay.sees(lambda gauges: gauges.unpersisted == 10)
        # The five that were published, and are older still, are not what waits.
        app.execute(
            """update outbox.event set ledger_at = ledger_at - make_interval(secs => case when seq <= (
                 select min(seq) + 4 from outbox.event where tenant = 'silent') then 9000 else 40 end)
               where tenant = 'silent'"""
        )
        app.commit()
        assert 40.0 <= (await look(url)).oldest_unpublished_s < 100.0


async def test_it_reads_a_few_rows_however_many_wait(url: str, app: App) -> None:
    emit(app, "flood")
    columns = "id, bucket, tier, tenant, tenant_hash, type, data_version, source, content_type, payload"
    app.execute(
        f"""insert into outbox.event ({columns}) select gen_random_uuid(), bucket, tier, tenant, tenant_hash, type,
            data_version, source, content_type, payload from outbox.event, generate_series(1, 30000)"""
    )
    app.commit()
    gauges, stop = Gauges(), asyncio.Event()
    async with asyncio.timeout(30), looking(url, gauges, stop):
        await until(lambda: gauges.oldest_unpublished_s, what="a look")
        plan = "\n".join(str(line) for (line,) in app.execute("explain analyze " + _first_look()).fetchall())
    # PostgreSQL 18 tells of rows with two decimals.
    read = [float(line.split("rows=")[-1].split(" ")[0]) for line in plan.splitlines() if "Scan using event_" in line]
    assert read, plan
    assert max(read) < 10, plan


async def test_it_compiles_nothing_also_where_nothing_was_analysed_yet(url: str) -> None:
    connection = await store.connect(url, store.ANY_PLAN, connect_s=5.0, statement_s=5.0)
    explained = await connection.execute(("EXPLAIN ANALYZE " + _first_look()).encode())
    plan = [str(line) for (line,) in await explained.fetchall()]
    await store.close(connection)
    assert any("Seq Scan on event_0" in line or "using event_0" in line for line in plan), plan
    assert "JIT:" not in plan


def _first_look() -> str:
    return standing._OLDEST.replace("%s", "50")


@asynccontextmanager
async def looking(url: str, gauges: Gauges, stop: asyncio.Event) -> AsyncIterator[None]:
    task = asyncio.create_task(run_lookout(url, stop=stop, every_s=0.05, gauges=gauges))
    yield
    stop.set()
    await task


async def test_what_cannot_be_known_is_not_told_and_is_known_again_when_the_database_is_back(
    url: str, app: App
) -> None:
    committed(app, 1)
    parts = urlsplit(url)
    async with Proxy(host=parts.hostname or "", port=parts.port or 0, speaks="anything") as proxy, asyncio.timeout(30):
        gauges, stop = Gauges(), asyncio.Event()
        address = urlunsplit(parts._replace(netloc=f"{parts.netloc.rpartition('@')[0]}@127.0.0.1:{proxy.port}"))
        async with looking(address, gauges, stop):
            await until(lambda: gauges.oldest_unpublished_s is not None, what="a look")
            await proxy.refuse()
            await until(lambda: gauges.oldest_unpublished_s is None, what="nothing to be known")
            await proxy.open()
            await until(lambda: gauges.oldest_unpublished_s is not None, what="a look")


async def test_why_nothing_is_known_is_said_once_for_each_reason_and_again_after_long(url: str, app: App) -> None:
    lookout = Lookout(url=url, gauges=Gauges())

    async def said(looks: int, *, after: str) -> int:
        app.execute(after)
        app.commit()
        with capture_logs() as lines:
            for _ in range(looks):
                await lookout.look()
        return len(lines)

    assert await said(3, after="ALTER TABLE outbox.deferred RENAME TO away") == 1
    assert await said(3, after="ALTER TABLE outbox.bucket RENAME TO gone") == 1
    assert await said(3, after="ALTER TABLE outbox.gone RENAME TO bucket") == 1
    assert await said(3, after="ALTER TABLE outbox.away RENAME TO deferred") == 0
    await lookout.close()  # what a session has prepared outlives a table's name
    assert await said(3, after="ALTER TABLE outbox.deferred RENAME TO away") == 1
    lookout.say_again_s = 0.0
    assert await said(3, after="SELECT") == 3
    await lookout.close()
