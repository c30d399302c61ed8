"""Leases: one owner at a time, the next one takes over what it left, and a former owner can move nothing."""

import asyncio
from dataclasses import replace

import psycopg
import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from outbox.errors import LeaseLost
from outbox.inprocess import InProcessBroker
from relay.decide.backlog import Positions
from relay.limits import Limits
from relay.log import leases, positions, store
from relay.memory import MemoryPublisher
from relay.metrics import register
from tests.integration.relay.faulty_publisher import FaultyPublisher
from tests.integration.relay.running import QUICK, App, arrived, committed, emit, queued, running, start, value

NOTHING = Positions(bases=(), streams=(), caught_up=(), settled=0, settled_of={})
SLOW_TO_PERSIST = replace(QUICK, persist_s=30.0)
PATIENT = Limits(lease_s=60.0)
TENANTS = [f"tenant-{number}" for number in range(40)]


async def test_what_a_crashed_relay_held_is_published_by_the_others_within_its_lease_and_two_seconds(
    url: str, app: App, broker: InProcessBroker
) -> None:
    first, second = start(url, MemoryPublisher(broker)), start(url, MemoryPublisher(broker))
    await first.owns(32)
    await second.owns(32)
    await first.crash()
    events = {tenant: emit(app, tenant, count=3) for tenant in TENANTS}
    app.commit()
    async with asyncio.timeout(QUICK.lease_s + 2.0):
        await second.owns()
        for tenant in TENANTS:
            await arrived(broker, events[tenant], tenant)
    await second.crash()
    assert {tenant: queued(broker, tenant) for tenant in TENANTS} == events


async def test_a_planned_shutdown_waits_for_confirms_persists_and_hands_over_at_once(
    url: str, app: App, broker: InProcessBroker
) -> None:
    """janbjorge/pgqueuer#630, #475: what was picked and not finished stayed picked."""
    async with running(url, broker, limits=PATIENT) as first:
        events = emit(app, count=3000)
        app.commit()
        await first.sees(lambda gauges: gauges.published > 0)
        await first.hand_over()
        assert first.gauges.in_flight == 0
        second = start(url, MemoryPublisher(broker), limits=PATIENT)
        async with asyncio.timeout(10):  # far less than the lease
            await second.owns()
        await arrived(broker, events)
        await second.crash()
    assert queued(broker) == events  # handed over, so nothing came twice


async def test_a_planned_shutdown_hands_its_share_to_the_relays_that_run(
    url: str, app: App, broker: InProcessBroker
) -> None:
    relays = [start(url, MemoryPublisher(broker), limits=PATIENT) for _ in range(3)]
    for relay in relays:
        await relay.sees(lambda gauges: gauges.owned in (20, 21, 22), what="a third")
    events = {tenant: emit(app, tenant, count=10) for tenant in TENANTS}
    app.commit()
    await relays[0].hand_over()
    async with asyncio.timeout(5):  # far less than the lease
        for relay in relays[1:]:
            await relay.owns(32)
        for tenant in TENANTS:
            await arrived(broker, events[tenant], tenant)
    for relay in relays[1:]:
        await relay.crash()
    assert {tenant: queued(broker, tenant) for tenant in TENANTS} == events  # nothing came twice


async def test_a_crash_in_mid_batch_loses_nothing_and_repeats_at_most_the_window(
    url: str, app: App, broker: InProcessBroker
) -> None:
    """janbjorge/pgqueuer#630."""
    events = emit(app, count=3000)
    app.commit()
    small = replace(SLOW_TO_PERSIST, window=500, lease_s=3.0)
    async with running(url, broker, limits=small) as relay:
        await relay.sees(lambda gauges: gauges.published >= 300)
        await relay.crash()
    async with running(url, broker):
        await arrived(broker, events)
    repeated = len(queued(broker)) - len(events)
    assert 0 < repeated <= small.window
    assert list(dict.fromkeys(queued(broker))) == events


async def test_a_frozen_owner_that_wakes_after_its_lease_moves_no_position(url: str) -> None:
    """namastack/namastack-outbox#75, #204."""
    connection = await store.connect(url, store.FIXED_PLANS, connect_s=5.0, statement_s=5.0)
    frozen = await leases.new_token(connection, within_s=5.0)
    await leases.take(connection, frozen, former=(), owned=0, is_able=True, lease_s=0.0, within_s=5.0)
    awake = await leases.new_token(connection, within_s=5.0)
    taken = await leases.take(connection, awake, former=(), owned=0, is_able=True, lease_s=60.0, within_s=5.0)
    assert len(taken.bases) == 64
    group, bucket, base = taken.bases[0]
    moved = replace(NOTHING, bases=[(group, bucket, "1:1:")])
    with pytest.raises(LeaseLost):
        await positions.persist(connection, frozen, moved, positions.Findings(), owned=64, within_s=5.0)
    with pytest.raises(LeaseLost):
        await leases.take(connection, frozen, former=(), owned=64, is_able=True, lease_s=60.0, within_s=5.0)
    row = await (
        await connection.execute("select count(*) from outbox.bucket where token = %s and lo::text = %s", (awake, base))
    ).fetchone()
    assert row == (64,)
    await store.close(connection)


