"""Outages of the broker pause the relay and cost nothing; one lane's fault is that lane's alone."""

import asyncio
from dataclasses import replace

import psycopg

from outbox.inprocess import InProcessBroker
from relay.ports import Category, LaneFault
from tests.integration.relay.faulty_publisher import FaultyPublisher
from tests.integration.relay.running import QUICK, App, arrived, emit, queued, running, value
from tests.support.wait import until

IMPATIENT = replace(QUICK, confirm_s=0.5)


async def test_an_outage_of_the_broker_dead_letters_nothing_and_counts_no_attempt(
    url: str, app: App, broker: InProcessBroker
) -> None:
    """zarusz/SlimMessageBus#459: with a limit of 3 attempts a minute without the broker used them all up."""
    publisher = FaultyPublisher(broker)
    async with running(url, broker, publisher=publisher, limits=replace(QUICK, attempts=3)) as relay:
        await relay.sees(lambda gauges: gauges.is_broker_up)
        publisher.is_dead = True
        events = emit(app, count=50)
        app.commit()
        await until(lambda: publisher.opens > 5, what="more attempts to connect than an event has")
        assert relay.gauges.owned == 64
        publisher.is_dead = False
        await arrived(broker, events)
        assert value(app, "select count(*) from outbox.deferred") == 0


async def test_what_a_cut_leaves_unknown_is_sent_again_in_order_before_anything_new(
    url: str, app: App, broker: InProcessBroker
) -> None:
    publisher = FaultyPublisher(broker)
    async with running(url, broker, publisher=publisher) as relay:
        first = emit(app)
        app.commit()
        await relay.sees(lambda gauges: gauges.confirmed == 1)
        publisher.is_silent = lambda _: True
        events = emit(app, count=30)
        app.commit()
        await until(lambda: len(publisher.sent) == 31, what="all to be sent")
        publisher.is_silent = lambda _: False
        broker.drop_connections()
        later = emit(app, count=10)
        app.commit()
        await arrived(broker, later)
        sent = [outgoing.event.id for outgoing in publisher.sent]
        assert sent == [*first, *events, *events, *later]
        assert relay.gauges.broker_losses == 1


async def test_a_lane_that_stands_gets_its_events_though_the_connection_is_lost_while_that_is_written_down(
    url: str, app: App, broker: InProcessBroker
) -> None:
    publisher = FaultyPublisher(broker)
    has_to_fail = publisher.announcing_fails = asyncio.Event()
    with psycopg.connect(url) as other:
        async with running(url, broker, publisher=publisher, limits=replace(QUICK, lease_s=15.0)) as relay:
            first = emit(app, "first")
            app.commit()
            await arrived(broker, first, "first")
            other.execute("lock table outbox.lane in share row exclusive mode")
            events = emit(app, "second")
            app.commit()
            is_waiting = "select count(*) from pg_locks where relation = 'outbox.lane'::regclass and not granted"
            await until(lambda: value(app, is_waiting) == 1, what="the second lane to be written down")
            app.rollback()
            has_to_fail.set()
            await until(lambda: publisher.announcing_fails is None, what="the announcement of the first to fail")
            other.rollback()
            await arrived(broker, events, "second")
            assert relay.gauges.broker_losses == 1


async def test_confirms_that_never_come_have_a_deadline_after_which_the_connection_is_replaced(
    url: str, app: App, broker: InProcessBroker
) -> None:
    """Juniper OpenSDN#129, mosquito/aio-pika#636: without one the publisher waits for ever."""
    publisher = FaultyPublisher(broker)
    publisher.is_silent = lambda _: publisher.opens < 3
    async with running(url, broker, publisher=publisher, limits=IMPATIENT) as relay:
        events = emit(app, count=5)
        app.commit()
        await relay.sees(lambda gauges: gauges.confirmed == 5, what="confirms on the third connection")
        assert publisher.opens == 3
        assert relay.gauges.owned == 64
        assert set(queued(broker)) == set(events)


