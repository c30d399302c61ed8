"""An event that cannot be published is set aside with its reason; its neighbours and successors go on."""

from dataclasses import replace
from functools import partial
from uuid import UUID

import pytest

from outbox.event import Tier
from outbox.inprocess import InProcessBroker
from outbox.naming import Lane
from relay.memory import MemoryPublisher
from relay.ports import Category, LaneFault
from tests.integration.relay.faulty_publisher import FaultyPublisher
from tests.integration.relay.running import QUICK, App, arrived, emit, queued, running, value
from tests.support.wait import until

DUE_NOW = "update outbox.deferred set due_at = '-infinity' where state = 'retry'"
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
        app.execute(DUE_NOW)
        app.commit()
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
            app.execute(DUE_NOW)
            app.commit()
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
        app.execute(
            """insert into outbox.deferred
               (group_name, state, category, reason, attempts, due_at, id, bucket, tier, tenant, tenant_hash, type,
                data_version, source, content_type, payload)
               select 'default', 'retry', 'unroutable', 'r', 1, '-infinity', gen_random_uuid(), bucket, tier, tenant,
                      tenant_hash, type, data_version, source, content_type, payload from outbox.event"""
        )
        if not is_ours:
            app.execute("update outbox.bucket set token = 0, expires_at = 'infinity'")
        app.commit()
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
