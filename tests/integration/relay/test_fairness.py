"""One tenant's backlog is published beside everybody else's events, not before them."""

from uuid import UUID

from outbox.event import Tier
from outbox.inprocess import InProcessBroker
from relay.limits import Limits
from tests.integration.relay.faulty_publisher import FaultyPublisher
from tests.integration.relay.running import App, arrived, emit, queued, running


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


def _committed(app: App, tenant: str) -> list[UUID]:
    events = emit(app, tenant)
    app.commit()
    return events
