"""An event that cannot be published is set aside with its reason; its neighbours and successors go on."""

import asyncio
from dataclasses import replace
from functools import partial
from typing import LiteralString
from uuid import UUID, uuid4

import pytest

from outbox.event import Event, Ordering, Tier
from outbox.inprocess import InProcessBroker
from outbox.naming import Lane, bucket_of, tenant_hash
from outbox.shell.database import connect
from outbox.wire import decode
from relay.log import deferred, resolve, store
from relay.log.deferred_list import DeferredFilter
from relay.memory import MemoryPublisher
from relay.ports import Category, LaneFault
from tests.integration.relay.faulty_publisher import FaultyPublisher
from tests.integration.relay.running import QUICK, App, arrived, emit, queued, running, value
from tests.support.wait import until

LANE = Lane(group="default", tier=Tier.STANDARD, tenant="acme")


async def test_an_event_whose_queue_was_deleted_is_published_after_the_queue_is_declared_again(
    url: str, app: App, broker: InProcessBroker
) -> None:
    """Particular/NServiceBus.RabbitMQ#135, gmr/aiorabbit#13: an unroutable message is acked, and lost."""
    async with running(url, broker) as relay:
        await arrived(broker, _committed(app))
        broker.delete_queue(LANE.queue)
        events = _committed(app, count=100) + _committed(app, payload=b"")
        await arrived(broker, events)
        assert queued(broker) == events
        assert relay.gauges.returned
        assert relay.gauges.deferred == 0


async def test_an_event_that_cannot_be_routed_after_all_is_deferred_with_a_sentence_and_published_when_it_can(
    url: str, app: App, broker: InProcessBroker
) -> None:
    publisher = FaultyPublisher(broker)
    async with running(url, broker, publisher=publisher) as relay:
        await arrived(broker, _committed(app))
        broker.delete_queue(LANE.queue)
        publisher.lane_fault = lambda lane: LaneFault(lane=lane, category=Category.FORBIDDEN, reason="no permission")
        events = _committed(app, count=5)
        await until(lambda: value(app, "select count(*) from outbox.deferred") == 5, what="five deferred events")
        rows = app.execute("select distinct state, category, reason, attempts from outbox.deferred").fetchall()
        assert rows == [("retry", "forbidden", "no permission", 1)]
        assert value(app, "select count(*) from outbox.deferred where due_at > clock_timestamp()") == 5
        app.commit()
        later = _committed(app)
        publisher.lane_fault = lambda _: None
        await arrived(broker, later)  # successors go on
        assert not set(events) & set(queued(broker))
        await _make_due(app)
        await arrived(broker, events)
        await until(
            lambda: value(app, "select count(*) from outbox.deferred") == 0, what="deferred events to be forgotten"
        )
        assert relay.gauges.retried == 5


async def test_an_event_that_fails_too_often_is_dead_and_stays_with_its_reason(
    url: str, app: App, broker: InProcessBroker
) -> None:
    publisher = FaultyPublisher(broker)
    async with running(url, broker, publisher=publisher, limits=replace(QUICK, attempts=3)) as relay:
        await arrived(broker, _committed(app))
        publisher.is_returned = lambda _: True
        _committed(app)
        for attempts in (1, 2, 3):
            await until(partial(_has_failed, app, attempts), what=f"failure {attempts} to be stored")
            await _make_due(app)
        rows = app.execute("select state, category, attempts from outbox.deferred").fetchall()
        assert rows == [("dead", "unroutable", 3)]
        assert relay.gauges.returned == 6  # each try is made twice, with a declaration in between


async def test_one_unsendable_event_at_the_head_holds_back_nothing(url: str, app: App, broker: InProcessBroker) -> None:
    """MassTransit PR#6216, ThreeDotsLabs/watermill#224: the one at the head was tried for ever."""
    publisher = MemoryPublisher(broker, body_bytes_max=10_000)
    async with running(url, broker, publisher=publisher) as relay:
        (huge,) = emit(app, payload=b"x" * 10_001)
        others = emit(app, count=999)
        app.commit()
        await arrived(broker, others)
        assert queued(broker) == others
        await until(lambda: value(app, "select count(*) from outbox.deferred") == 1, what="the offender to be dead")
        row = app.execute(
            "select id, state, category, payload = repeat('x', 10001)::bytea from outbox.deferred"
        ).fetchone()
        assert row == (huge, "dead", "too_large", True)
        assert relay.gauges.published == 1000


