"""Several relays share the buckets evenly; buckets that move take nothing with them but what is stored."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

from outbox.inprocess import InProcessBroker
from outbox.naming import bucket_of, tenant_hash
from relay.limits import Limits
from relay.log import leases, store
from relay.memory import MemoryPublisher
from tests.integration.relay.faulty_publisher import FaultyPublisher
from tests.integration.relay.running import QUICK, App, Running, arrived, committed, emit, queued, start, value
from tests.support.wait import until

#: Whatever happens within a test happens long before a lease expires.
PATIENT = replace(QUICK, lease_s=60.0)
TENANTS = [f"tenant-{number}" for number in range(64)]
#: Of a bucket that the first relay gives up when a second one joins.
LEAVING = next(tenant for tenant in TENANTS if bucket_of(tenant_hash(tenant)) >= 32)


async def _all_crash(relays: Sequence[Running]) -> None:
    for relay in relays:
        await relay.crash()


async def test_a_relay_that_joins_has_its_share_within_seconds_and_nothing_comes_twice_or_out_of_order(
    url: str, app: App, broker: InProcessBroker
) -> None:
    relays = [start(url, MemoryPublisher(broker), limits=PATIENT)]
    await relays[0].owns()
    sent: dict[str, list[UUID]] = {tenant: [] for tenant in TENANTS}

    def emit_to_all() -> None:
        for tenant in TENANTS:
            sent[tenant] += emit(app, tenant, count=3)
        app.commit()

    for share in ((32,), (20, 21, 22)):
        relays.append(start(url, MemoryPublisher(broker), limits=PATIENT))
        async with asyncio.timeout(10):
            while not all(relay.gauges.owned in share for relay in relays):
                emit_to_all()
                await asyncio.wait({relay.task for relay in relays}, timeout=0.02)
    emit_to_all()
    for tenant in TENANTS:
        await arrived(broker, sent[tenant], tenant)
    assert relays[2].gauges.confirmed > 0
    await _all_crash(relays)
    assert {tenant: queued(broker, tenant) for tenant in TENANTS} == sent


async def test_a_tenant_far_behind_moves_in_mid_backlog_and_keeps_its_order(
    url: str, app: App, broker: InProcessBroker
) -> None:
    first = start(url, MemoryPublisher(broker), limits=replace(PATIENT, window=50, chunk=5, cap=100))
    await first.owns()
    events = emit(app, LEAVING, count=6000)
    app.commit()
    await first.sees(lambda gauges: gauges.confirmed > 50)
    second = start(url, MemoryPublisher(broker), limits=PATIENT)
    await second.owns(32)
    assert first.gauges.confirmed < 6000, "it was through before the bucket moved"
    await arrived(broker, events, LEAVING)
    await first.sees(lambda gauges: gauges.unpersisted == gauges.in_flight == gauges.streams == 0)
    await _all_crash([first, second])
    assert queued(broker, LEAVING) == events


async def test_a_bucket_leaves_only_when_all_that_was_published_of_it_is_confirmed(
    url: str, app: App, broker: InProcessBroker
) -> None:
    publisher = FaultyPublisher(broker)
    first = start(url, publisher, limits=replace(PATIENT, drain_s=30.0, confirm_s=30.0))
    await first.owns()
    events = committed(app, 1, LEAVING)
    await first.sees(lambda gauges: gauges.confirmed == 1)
    publisher.is_late = True
    events += committed(app, 100, LEAVING)
    await first.sees(lambda gauges: gauges.in_flight == 100)
    second = start(url, MemoryPublisher(broker), limits=PATIENT)
    await first.sees(lambda gauges: gauges.share == 32)
    later = first.gauges.stepped_at + 1.0
    await first.sees(lambda gauges: gauges.stepped_at > later, what="a second to pass")
    assert (first.gauges.owned, second.gauges.owned) == (64, 0)
    publisher.is_late = False
    await second.owns(32)
    events += emit(app, LEAVING)
    app.commit()
    await arrived(broker, events, LEAVING)
    await _all_crash([first, second])
    assert queued(broker, LEAVING) == events  # and nothing came twice


async def test_a_bucket_whose_confirms_do_not_come_moves_all_the_same_and_its_former_owner_sends_no_more_of_it(
    url: str, app: App, broker: InProcessBroker
) -> None:
    publisher = FaultyPublisher(broker)
    first = start(url, publisher, limits=replace(PATIENT, drain_s=0.5))
    await first.owns()
    before = committed(app, 1, LEAVING)
    await first.sees(lambda gauges: gauges.confirmed == 1)
    publisher.is_silent = lambda outgoing: outgoing.lane.tenant == LEAVING
    events = committed(app, 100, LEAVING)
    await first.sees(lambda gauges: gauges.in_flight == 100)
    second = start(url, MemoryPublisher(broker), limits=PATIENT)
    await second.owns(32)
    unknown = before + events + events
    await until(lambda: queued(broker, LEAVING) == unknown, what="the new owner to publish what was unknown")
    await first.sees(lambda gauges: gauges.in_flight == gauges.unpersisted == gauges.faulty_lanes == 0)
    publisher.is_dead = True  # what is unsettled is sent again on the next connection
    await first.sees(lambda gauges: gauges.broker_losses == 1)
    publisher.is_dead = False
    more = {tenant: emit(app, tenant) for tenant in TENANTS}
    app.commit()
    for tenant in TENANTS:
        await arrived(broker, more[tenant], tenant)
    assert first.gauges.resent == 0
    await _all_crash([first, second])
    assert queued(broker, LEAVING) == unknown + more[LEAVING]


async def test_a_relay_that_does_not_reach_the_broker_leaves_its_share_to_those_that_do(
    url: str, app: App, broker: InProcessBroker
) -> None:
    publisher = FaultyPublisher(broker)
    cut_off, other = start(url, publisher), start(url, MemoryPublisher(broker))
    await cut_off.owns(32)
    await other.owns(32)
    publisher.is_dead = True
    events = {tenant: emit(app, tenant) for tenant in TENANTS}
    app.commit()
    await other.owns()
    for tenant in TENANTS:
        await arrived(broker, events[tenant], tenant)
    assert (cut_off.gauges.owned, cut_off.gauges.leases_lost) == (0, 0)
    publisher.is_dead = False
    await cut_off.owns(32)
    await other.owns(32)
    await _all_crash([cut_off, other])


async def test_a_shared_out_log_is_left_as_it_is(url: str) -> None:
    relays = [start(url, MemoryPublisher(InProcessBroker())) for _ in range(2)]
    for relay in relays:
        await relay.owns(32)
    moved = [(relay.gauges.takeovers, relay.gauges.given_up) for relay in relays]
    later = relays[0].gauges.stepped_at + QUICK.lease_s
    await relays[0].sees(lambda gauges: gauges.stepped_at > later, what="a lease to pass")
    assert [(relay.gauges.takeovers, relay.gauges.given_up) for relay in relays] == moved
    await _all_crash(relays)


async def test_a_bucket_more_or_less_moves_nothing(url: str, app: App) -> None:
    connection = await store.connect(url, store.FIXED_PLANS, connect_s=5.0, statement_s=5.0)
    app.execute("update outbox.bucket set expires_at = 'infinity', token = case when bucket < 33 then -1 else -2 end")
    app.execute("insert into outbox.relay values (-1, true, 'infinity'), (-2, true, 'infinity')")
    app.commit()
    for token, owned in ((-1, 33), (-2, 31)):
        taken = await leases.take(connection, token, former=(), owned=owned, is_able=True, lease_s=60.0, within_s=5.0)
        assert (taken.bases, taken.share.surplus, taken.relays) == ([], 0, 2)
    await store.close(connection)


async def test_two_that_start_together_take_a_half_each_and_no_more(url: str) -> None:
    connection = await store.connect(url, store.FIXED_PLANS, connect_s=5.0, statement_s=5.0)
    rival = await store.connect(url, store.FIXED_PLANS, connect_s=5.0, statement_s=5.0)
    tokens = [await leases.new_token(connection, within_s=5.0) for _ in range(2)]
    await leases.renew(rival, tokens[1], owned=0, is_able=True, lease_s=60.0, within_s=5.0)
    for each, token in ((connection, tokens[0]), (rival, tokens[1])):
        for _ in range(2):
            taken = await leases.take(
                each, token, former=(), owned=32 * bool(_), is_able=True, lease_s=60.0, within_s=5.0
            )
            assert len(taken.bases) == (0 if _ else 32)
    await store.close(connection)
    await store.close(rival)


async def test_groups_count_together_and_a_group_that_is_added_is_shared_out_too(
    url: str, app: App, broker: InProcessBroker
) -> None:
    relays = [start(url, MemoryPublisher(broker), limits=PATIENT) for _ in range(2)]
    for relay in relays:
        await relay.owns(32)
    app.execute("select outbox.add_group('billing')")
    app.commit()
    for relay in relays:
        await relay.owns(64)
    events = {tenant: emit(app, tenant) for tenant in TENANTS}
    app.commit()
    for tenant in TENANTS:
        for group in ("default", "billing"):
            await arrived(broker, events[tenant], tenant, group=group)
    await _all_crash(relays)


async def test_rows_of_dead_relays_go_and_those_of_living_ones_are_updated_in_place(url: str, app: App) -> None:
    hasty = Limits(lease_s=1.0, idle_poll_s=0.05, persist_s=0.02)
    dead = start(url, MemoryPublisher(InProcessBroker()), limits=hasty)
    await dead.owns()
    await dead.crash()
    relay = start(url, MemoryPublisher(InProcessBroker()), limits=hasty)
    await relay.owns()

    def updates() -> object:
        app.rollback()
        return value(app, "select n_tup_upd from pg_stat_user_tables where relid = 'outbox.relay'::regclass")

    await until(updates, what="updates to be counted")
    in_place = value(
        app, "select n_tup_upd = n_tup_hot_upd from pg_stat_user_tables where relid = 'outbox.relay'::regclass"
    )
    assert in_place
    assert value(app, "select count(*) from outbox.relay") == 1
    await relay.hand_over()
    assert value(app, "select count(*) from outbox.relay") == 0
