"""What ``outbox-relay status`` tells, as values, text and JSON."""

import io
import json

from rich.console import Console

from outbox.event import Tier
from outbox.inprocess import InProcessBroker
from relay import status
from relay.status_text import as_json, render
from tests.integration.relay.faulty_publisher import FaultyPublisher
from tests.integration.relay.running import App, arrived, committed, emit, running, schedule, value
from tests.support.wait import until


async def test_without_a_relay_status_counts_what_waits_and_says_to_start_one(url: str, app: App) -> None:
    emit(app, "a", tier=Tier.BULK, count=7)
    emit(app, "b", tier=Tier.INTERACTIVE, count=2)
    schedule(app, due_in_s=-5.0)
    schedule(app, due_in_s=500.0)
    app.commit()
    found = await status.read(url)
    (group,) = found.groups
    assert [(lag.tier, lag.events, lag.tenants) for lag in group.lag] == [(Tier.INTERACTIVE, 2, 1), (Tier.BULK, 7, 1)]
    assert all(0 <= lag.oldest_s < 60 for lag in group.lag)
    assert (found.relays, found.free_buckets) == ([], 64)
    assert (found.scheduled, found.scheduled_due) == (2, 1)
    assert status.problems(found) == ["no relay is running, with 9 events waiting: start outbox-relay"]


async def test_with_a_relay_status_shows_leases_and_nothing_waiting(
    url: str, app: App, broker: InProcessBroker
) -> None:
    async with running(url, broker) as relay:
        events = emit(app, count=50)
        app.commit()
        await arrived(broker, events)
        await relay.sees(lambda gauges: gauges.unpersisted == 0)
        found = await status.read(url)
    assert [(relay.buckets, relay.share, relay.is_able) for relay in found.relays] == [(64, 64, True)]
    assert found.free_buckets == 0
    assert [group.lag for group in found.groups] == [[]]
    assert status.problems(found) == []


async def test_every_relay_that_lives_is_shown_with_its_share(url: str, app: App) -> None:
    app.execute("update outbox.bucket set expires_at = 'infinity', token = case when bucket < 43 then 1 else 2 end")
    app.execute(
        """insert into outbox.relay select token, token <> 3, clock_timestamp() + make_interval(mins => minutes)
           from (values (1, 1), (2, 1), (3, 1), (4, -1)) relay (token, minutes)"""
    )
    app.commit()
    found = await status.read(url)
    assert [(relay.token, relay.buckets, relay.share) for relay in found.relays] == [
        (1, 43, 32),
        (2, 21, 32),
        (3, 0, 0),
    ]
    assert status.problems(found) == ["relay 3 does not reach the broker; what it holds moves to those that do"]


async def test_a_tenant_that_is_behind_is_counted_from_its_own_position(
    url: str, app: App, broker: InProcessBroker
) -> None:
    publisher = FaultyPublisher(broker)
    async with running(url, broker, publisher=publisher) as relay:
        committed(app, 1, "silent")
        await relay.sees(lambda gauges: gauges.confirmed == 1 and gauges.unpersisted == 0)
        publisher.is_silent = lambda outgoing: outgoing.lane.tenant == "silent"
        committed(app, 10, "silent")
        await relay.sees(lambda gauges: gauges.in_flight == 10)
        others = emit(app, count=10)
        app.commit()
        await arrived(broker, others)
        await relay.sees(lambda gauges: gauges.unpersisted == 10)
        await until(lambda: value(app, "select count(*) from outbox.stream") == 1, what="its stream")
        found = await status.read(url)
    (lag,) = found.groups[0].lag
    assert (lag.events, lag.tenants, lag.streams) == (10, 1, 1)


async def test_an_off_boarding_that_was_left_half_done_is_told(url: str, app: App) -> None:
    app.execute(
        """insert into outbox.lane (group_name, tier, tenant, leaving_at) values
               ('default', 1, 'left', now() - interval '2 min'), ('default', 2, 'left', now()),
               ('default', 2, 'other', now())"""
    )
    app.commit()
    (problem,) = [one for one in status.problems(await status.read(url)) if "off-boarding" in one]
    assert problem.startswith("left: off-boarding 2 queues has not ended since 2")


async def test_replays_that_are_under_way_are_shown_with_how_far_they_are(url: str, app: App) -> None:
    app.execute(
        """insert into outbox.replay (group_name, from_at, to_at, per_s, events, requested_by, after_hash, last_hash,
               published, problem, ended_at)
           values ('default', now() - interval '1 day', now(), 500, 300, 'ann', 0, 1, 120, 'its queue is full', null),
                  ('default', now() - interval '1 day', now(), 500, 77, 'ann', 0, 1, 77, null, now())"""
    )
    app.commit()
    found = await status.read(url)
    assert [(one.events, one.published, one.problem) for one in found.replays] == [(300, 120, "its queue is full")]
    (told,) = json.loads(as_json(found))["replays"]
    assert (told["events"], told["published"]) == (300, 120)
    text = io.StringIO()
    Console(file=text, width=200).print(render(found))
    assert "its queue is full" in text.getvalue()


async def test_status_as_json_and_as_text_say_the_same(url: str, app: App) -> None:
    emit(app, "a", tier=Tier.BULK, count=7)
    app.execute(
        """insert into outbox.deferred (group_name, state, category, reason, attempts, due_at, id, bucket, tier, tenant,
               tenant_hash, type, data_version, source, content_type, payload)
           select 'default', 'dead', 'too_large', 'r', 1, now(), id, bucket, tier, tenant, tenant_hash, type,
               data_version, source, content_type, payload from outbox.event limit 1"""
    )
    app.commit()
    found = await status.read(url)
    told = json.loads(as_json(found))
    assert told["groups"][0]["lag"][0]["tier"] == "bulk"
    assert told["groups"][0]["lag"][0]["events"] == 7
    assert told["groups"][0]["deferred"][0]["category"] == "too_large"
    assert told["problems"] == status.problems(found)
    text = io.StringIO()
    Console(file=text, width=200).print(render(found))
    for problem in told["problems"]:
        assert problem in text.getvalue()


async def test_deferred_events_are_counted_by_state_and_category(url: str, app: App) -> None:
    emit(app, "a", count=7)
    app.execute(
        """insert into outbox.deferred (group_name, state, category, reason, attempts, due_at, id, bucket, tier, tenant,
               tenant_hash, type, data_version, source, content_type, payload, ordering_key, key_number)
           select 'default', (array['retry', 'dead', 'void'])[1 + seq % 3],
               (array['forbidden', 'unroutable'])[1 + seq % 2], 'r', 1, now(), id, bucket, tier, tenant, tenant_hash,
               type, data_version, source, content_type, payload, 'key', seq
           from (select row_number() over (order by seq) - 1 as seq, id, bucket, tier, tenant, tenant_hash, type,
                     data_version, source, content_type, payload from outbox.event) e"""
    )
    app.commit()
    found = await status.read(url)
    assert {(one.state, one.category): one.events for one in found.groups[0].deferred} == {
        ("retry", "forbidden"): 2,
        ("dead", "unroutable"): 1,
        ("void", "forbidden"): 1,
        ("retry", "unroutable"): 1,
        ("dead", "forbidden"): 1,
        ("void", "unroutable"): 1,
    }
    dead = [problem for problem in status.problems(found) if "dead" in problem]
    assert dead == [
        f"default: 1 event dead, not published ({category}): outbox deferred list --group default"
        for category in ("forbidden", "unroutable")
    ]
