"""One commit of many tenants' events, too many to bring along: published with no row for each, and safe to crash in."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from uuid import UUID

from outbox.inprocess import InProcessBroker
from relay.memory import MemoryPublisher
from tests.integration.relay.faulty_publisher import FaultyPublisher
from tests.integration.relay.running import QUICK, App, arrived, emit, queued, running, start, value

TENANTS = [f"tenant-{number}" for number in range(150)]
SILENT = TENANTS[7]
EACH = 3
# The lease outlasts a busy machine's pauses: losing it would be a second fault.
LIMITS = replace(QUICK, cap=50, window=100, batch=20, lease_s=15.0)
# By the table itself, so that no row comes and goes unseen.
COUNT_ROWS = """
create sequence written;
create function count_row() returns trigger language plpgsql
    as $$ begin perform nextval('public.written'); return new; end $$;
create trigger count_rows before insert on outbox.stream for each row execute function count_row()"""


def commit_of_all(app: App) -> dict[str, list[UUID]]:
    events: dict[str, list[UUID]] = {tenant: [] for tenant in TENANTS}
    for _ in range(EACH):
        for tenant in TENANTS:
            events[tenant] += emit(app, tenant)
    app.commit()
    return events


async def all_arrived(broker: InProcessBroker, events: Mapping[str, Sequence[UUID]]) -> None:
    for tenant, ids in events.items():
        await arrived(broker, ids, tenant)


async def test_hardly_any_lane_of_it_gets_a_stream_row(url: str, app: App, broker: InProcessBroker) -> None:
    async with running(url, broker, limits=LIMITS) as relay:
        first = emit(app, "first")
        app.commit()
        await arrived(broker, first, "first")  # what comes while buckets are taken is read with them
        # Lanes of which nothing is known yet are tried with one event each, all at a time.
        await all_arrived(broker, commit_of_all(app))
        await relay.sees(lambda gauges: gauges.unpersisted == 0, what="everything persisted")
        app.execute(COUNT_ROWS)
        events = commit_of_all(app)
        await all_arrived(broker, events)
        await relay.sees(lambda gauges: gauges.unpersisted == 0, what="everything persisted")
        assert relay.gauges.surveys == 2
    # A lane whose events two batches share comes to its second turn when the others had their first.
    written = value(app, "select last_value from written")
    assert isinstance(written, int)
    assert written <= len(TENANTS) // 5, written


async def test_a_crash_in_the_midst_of_it_loses_nothing_and_repeats_at_most_the_window(
    url: str, app: App, broker: InProcessBroker
) -> None:
    relay = start(url, MemoryPublisher(broker), limits=LIMITS)
    await relay.owns()
    events = commit_of_all(app)
    await relay.sees(lambda gauges: gauges.published >= len(TENANTS) * EACH // 2, what="half of it published")
    await relay.crash()
    async with running(url, broker, limits=replace(LIMITS, window=2000)):
        await all_arrived(broker, events)
    repeated = Counter({tenant: len(queued(broker, tenant)) - EACH for tenant in TENANTS})
    assert 0 <= repeated.total() <= LIMITS.window
    for tenant in TENANTS:
        assert list(dict.fromkeys(queued(broker, tenant))) == events[tenant]


async def test_one_whose_lanes_have_rows_in_two_slots_of_the_log_is_published_whole_and_in_order(
    url: str, app: App, broker: InProcessBroker
) -> None:
    async with running(url, broker, limits=LIMITS) as relay:
        await relay.owns()
        events = {tenant: emit(app, tenant, count=EACH) for tenant in TENANTS}
        app.execute("update outbox.event set slot = (slot + 1) % 16 where seq % 2 = 0")
        app.commit()
        await all_arrived(broker, events)
        assert relay.gauges.surveys
    for tenant in TENANTS:
        assert queued(broker, tenant) == events[tenant]


async def test_a_silent_lane_in_it_gets_its_row_and_holds_back_no_other(
    url: str, app: App, broker: InProcessBroker
) -> None:
    publisher = FaultyPublisher(broker)
    async with running(url, broker, publisher=publisher, limits=replace(LIMITS, confirm_s=30.0)) as relay:
        await relay.owns()
        await all_arrived(broker, commit_of_all(app))
        publisher.is_silent = lambda outgoing: outgoing.lane.tenant == SILENT
        await all_arrived(broker, commit_of_all(app))
        await relay.sees(lambda gauges: gauges.unpersisted == EACH, what="the others persisted")
        assert value(app, "select array_agg(tenant) from outbox.stream") == [SILENT]
