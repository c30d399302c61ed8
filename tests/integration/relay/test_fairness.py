"""One tenant's backlog is published beside everybody else's events, not before them."""

from collections import Counter
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest

from outbox.event import Tier
from outbox.inprocess import InProcessBroker
from relay.decide.pieces import Row
from relay.limits import Limits
from relay.log import ranges
from tests.integration.relay.faulty_publisher import FaultyPublisher
from tests.integration.relay.running import App, arrived, emit, queued, running
from tests.integration.relay.test_heavy import commit_many


async def test_an_event_committed_behind_a_large_backlog_of_another_tenant_waits_for_a_few_chunks(
    url: str, app: App, other: App, broker: InProcessBroker
) -> None:
    """A relay that reads in commit order sends all of the backlog first."""
    publisher = FaultyPublisher(broker)
    limits = Limits()
    async with running(url, broker, publisher=publisher, limits=limits):
        await arrived(broker, _committed(app, "quiet"), "quiet")
        noisy = emit(app, "noisy", tier=Tier.BULK, count=20_000)
        quiet = emit(other, "quiet")
        app.commit()
        other.commit()
        await arrived(broker, quiet, "quiet")
        order = [outgoing.event.id for outgoing in publisher.sent]
        assert order.index(quiet[0]) <= 1 + 5 * limits.chunk
        assert set(noisy) != set(queued(broker, "noisy", tier=Tier.BULK))


async def test_a_window_of_many_small_lanes_is_read_many_lanes_at_a_time(
    url: str, app: App, broker: InProcessBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A statement for each lane costs several times what its two or three rows do."""
    rows_of, rows_of_all, reads = ranges.rows_of, ranges.rows_of_all, Counter[str]()

    async def one(*arguments: Any) -> Sequence[Row]:
        reads["one"] += 1
        return await rows_of(*arguments)

    async def many(*arguments: Any, **options: Any) -> Sequence[Sequence[Row]]:
        reads["many"] += 1
        return await rows_of_all(*arguments, **options)

    monkeypatch.setattr(ranges, "rows_of", one)
    monkeypatch.setattr(ranges, "rows_of_all", many)
    # A lane that is not declared yet waits for that, a few at a time: once through all of them first.
    events = {tenant: emit(app, tenant) for tenant in ("large", *(f"tenant-{number}" for number in range(300)))}
    app.commit()
    async with running(url, broker, limits=Limits()) as relay:
        await relay.sees(lambda gauges: gauges.confirmed == 301, deadline_s=60)
        reads.clear()
        for tenant, sent in events.items():
            # One is too large to be read along with others, and so is read by itself.
            sent.extend(emit(app, tenant, count=600 if tenant == "large" else 5))
        app.commit()
        await relay.sees(lambda gauges: gauges.confirmed == 301 + 600 + 1500, deadline_s=60)
    for tenant, sent in events.items():
        assert queued(broker, tenant) == sent
    assert reads["one"] <= 600 / 200 + 2
    assert 1 <= reads["many"] <= 1500 / 500 + 5


async def test_interactive_events_overtake_a_backlog_of_bulk_and_bulk_still_moves(
    url: str, app: App, broker: InProcessBroker
) -> None:
    publisher = FaultyPublisher(broker)
    for number in range(10):
        emit(app, f"b{number}", tier=Tier.BULK, count=500)
        emit(app, f"i{number}", tier=Tier.INTERACTIVE, count=500)
    app.commit()
    async with running(url, broker, publisher=publisher, limits=Limits(window=400)) as relay:
        await relay.sees(lambda gauges: gauges.confirmed == 10_000, deadline_s=60)
    tiers = [outgoing.lane.tier for outgoing in publisher.sent[:4500]]
    bulk = sum(tier is Tier.BULK for tier in tiers)
    assert 4500 // 20 < bulk < 4500 // 5  # an eighth to a ninth, in chunks


async def test_100_000_events_of_one_tenant_committed_at_once_delay_the_next_of_another_by_one_chunk_at_most(
    url: str, app: App, other: App, broker: InProcessBroker
) -> None:
    """Own finding: while a large window is counted, or a lane's turn lasts a batch, everybody else stands still."""
    publisher = FaultyPublisher(broker)
    limits = Limits()
    async with running(url, broker, publisher=publisher, limits=limits) as relay:
        await arrived(broker, _committed(app, "quiet"), "quiet")
        commit_many(app, "noisy", 100_000)
        delays: list[int] = []
        for _ in range(20):
            # Not before the first chunks: the driver prepares the statement that reads one at its fifth use.
            await relay.sees(lambda gauges: gauges.published > 2_000 + len(delays) * 500, what="the backlog to move")
            quiet = emit(other, "quiet")
            other.commit()
            ahead = len(publisher.sent)
            await arrived(broker, quiet, "quiet")
            order = [outgoing.event.id for outgoing in publisher.sent[ahead:]]
            delays.append(order.index(quiet[0]))
        assert len(publisher.sent) < 100_000
        assert max(delays) <= limits.chunk, delays
        assert relay.gauges.surveys == 0
        assert relay.gauges.set_aside == 1


async def test_a_lane_whose_broker_queue_grows_has_less_with_the_broker_than_its_share(
    url: str, app: App, broker: InProcessBroker
) -> None:
    """What lies unconfirmed of a backlog is ahead of everybody's next event."""
    publisher = FaultyPublisher(broker)
    limits = Limits()
    async with running(url, broker, publisher=publisher, limits=limits) as relay:
        await arrived(broker, _committed(app, "noisy"), "noisy")
        await relay.sees(lambda gauges: gauges.confirmed == 1)
        publisher.is_silent = lambda outgoing: outgoing.lane.tenant == "noisy"
        commit_many(app, "noisy", 5_000)
        await relay.sees(lambda gauges: gauges.in_flight >= limits.chunk, what="a chunk in flight")
        await arrived(broker, _committed(app, "quiet"), "quiet")
        assert relay.gauges.in_flight == limits.chunk


def _committed(app: App, tenant: str) -> list[UUID]:
    events = emit(app, tenant)
    app.commit()
    return events