async def test_a_blocked_broker_gets_nothing_keeps_its_leases_and_goes_on_by_itself(
    url: str, app: App, broker: InProcessBroker
) -> None:
    """mosquito/aio-pika#636."""
    async with running(url, broker, limits=IMPATIENT) as relay:
        await relay.sees(lambda gauges: gauges.is_broker_up)
        broker.block()
        await relay.sees(lambda gauges: gauges.is_blocked)
        events = emit(app, count=20)
        app.commit()
        stepped_at = relay.gauges.stepped_at
        await relay.sees(
            lambda gauges: gauges.stepped_at > stepped_at + 2 * IMPATIENT.lease_s, what="two leases to pass"
        )
        assert relay.gauges.owned == 64
        assert relay.gauges.published == 0
        assert relay.gauges.leases_lost == 0
        assert not relay.gauges.is_ready
        broker.block(is_blocked=False)
        await arrived(broker, events)
        assert relay.gauges.broker_losses == 0


async def test_a_lane_whose_confirms_are_missing_holds_back_no_other(
    url: str, app: App, broker: InProcessBroker
) -> None:
    publisher = FaultyPublisher(broker)
    publisher.is_silent = lambda outgoing: outgoing.lane.tenant == "silent"
    async with running(url, broker, publisher=publisher, limits=IMPATIENT) as relay:
        silent = emit(app, "silent", count=1000)
        app.commit()
        async with asyncio.timeout(20):
            while not relay.gauges.faulty_lanes:
                probe = emit(app, "quiet")
                app.commit()
                await arrived(broker, probe, "quiet")
        others = emit(app, "quiet", count=1000)
        app.commit()
        await arrived(broker, others, "quiet")
        assert relay.gauges.broker_losses == 0
        stored = "select count(*) from outbox.stream where tenant = 'silent'"
        await until(lambda: value(app, stored) == 1, what="its own position to be stored")
        publisher.is_silent = lambda _: False
        await arrived(broker, silent, "silent")
        await relay.sees(lambda gauges: gauges.unpersisted == 0)
    first = list(dict.fromkeys(queued(broker, "silent")))
    assert first == silent


async def test_a_message_given_back_is_published_again_later_without_a_hot_loop(
    url: str, app: App, broker: InProcessBroker
) -> None:
    publisher = FaultyPublisher(broker)
    publisher.is_refused = lambda outgoing: outgoing.lane.tenant == "full"
    async with running(url, broker, publisher=publisher) as relay:
        full, others = emit(app, "full"), emit(app, "roomy", count=20)
        app.commit()
        await arrived(broker, others, "roomy")
        await relay.sees(lambda gauges: gauges.nacked >= 4)
        assert relay.gauges.nacked < 20
        publisher.is_refused = lambda _: False
        await arrived(broker, full, "full")
        assert value(app, "select count(*) from outbox.deferred") == 0


async def test_a_lane_that_cannot_be_declared_waits_in_the_log_and_the_others_go_on(
    url: str, app: App, broker: InProcessBroker
) -> None:
    """mosquito/aio-pika#565: a queue that exists with other arguments."""
    publisher = FaultyPublisher(broker)
    publisher.lane_fault = lambda lane: (
        LaneFault(lane=lane, category=Category.MISMATCH, reason="other arguments") if lane.tenant == "odd" else None
    )
    async with running(url, broker, publisher=publisher) as relay:
        odd, others = emit(app, "odd", count=300), emit(app, "even", count=300)
        app.commit()
        await arrived(broker, others, "even")
        await relay.sees(lambda gauges: gauges.held_lanes == 1)
        assert value(app, "select count(*) from outbox.deferred") == 0
        publisher.lane_fault = lambda _: None
        await arrived(broker, odd, "odd")
    assert queued(broker, "odd") == odd


async def test_a_lane_is_announced_when_it_is_declared_and_again_on_a_roll_call(
    url: str, app: App, broker: InProcessBroker
) -> None:
    publisher = FaultyPublisher(broker)
    async with running(url, broker, publisher=publisher):
        events = emit(app)
        app.commit()
        await arrived(broker, events)
        await until(lambda: len(publisher.announced) == 1, what="an announcement")
        assert value(app, "select tenant from outbox.lane") == "acme"
        publisher.called.add("default")
        await until(lambda: len(publisher.announced) == 2, what="an answer to the roll call")
        started_at = value(app, "select started_at from outbox.consumer_group")
        assert {one.group_started_at for one in publisher.announced} == {started_at}
