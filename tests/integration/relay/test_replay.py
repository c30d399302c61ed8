"""Events that are published again on purpose: marked, in order, to whom it may concern, and no position moves."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import LiteralString
from uuid import UUID

from outbox.event import Tier
from outbox.inprocess import InProcessBroker
from outbox.naming import Lane
from relay.engine.replayer import run_replays
from relay.gauges import Gauges
from relay.log import store
from relay.log.replay_requests import Request, Wanted, ask, bounds, cancel, requests, shares
from relay.memory import MemoryPublisher
from relay.ports import Outgoing
from tests.integration.relay.faulty_publisher import FaultyPublisher
from tests.integration.relay.running import QUICK, App, Both, arrived, committed, emit, now, queued, start, value
from tests.support.wait import until

_STREAM = """
    insert into outbox.stream (group_name, tier, tenant, tenant_hash, bucket, lo, hi, after, z)
    select 'default', tier, tenant, tenant_hash, bucket, '1:1:', pg_current_snapshot(), seq, seq + 100
    from outbox.event where id = %s"""
_DEFER = """
    insert into outbox.deferred (group_name, state, category, reason, attempts, due_at, id, bucket, tier, tenant,
        tenant_hash, type, data_version, source, content_type, payload)
    select 'default', 'dead', 'too_large', 'r', 1, now(), id, bucket, tier, tenant, tenant_hash, type, data_version,
        source, content_type, payload from outbox.event where id = %s"""
_DISCARD = """
    insert into outbox.audit (actor, action, detail) values ('test', 'deferred.discard', jsonb_build_object(
        'removed', '[]'::jsonb, 'voids', jsonb_build_array(jsonb_build_object('group', 'default', 'id', %s::text))))"""
POSITIONS = """
    select (select array_agg(b order by group_name, bucket) from (select group_name, bucket, lo from outbox.bucket) b),
           (select array_agg(s order by group_name, tenant) from outbox.stream s)"""


async def test_a_replay_brings_what_was_published_again_in_order_and_marked_and_moves_no_position(
    url: str, app: App, broker: InProcessBroker
) -> None:
    app.execute("select outbox.add_group('audit')")
    app.commit()
    before = committed(app, 5)
    since = now(app)
    wanted = committed(app, 300)
    other = emit(app, "globex", tier=Tier.BULK, count=3)
    app.commit()
    relay = start(url, MemoryPublisher(broker))
    await arrived(broker, before + wanted)
    await arrived(broker, before + wanted, group="audit")
    await until(lambda: queued(broker, "globex", tier=Tier.BULK) == other, what="the other tenant")
    await relay.hand_over()
    standing = app.execute(POSITIONS).fetchone()
    app.commit()
    number = await _ask(url, since)
    async with _replaying(url, broker):
        await _until_ended(url)
    assert queued(broker) == before + wanted + wanted
    assert queued(broker, "globex", tier=Tier.BULK) == other + other
    assert queued(broker, group="audit") == before + wanted
    assert app.execute(POSITIONS).fetchone() == standing
    marks = _marks(broker)
    assert marks == [None] * 305 + [str(number)] * 300
    (request,) = await _requests(url)
    assert (request.events, request.published, request.failed, request.problem) == (303, 303, 0, None)


async def test_a_replay_never_brings_what_was_not_published_nor_what_others_look_after(
    url: str, app: App, broker: InProcessBroker
) -> None:
    """It would come before its predecessors, beside its own retry, or after somebody has let it go."""
    since = now(app)
    published, (deferred, discarded, early, *unpublished) = await _published(url, app, broker, 4), committed(app, 5)
    app.execute("update outbox.bucket set lo = pg_current_snapshot()")
    app.execute(_STREAM, (early,))
    app.execute(_DEFER, (deferred,))
    app.execute(_DISCARD, (str(discarded),))
    app.commit()
    unpublished += committed(app, 2)  # after every base
    app.execute("select outbox.add_group('audit')")
    app.commit()
    committed(app, 1)
    app.execute("insert into outbox.lane (group_name, tier, tenant) values ('audit', 1, 'acme')")
    app.commit()
    assert await _counted(url, since, group="audit") == 0  # older than the group, or not published to it
    await _ask(url, since)
    async with _replaying(url, broker):
        await _until_ended(url)
    assert queued(broker) == published + published + [early]
    assert broker.queues.keys() & {Lane(group="audit", tier=Tier.STANDARD, tenant="acme").queue} == set()


async def test_a_relay_that_dies_in_a_replay_repeats_a_chunk_and_leaves_nothing_out(
    url: str, app: App, broker: InProcessBroker
) -> None:
    since = now(app)
    events = await _published(url, app, broker, 900)
    await _ask(url, since, per_s=500)
    faulty = FaultyPublisher(broker)
    async with _replaying(url, broker, publisher=faulty, is_crash=True) as gauges:
        await until(lambda: gauges.replayed >= 200, what="part of the replay")
        faulty.is_refused = lambda _: True
        taken = len(faulty.sent)
        await until(lambda: len(faulty.sent) > taken, what="a chunk that the broker has not taken yet")
    app.execute("update outbox.replay set due_at = '-infinity', per_s = 10000")
    app.commit()
    async with _replaying(url, broker):
        await _until_ended(url)
    again = queued(broker)[len(events) :]
    assert list(dict.fromkeys(again)) == events
    assert len(again) <= len(events) + 50


async def test_a_tenant_whose_lane_takes_nothing_holds_no_other_tenants_replay(
    url: str, app: App, broker: InProcessBroker
) -> None:
    since = now(app)
    tenants = [f"tenant-{number}" for number in range(20)]
    for tenant in tenants:
        emit(app, tenant, count=30)
    app.commit()
    await _publish_all(url, app, broker)
    faulty = FaultyPublisher(broker)
    faulty.is_silent = lambda outgoing: outgoing.lane.tenant == "tenant-7"
    number = await _ask(url, since)
    async with _replaying(url, broker, publisher=faulty):
        others = [tenant for tenant in tenants if tenant != "tenant-7"]
        await until(
            lambda: all(len(queued(broker, tenant)) >= 60 for tenant in others), deadline_s=20, what="the others"
        )
        (request,) = await _requests(url)
        assert request.ended_at is None
        assert request.held_tenants == 1
        assert "want a confirm within 0.5 s, got none" in str(request.problem)
        faulty.is_silent = lambda _: False
        app.execute("update outbox.replay set due_at = '-infinity' where ended_at is null")
        app.commit()
        await _until_ended(url)
    (request,) = await _requests(url)
    assert (request.id, request.events, request.failed, request.held_tenants) == (number, 600, 0, 0)
    assert request.published >= 600
    assert set(map(str, _marks(broker, "tenant-7")[30:])) == {str(number)}


async def test_an_outage_costs_a_replay_nothing_but_time(url: str, app: App, broker: InProcessBroker) -> None:
    since = now(app)
    events = await _published(url, app, broker, 100)
    faulty = FaultyPublisher(broker)
    faulty.is_dead = True
    await _ask(url, since)
    async with _replaying(url, broker, publisher=faulty):
        await until(lambda: _has(app, "problem like '%%want it alive%%' and tries = 0"), what="the outage to be told")
        faulty.is_dead = False
        app.execute("update outbox.replay set due_at = '-infinity'")
        app.commit()
        await _until_ended(url)
    assert queued(broker) == events + events
    (request,) = await _requests(url)
    assert (request.published, request.failed, request.problem) == (100, 0, None)


async def test_queues_that_were_lost_are_declared_and_announced_by_the_replay(
    url: str, app: App, broker: InProcessBroker
) -> None:
    """A vhost was deleted, or a broker came back without its disk: what lay there is in the log still."""
    since = now(app)
    events = await _published(url, app, broker, 250)
    lane = Lane(group="default", tier=Tier.STANDARD, tenant="acme")
    broker.delete_queue(lane.queue)
    faulty = FaultyPublisher(broker)
    await _ask(url, since)
    async with _replaying(url, broker, publisher=faulty):
        await _until_ended(url)
    assert queued(broker) == events
    assert [announcement.lane for announcement in faulty.announced] == [lane]


async def test_a_replay_brings_no_tenant_back_that_was_off_boarded(url: str, app: App, broker: InProcessBroker) -> None:
    since = now(app)
    events = await _published(url, app, broker, 50)
    globex = emit(app, "globex", count=50)
    app.commit()
    await _publish_all(url, app, broker)
    await _ask(url, since)
    faulty = FaultyPublisher(broker)

    def is_gone(outgoing: Outgoing) -> bool:
        # A chunk is on its way already; the tenant's queue and record go.
        if outgoing.lane.tenant == "globex":
            broker.delete_queue(outgoing.lane.queue)
            app.execute("delete from outbox.lane where tenant = 'globex'")
            app.commit()
        return False

    faulty.is_refused = is_gone
    async with _replaying(url, broker, publisher=faulty):
        await _until_ended(url)
    assert queued(broker) == events + events
    assert broker.queues.keys() & {Lane(group="default", tier=Tier.STANDARD, tenant="globex").queue} == set()
    (request,) = await _requests(url)
    assert (request.published, request.failed) == (50, len(globex))
    assert "got one that was off-boarded" in str(request.problem)
    assert await _counted(url, since) == 50
    app.execute("update outbox.lane set leaving_at = now()")
    app.commit()
    assert await _counted(url, since) == 0


async def test_a_replay_takes_what_its_filters_name_and_no_more_each_second_than_it_may(
    url: str, app: App, broker: InProcessBroker
) -> None:
    since = now(app)
    await _published(url, app, broker, 50)
    to = now(app)
    emit(app, "globex", count=40)
    ids = emit(app, "globex", count=30)
    app.execute("update outbox.event set type = 'order.paid' where id = any(%s)", (ids,))
    app.commit()
    await _publish_all(url, app, broker)
    assert await _counted(url, since) == 120
    assert await _counted(url, since, to=to) == 50
    assert await _counted(url, to) == 70
    began = now(app)
    await _ask(url, since, tenant="globex", event_type="order.paid", per_s=30)
    async with _replaying(url, broker):
        await _until_ended(url)
    assert queued(broker, "globex")[70:] == ids
    assert len(queued(broker)) == 50
    assert now(app) - began > timedelta(seconds=0.8)


async def test_a_replay_that_is_called_off_ends_at_the_chunk_under_way(
    url: str, app: App, broker: InProcessBroker
) -> None:
    since = now(app)
    events = await _published(url, app, broker, 500)
    number = await _ask(url, since, per_s=100)
    async with _replaying(url, broker) as gauges:
        await until(lambda: gauges.replayed >= 20, what="part of the replay")
        connection = await store.connect(url, store.ANY_PLAN, connect_s=5.0, statement_s=10.0)
        assert await cancel(connection, number) == "default"
        assert await cancel(connection, number) is None
        await store.close(connection)
        await _until_ended(url)
    (request,) = await _requests(url)
    assert request.is_cancelled
    assert len(queued(broker)) - len(events) < 100


async def _published(url: str, app: App, broker: InProcessBroker, count: int) -> list[UUID]:
    events = committed(app, count)
    await _publish_all(url, app, broker)
    return events


async def _publish_all(url: str, app: App, broker: InProcessBroker) -> None:
    """Have a relay publish everything, and leave."""
    relay = start(url, MemoryPublisher(broker))
    logged = value(app, "select count(*) from outbox.event")
    app.commit()
    await until(lambda: sum(len(queue.ready) for name, queue in broker.queues.items() if ".lane." in name) == logged)
    await relay.hand_over()


def _has(app: App, condition: LiteralString) -> bool:
    found = value(app, f"select exists (select from outbox.replay where {condition})")
    app.commit()
    return bool(found)


def _marks(broker: InProcessBroker, tenant: str = "acme") -> list[object]:
    queue = broker.queues[Lane(group="default", tier=Tier.STANDARD, tenant=tenant).queue]
    return [item.message.headers.get("ce-replayid") for item in sorted(queue.ready)]


@asynccontextmanager
async def _replaying(
    url: str, broker: InProcessBroker, *, publisher: Both | None = None, is_crash: bool = False
) -> AsyncIterator[Gauges]:
    stop, gauges, publisher = asyncio.Event(), Gauges(), publisher or MemoryPublisher(broker)
    limits = replace(QUICK, confirm_s=0.5)
    task = asyncio.create_task(
        run_replays(url, publisher, publisher, stop=stop, limits=limits, gauges=gauges, look_every_s=0.05)
    )
    try:
        yield gauges
        if not is_crash:
            stop.set()
            await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _ask(
    url: str,
    since: datetime,
    *,
    to: datetime | None = None,
    group: str | None = "default",
    tenant: str | None = None,
    event_type: str | None = None,
    per_s: int = 10_000,
) -> int:
    """Ask as the command does; the number of the only share."""
    connection = await store.connect(url, store.ANY_PLAN, connect_s=5.0, statement_s=10.0)
    try:
        async with connection.transaction():
            now = (await bounds(connection)).now
            wanted = Wanted(from_at=since, to_at=to or now, group=group, tenant=tenant, type=event_type)
            (share,) = await shares(connection, wanted)
            return await ask(connection, wanted, share, per_s=per_s, requested_by="test")
    finally:
        await store.close(connection)


async def _counted(url: str, since: datetime, *, to: datetime | None = None, group: str = "default") -> int:
    connection = await store.connect(url, store.ANY_PLAN, connect_s=5.0, statement_s=10.0)
    try:
        async with connection.transaction():
            wanted = Wanted(from_at=since, to_at=to or (await bounds(connection)).now, group=group)
            return sum(share.events for share in await shares(connection, wanted))
    finally:
        await store.close(connection)


async def _requests(url: str) -> list[Request]:
    connection = await store.connect(url, store.ANY_PLAN, connect_s=5.0, statement_s=10.0)
    try:
        return list(await requests(connection, limit=100))
    finally:
        await store.close(connection)


async def _until_ended(url: str) -> None:
    async def is_ended() -> bool:
        return all(request.ended_at is not None for request in await _requests(url))

    await until(is_ended, deadline_s=20, every_s=0.05, what="every replay to end")
