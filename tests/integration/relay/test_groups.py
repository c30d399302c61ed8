"""Each group reads the log on its own: a row is read once, sent to every group, and one's fault is not another's."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from uuid import UUID

import psycopg
import pytest

from outbox.event import Tier
from outbox.inprocess import InProcessBroker
from relay.memory import MemoryPublisher
from tests.integration.relay.faulty_publisher import FaultyPublisher
from tests.integration.relay.running import QUICK, App, arrived, committed, emit, now, queued, start, value
from tests.support.wait import until

ADD = "select outbox.add_group(%s, %s)"


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


async def test_a_group_started_in_the_past_is_sent_each_event_since_then_once_and_the_others_none_again(
    url: str, app: App, other: App, broker: InProcessBroker
) -> None:
    """Kafka's reset of an offset, Debezium's snapshot of one table: what was handled is handled once more."""
    relay = start(url, MemoryPublisher(broker))
    await relay.owns(64)
    before = committed(app, 300)
    since = now(app)
    expected = committed(app, 1500) + committed(app, 1500)  # more than is brought along in one go
    small = {tenant: emit(app, tenant, tier=Tier.BULK, count=3) for tenant in ("globex", "initech")}
    app.commit()
    late = emit(app)  # has its number before the group, and commits after it
    other.execute(ADD, ("audit", since))
    other.commit()
    expected += committed(other, 10)
    app.commit()
    await relay.owns(128)
    expected += committed(other, 10)
    await arrived(broker, [*before, *expected, *late])
    await arrived(broker, [*expected, *late], group="audit")
    assert [one for one in queued(broker, group="audit") if one not in late] == expected
    assert sorted(queued(broker, group="audit")) == sorted([*expected, *late])
    assert sorted(queued(broker)) == sorted([*before, *expected, *late])
    for tenant, events in small.items():
        await _until_queued(broker, events, tenant)
    await relay.hand_over()
    assert value(app, "select count(*) from outbox.stream") == 0


async def test_a_group_started_in_the_past_is_sent_no_keyed_event_that_its_consumer_takes_for_handled(
    url: str, app: App, broker: InProcessBroker
) -> None:
    """A number is drawn after its event's time: one from before the start may lie between those since then."""
    events = emit(app, count=6)
    app.execute("update outbox.event set ordering_key = 'k', key_number = seq where seq % 2 = 1")
    app.commit()
    rows = app.execute("select id, ordering_key from outbox.event").fetchall()
    since = now(app)
    # The first and the last are since the start, the others from before it.
    app.execute("update outbox.event set ledger_at = %s where id = any(%s)", (since, [events[0], events[5]]))
    app.execute(ADD, ("audit", since))
    app.commit()
    relay = start(url, MemoryPublisher(broker))
    keyed = {one for one, key in rows if key is not None} - {events[0], events[5]}
    expected = [one for one in events if one not in keyed]
    await _until_queued(broker, expected)
    await relay.hand_over()
    assert queued(broker, group="audit") == expected
    assert queued(broker) == events


async def test_a_relay_that_dies_while_a_group_catches_up_leaves_nothing_out(
    url: str, app: App, broker: InProcessBroker
) -> None:
    since = now(app)
    events = committed(app, 4000)
    relay = start(url, MemoryPublisher(broker))
    await arrived(broker, events)
    await relay.hand_over()
    app.execute(ADD, ("audit", since))
    app.commit()
    relay = start(url, MemoryPublisher(broker), limits=replace(QUICK, window=500))
    await relay.sees(lambda gauges: gauges.confirmed >= 1500)
    await relay.crash()
    app.execute("update outbox.bucket set expires_at = '-infinity'")
    app.commit()
    relay = start(url, MemoryPublisher(broker))
    await arrived(broker, events, group="audit")
    await relay.hand_over()
    found = queued(broker, group="audit")
    assert list(dict.fromkeys(found)) == events
    assert len(found) <= len(events) + 500
    assert queued(broker) == events


async def test_what_a_group_started_in_the_past_still_needs_is_kept(
    url: str, app: App, broker: InProcessBroker
) -> None:
    """A retention that looks at the present positions alone would drop it: these have passed every row."""
    since = now(app)
    events = committed(app, 3)
    _into_an_old_slot(app)
    relay = start(url, MemoryPublisher(broker))
    await arrived(broker, events)
    await relay.hand_over()
    app.execute(ADD, ("audit", since))
    app.commit()
    assert _truncated(app) == "unpublished"
    relay = start(url, MemoryPublisher(broker))
    await arrived(broker, events, group="audit")
    await relay.hand_over()
    assert _truncated(app) == "truncated"


async def test_no_group_starts_where_the_log_has_gaps(url: str, app: App, broker: InProcessBroker) -> None:
    events = committed(app, 3)
    _into_an_old_slot(app)
    kept = committed(app, 1)
    relay = start(url, MemoryPublisher(broker))
    await arrived(broker, events + kept)
    await relay.hand_over()
    assert _truncated(app) == "truncated"
    with pytest.raises(psycopg.errors.DatetimeFieldOverflow, match="want a start from which on the log keeps every"):
        app.execute(ADD, ("audit", now(app) - timedelta(days=6)))
    app.rollback()
    app.execute(ADD, ("audit", now(app) - timedelta(days=1)))  # no matter that there are no rows as old
    app.rollback()
    with pytest.raises(psycopg.errors.DatetimeFieldOverflow, match="want a start that is not ahead"):
        app.execute("select outbox.add_group('audit', clock_timestamp() + interval '1 min')")
    app.rollback()
    with pytest.raises(psycopg.errors.InvalidTransactionState, match="want read committed"):
        app.execute("set transaction isolation level repeatable read; select outbox.add_group('audit', now())")
    app.rollback()


async def _until_queued(broker: InProcessBroker, events: Sequence[UUID], tenant: str = "acme") -> None:
    """Until the group ``audit`` has been sent *events*, in whatever tier."""
    await until(
        lambda: any(queued(broker, tenant, group="audit", tier=tier) == list(events) for tier in Tier),
        what="the events in their order",
    )


def _into_an_old_slot(app: App) -> None:
    """Move every row to the slot that ended four days ago."""
    app.execute("update outbox.event set slot = (slot + 8) % 16")
    app.commit()


def _truncated(app: App) -> object:
    found = value(app, "select outbox.truncate_slot((outbox.current_slot() + 8) %% 16, interval '0')")
    app.commit()
    return found