async def test_a_crash_between_failure_and_persist_defers_the_event_once(
    url: str, app: App, broker: InProcessBroker
) -> None:
    publisher = MemoryPublisher(broker, body_bytes_max=10_000)
    patient = replace(QUICK, persist_s=60.0)
    (huge,) = emit(app, payload=b"x" * 10_001)
    others = emit(app, count=10)
    app.commit()
    async with running(url, broker, publisher=publisher, limits=patient) as relay:
        await relay.sees(lambda gauges: gauges.dead == 1)
        await relay.crash()
    app.execute("update outbox.bucket set expires_at = '-infinity'")
    app.commit()
    async with running(url, broker, publisher=publisher) as relay:
        await arrived(broker, others)
        await until(lambda: value(app, "select count(*) from outbox.deferred") == 1, what="the offender to be dead")
        assert value(app, "select id from outbox.deferred") == huge


@pytest.mark.parametrize("is_ours", [True, False])
async def test_deferred_events_are_retried_by_the_owner_of_their_bucket_alone(
    url: str, app: App, broker: InProcessBroker, *, is_ours: bool
) -> None:
    async with running(url, broker) as relay:
        events = _committed(app)
        await arrived(broker, events)
        lease: LiteralString = "select" if is_ours else "update outbox.bucket set token = 0, expires_at = 'infinity'"
        await _execute(
            app,
            """insert into outbox.deferred
               (group_name, state, category, reason, attempts, due_at, id, bucket, tier, tenant, tenant_hash, type,
                data_version, source, content_type, payload)
               select 'default', 'retry', 'unroutable', 'r', 1, '-infinity', gen_random_uuid(), bucket, tier, tenant,
                      tenant_hash, type, data_version, source, content_type, payload from outbox.event""",
            lease,
        )
        if is_ours:
            await until(lambda: len(queued(broker)) == 2, what="the retry")
        else:
            await relay.sees(lambda gauges: gauges.leases_lost == 1)
            assert len(queued(broker)) == 1


def _committed(app: App, *, count: int = 1, payload: bytes = b"{}") -> list[UUID]:
    events = emit(app, count=count, payload=payload)
    app.commit()
    return events


def _has_failed(app: App, attempts: int) -> bool:
    stored = value(app, "select coalesce(max(attempts), 0) from outbox.deferred")
    app.commit()
    return stored == attempts


async def test_a_discarded_event_is_published_as_a_void_to_its_group_alone_once_a_relay_runs(
    url: str, app: App, broker: InProcessBroker
) -> None:
    """namastack/namastack-outbox#9, MassTransit/MassTransit#3512: successors wait for the number at the consumer."""
    app.execute("select outbox.add_group('billing')")
    app.commit()
    publisher = FaultyPublisher(broker)
    first, second = _keyed(app, 1), _keyed(app, 2)
    publisher.is_returned = lambda outgoing: outgoing.lane.group == "billing" and outgoing.event.id == first
    async with running(url, broker, publisher=publisher, limits=replace(QUICK, attempts=1), buckets=128) as relay:
        app.commit()
        await arrived(broker, [second], group="billing")
        await until(lambda: _states(app) == ["dead"], what="the first to be dead")
        await relay.sees(lambda gauges: gauges.unpersisted == 0)
    assert await _discard(url, first) == ([], [first], [])
    async with running(url, broker, publisher=FaultyPublisher(broker), buckets=128) as relay:
        await until(lambda: _states(app) == [], what="the void to be published")
        await relay.sees(lambda gauges: gauges.voids == 1)
    voids = [_event(broker, one, group="billing") for one in (first, second)]
    assert [(one.id, one.is_void, one.payload) for one in voids] == [(first, True, b""), (second, False, b"{}")]
    assert voids[0].ordering == replace(_ordering(1), is_void=True)
    assert queued(broker) == [first, second]
    assert not _event(broker, first).is_void