async def test_an_owner_whose_buckets_were_taken_forgets_what_it_holds_and_publishes_no_more_of_it(
    url: str, app: App, broker: InProcessBroker
) -> None:
    """AlexeyRaga/kafkaflow-contrib#24; thomhurst/Dekaf#3037, dotnetcore/CAP#1682: a lease was lost and nobody told."""
    publisher = FaultyPublisher(broker)
    registry = CollectorRegistry()
    with capture_logs() as logs:
        async with running(url, broker, publisher=publisher) as relay:
            register(relay.gauges, registry)
            committed(app, 1)
            await relay.sees(lambda gauges: gauges.confirmed == 1)
            publisher.is_silent = lambda _: True
            committed(app, 100)
            await relay.sees(lambda gauges: gauges.in_flight == 100)
            app.execute("update outbox.bucket set token = 0, expires_at = 'infinity'")  # somebody else's now
            app.commit()
            await relay.sees(lambda gauges: gauges.leases_lost == 1)
            await relay.sees(lambda gauges: gauges.is_broker_up)
            assert relay.gauges.in_flight == 0
            assert len(publisher.sent) == 101
    assert registry.get_sample_value("outbox_relay_leases_lost_total") == 1
    assert [line["reason"] for line in logs if line["event"] == "leases lost"] == [
        "buckets: want 64 under this relay's token, got 0"
    ]


async def test_publishing_that_takes_longer_than_a_lease_renews_it(url: str, app: App, broker: InProcessBroker) -> None:
    """thomhurst/Dekaf#3037, dotnetcore/CAP#1682: a batch outlasted its lock, and another published it too."""
    publisher = FaultyPublisher(broker)
    async with running(url, broker, publisher=publisher, limits=replace(QUICK, batch=10)) as relay:
        events = committed(app, 1)
        await relay.sees(lambda gauges: gauges.confirmed == 1)
        publisher.is_silent = lambda _: True
        events += committed(app, 50)
        await relay.sees(lambda gauges: gauges.in_flight == 50)
        publisher.send_s = 0.8  # all of them are sent again, in one go of four seconds
        publisher.is_dead = True
        await relay.sees(lambda gauges: gauges.broker_losses == 1)
        publisher.is_silent = lambda _: False
        publisher.is_dead = False
        while relay.gauges.confirmed < 51:
            assert value(app, "select count(*) from outbox.bucket where expires_at < clock_timestamp()") == 0
            app.commit()
            await asyncio.wait({relay.task}, timeout=0.05)
        assert relay.gauges.resent == 50
        assert relay.gauges.leases_lost == 0
    assert list(dict.fromkeys(queued(broker))) == events


async def test_a_lost_database_session_takes_its_own_buckets_back_without_waiting_for_their_leases(
    url: str, app: App, broker: InProcessBroker
) -> None:
    async with running(url, broker, limits=PATIENT) as relay:
        app.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where application_name = 'outbox-relay' and datname = current_database()"
        )
        events = emit(app)
        app.commit()
        await relay.sees(lambda gauges: gauges.store_losses == 1)
        async with asyncio.timeout(10):
            await arrived(broker, events)
            await relay.owns()


async def test_what_is_left_of_a_lost_session_delays_its_buckets_for_no_longer_than_it_holds_them(
    url: str, app: App, broker: InProcessBroker
) -> None:
    """They are not free for another lease, so no look would find them."""
    async with running(url, broker, limits=PATIENT) as relay:
        with psycopg.connect(url) as left:
            left.execute("select from outbox.bucket where bucket < 10 for update")
            app.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where application_name = 'outbox-relay' and datname = current_database()"
            )
            await relay.owns(54)
        async with asyncio.timeout(5):
            await relay.owns()


async def test_a_takeover_skips_rows_that_another_takes_at_this_moment(url: str) -> None:
    """Waiting for them while holding others would deadlock two relays that start together."""
    connection = await store.connect(url, store.FIXED_PLANS, connect_s=5.0, statement_s=5.0)
    token = await leases.new_token(connection, within_s=5.0)
    with psycopg.connect(url) as rival:
        rival.execute("update outbox.bucket set token = -1 where bucket < 10")
        taken = await leases.take(connection, token, former=(), owned=0, is_able=True, lease_s=60.0, within_s=5.0)
        assert sorted(bucket for _, bucket, _ in taken.bases) == list(range(10, 64))
    await store.close(connection)
