"""Each group reads the log on its own: a row is read once, sent to every group, and one's fault is not another's."""

from dataclasses import replace

from outbox.inprocess import InProcessBroker
from relay.memory import MemoryPublisher
from tests.integration.relay.faulty_publisher import FaultyPublisher
from tests.integration.relay.running import QUICK, App, arrived, emit, queued, start, value
from tests.support.wait import until


async def test_every_group_is_sent_every_event_committed_since_it_was_added(
    url: str, app: App, broker: InProcessBroker
) -> None:
    relay = start(url, MemoryPublisher(broker))
    await relay.owns(64)
    before = emit(app)
    app.commit()
    await arrived(broker, before)
    app.execute("select outbox.add_group('audit')")
    app.commit()
    await relay.owns(128)  # a running relay takes it without being told
    after = emit(app, count=20)
    app.commit()
    await arrived(broker, after)
    await arrived(broker, after, group="audit")
    assert queued(broker, group="audit") == after
    assert queued(broker) == before + after
    await relay.crash()


async def test_a_group_added_while_no_relay_ran_gets_what_was_committed_since(
    url: str, app: App, broker: InProcessBroker
) -> None:
    app.execute("select outbox.add_group('audit')")
    app.commit()
    events = emit(app, count=2500)  # more than is brought along in one go
    app.commit()
    relay = start(url, MemoryPublisher(broker))
    await arrived(broker, events, group="audit")
    await arrived(broker, events)
    assert queued(broker, group="audit") == events
    assert queued(broker) == events
    await relay.crash()


async def test_one_groups_silent_lane_never_holds_anothers(url: str, app: App, broker: InProcessBroker) -> None:
    """mosquito/aio-pika#689: the same event to two groups; each answer belongs to its own."""
    app.execute("select outbox.add_group('audit')")
    app.commit()
    publisher = FaultyPublisher(broker)
    publisher.is_silent = lambda outgoing: outgoing.lane.group == "audit"
    relay = start(url, publisher, limits=replace(QUICK, confirm_s=0.5))
    await relay.owns(128)
    events = emit(app, count=3000)
    app.commit()
    await arrived(broker, events)
    assert queued(broker) == events

    def is_stored() -> bool:
        stored = value(app, "select array_agg(group_name) from outbox.stream")
        app.commit()
        return stored == ["audit"]

    await until(is_stored, what="a stream of the silent group alone")
    publisher.is_silent = lambda _: False
    await arrived(broker, events, group="audit")
    await relay.crash()


async def test_removing_a_group_under_a_running_relay_stops_nothing_else(
    url: str, app: App, broker: InProcessBroker
) -> None:
    app.execute("select outbox.add_group('audit')")
    app.commit()
    relay = start(url, MemoryPublisher(broker))
    await relay.owns(128)
    app.execute("delete from outbox.consumer_group where group_name = 'audit'")
    app.commit()
    await relay.owns(64)
    events = emit(app, count=10)
    app.commit()
    await arrived(broker, events)
    await relay.crash()