async def test_a_void_that_fails_is_tried_until_it_is_published_and_is_never_dead(
    url: str, app: App, broker: InProcessBroker
) -> None:
    publisher = FaultyPublisher(broker)
    event = _keyed(app, 1)
    app.commit()
    publisher.is_returned = lambda _: True
    async with running(url, broker, publisher=publisher, limits=replace(QUICK, attempts=1)) as relay:
        await until(lambda: _states(app) == ["dead"], what="the event to be dead")
        assert await _discard(url, event) == ([], [event], [])
        for attempts in (1, 2, 3):
            await until(partial(_has_failed, app, attempts), what=f"failure {attempts} to be stored")
            assert _states(app) == ["void"]
            await _make_due(app)
        publisher.is_returned = lambda _: False
        await _make_due(app)
        await arrived(broker, [event])
        await until(lambda: _states(app) == [], what="the void to be forgotten")
        assert (relay.gauges.voids, relay.gauges.retried) == (1, 0)


async def test_what_a_relay_has_in_hand_is_not_discarded_and_ends_as_it_would_have(
    url: str, app: App, broker: InProcessBroker
) -> None:
    publisher = FaultyPublisher(broker)
    event = _put_aside(app)
    publisher.is_refused = lambda outgoing: outgoing.event.id == event
    async with running(url, broker, publisher=publisher) as relay:
        await _make_due(app)
        await relay.sees(lambda gauges: gauges.nacked > 0)
        # Given back and sent again later, it is with the relay all the time.
        assert await _discard(url, event) == ([], [], [event])
        publisher.is_refused = lambda _: False
        await arrived(broker, [event])
        await until(lambda: _states(app) == [], what="the event to be forgotten")
    assert queued(broker) == [event]


@pytest.mark.parametrize("is_published", [True, False])
async def test_a_relay_whose_lease_ran_out_while_it_sent_an_event_makes_nothing_of_what_was_decided_since(
    url: str, app: App, broker: InProcessBroker, *, is_published: bool
) -> None:
    publisher = FaultyPublisher(broker)
    event = _put_aside(app, number=1)
    publisher.is_refused = lambda _: True
    async with running(url, broker, publisher=publisher) as relay:
        await _make_due(app)
        await relay.sees(lambda gauges: gauges.nacked > 0)
        # As if it had been frozen for that long, and nobody had been there to take its place.
        assert await _discard(url, event, first="update outbox.bucket set expires_at = '-infinity'") == (
            [],
            [event],
            [],
        )
        publisher.is_refused = lambda _: False
        publisher.is_returned = lambda outgoing: not is_published and not outgoing.event.is_void
        await until(lambda: _states(app) == [], what="the void to be published")
        await relay.sees(lambda gauges: gauges.voids == 1)
        assert relay.gauges.leases_lost == 0
    assert queued(broker) == ([event, event] if is_published else [event])
    assert [outgoing.event.is_void for outgoing in publisher.sent][-1]


async def test_a_lane_that_must_wait_leaves_the_retries_of_others_their_turn(
    url: str, app: App, broker: InProcessBroker
) -> None:
    publisher = FaultyPublisher(broker)
    publisher.lane_fault = lambda lane: (
        LaneFault(lane=lane, category=Category.FORBIDDEN, reason="no permission") if lane.tenant == "odd" else None
    )
    stuck = [_put_aside(app, tenant="odd") for _ in range(30)]
    other = _put_aside(app)
    async with running(url, broker, publisher=publisher, limits=replace(QUICK, chunk=10)):
        await _execute(
            app,
            "update outbox.deferred set due_at = '-infinity' where tenant = 'odd'",
            "update outbox.deferred set due_at = now() where tenant <> 'odd'",
        )
        await arrived(broker, [other])
        await until(lambda: len(_states(app)) == 30, what="the other one to be forgotten")
        attempts = value(app, "select max(attempts) from outbox.deferred")
        app.commit()
        assert attempts == 1  # the lane's fault is no failure of theirs
        publisher.lane_fault = lambda _: None
        await arrived(broker, stuck, "odd")


async def test_what_is_dead_or_must_wait_costs_the_retries_of_others_nothing(url: str, app: App) -> None:
    """Each look read every deferred row once for each bucket, and a relay with many could not go on."""
    connection = await store.connect(url, store.FIXED_PLANS, connect_s=5.0, statement_s=20.0)
    await deferred.due(connection, 7, waiting=(), rows_max=200, within_s=5.0)  # the plan is made on an empty table
    app.execute("update outbox.bucket set token = 7, expires_at = now() + interval '1 hour'")
    app.execute(
        """insert into outbox.deferred (group_name, state, category, reason, attempts, due_at, id, bucket, tier, tenant,
               tenant_hash, type, data_version, source, content_type, payload)
           select 'default', case when n % 50 = 0 then 'retry' else 'dead' end, 'unroutable', 'r', 1, now(),
               gen_random_uuid(), n % 64, 1, 't' || n % 500, 5, 't', 1, 's', 'c', '' from generate_series(1, 50000) n"""
    )
    app.commit()
    waiting = [LANE._replace(tenant=f"t{number}") for number in range(50, 500)]
    for _ in range(10):
        found = await deferred.due(connection, 7, waiting=waiting, rows_max=200, within_s=1.0)
        assert {one.lane.tenant for one in found} == {"t0"}
        assert len(await deferred.claim(connection, 7, found[:10], within_s=1.0)) == 10
    assert len(await deferred.due(connection, 7, waiting=(), rows_max=2_000, within_s=1.0)) == 900
    await store.close(connection)


async def test_an_operator_who_falls_asleep_over_an_event_holds_back_no_other(
    url: str, app: App, other: App, broker: InProcessBroker
) -> None:
    slept_on, free = _put_aside(app), _put_aside(app)
    await _make_due(app)
    other.execute("select from outbox.deferred where id = %s for update", (slept_on,))
    async with running(url, broker) as relay:
        await arrived(broker, [free])
        await until(lambda: len(_states(app)) == 1, what="the free one to be forgotten")
        other.rollback()
        await arrived(broker, [slept_on])
        assert relay.gauges.store_losses == 0


def _keyed(app: App, number: int) -> UUID:
    """Write event *number* of a key into the log."""
    (event,) = emit(app)
    app.execute(
        "update outbox.event set ordering_key = 'order-1', key_number = %s, key_first = %s where id = %s",
        (number, number == 1, event),
    )
    return event


def _ordering(number: int) -> Ordering:
    return Ordering(key="order-1", number=number, is_first=number == 1, previous_time=None)


def _put_aside(app: App, *, tenant: str = "acme", number: int | None = None) -> UUID:
    """Write an event that failed once, and is due in an hour."""
    one, hashed = uuid4(), tenant_hash(tenant)
    app.execute(
        """insert into outbox.deferred (group_name, state, category, reason, attempts, due_at, id, bucket, tier, tenant,
               tenant_hash, type, data_version, source, content_type, payload, ordering_key, key_number, key_first)
           values ('default', 'retry', 'unroutable', 'r', 1, now() + interval '1 hour', %s, %s, 1, %s, %s, 't', 1, 's',
               'application/json', '{}', %s, %s, true)""",
        (one, bucket_of(hashed), tenant, hashed, None if number is None else "order-1", number),
    )
    app.commit()
    return one


async def _make_due(app: App) -> None:
    await _execute(app, "update outbox.deferred set due_at = '-infinity' where state <> 'dead'")


async def _execute(app: App, *statements: LiteralString) -> None:
    """Run and commit *statements* beside the relay, which may have to end a transaction before they can."""

    def run() -> None:
        for statement in statements:
            app.execute(statement)
        app.commit()

    await asyncio.to_thread(run)


def _states(app: App) -> list[object]:
    states = [state for (state,) in app.execute("select state from outbox.deferred").fetchall()]
    app.commit()
    return states


async def _discard(
    url: str, event: UUID, *, first: LiteralString = "select"
) -> tuple[list[UUID], list[UUID], list[UUID]]:
    """What is removed, what leaves a void, and what is refused; *first* is said in the same transaction."""
    async with await connect(url, application_name="test") as connection, connection.transaction():
        await connection.execute(first)
        resolved = await resolve.discard(connection, DeferredFilter(ids=(event,)), limit=10)
    removed, voids, refused = resolved.removed, resolved.voids, resolved.refused
    return [one.id for one in removed], [one.id for one in voids], [one.id for one in refused]


def _event(broker: InProcessBroker, event: UUID, *, group: str = "default") -> Event:
    """The last message of *event* in its lane's queue."""
    queue = broker.queues[LANE._replace(group=group).queue]
    found = [item.message for item in sorted(queue.ready) if item.message.message_id == str(event)]
    return decode(found[-1])
