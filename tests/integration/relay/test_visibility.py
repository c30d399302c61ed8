"""What a transaction committed is published, whenever it drew its numbers; and in the order that it serialised."""

from uuid import UUID

import psycopg
import pytest

from outbox.inprocess import InProcessBroker
from tests.integration.relay.running import App, arrived, emit, queued, running, value
from tests.support.databases import fresh_database
from tests.support.services import Postgres


async def test_an_event_with_a_lower_number_that_commits_later_is_published(
    url: str, app: App, other: App, broker: InProcessBroker
) -> None:
    """ThreeDotsLabs/watermill#311, kamu-data/kamu-cli#1398: readers that ask for more than the last number lose it."""
    async with running(url, broker):
        early = emit(app)
        late = emit(other)
        other.commit()
        await arrived(broker, late)
        app.commit()
        await arrived(broker, early)
    assert queued(broker) == late + early


async def test_a_row_that_a_poll_came_too_early_for_is_found_by_the_next_also_when_nothing_else_happens(
    url: str, app: App, broker: InProcessBroker
) -> None:
    """A quiet system: the sequence has moved, the row is not visible yet, and nobody moves the sequence again."""
    async with running(url, broker) as relay:
        events = emit(app)
        moved = relay.gauges.persists
        # Its bases go past the moment in which the number was drawn and the row was not there.
        await relay.sees(lambda gauges: gauges.persists > moved, what="a persist in between")
        assert queued(broker) == []
        app.commit()
        await arrived(broker, events)


async def test_transactions_on_one_aggregate_are_published_as_they_serialised_though_the_later_has_the_lower_xid(
    url: str, app: App, other: App, broker: InProcessBroker
) -> None:
    """eugene-khyst/postgresql-event-sourcing#16: ordered by transaction number they would change places."""
    app.execute("create table aggregate (version integer)")
    app.execute("insert into aggregate values (0)")
    app.commit()
    first: list[UUID] = []
    second: list[UUID] = []
    for _ in range(20):
        app.execute("select pg_current_xact_id()")  # the lower number
        other.execute("update aggregate set version = version + 1")
        first += emit(other)
        other.commit()
        app.execute("update aggregate set version = version + 1")
        second += emit(app)
        app.commit()
    async with running(url, broker):
        await arrived(broker, first + second)
    assert queued(broker) == [event for pair in zip(first, second, strict=True) for event in pair]


async def test_a_rolled_back_event_is_never_published(url: str, app: App, broker: InProcessBroker) -> None:
    async with running(url, broker):
        gone = emit(app)
        app.rollback()
        app.execute("savepoint s")
        gone += emit(app)
        app.execute("rollback to s")
        kept = emit(app)
        app.commit()
        await arrived(broker, kept)
    assert queued(broker) == kept


async def test_an_open_write_transaction_in_another_database_delays_no_event(
    url: str, app: App, postgres_node: Postgres, broker: InProcessBroker
) -> None:
    """A reader that stops at the oldest running transaction stops for all databases of the cluster."""
    with fresh_database(postgres_node, "elsewhere") as elsewhere, psycopg.connect(elsewhere) as forgotten:
        forgotten.execute("select pg_current_xact_id()")
        async with running(url, broker):
            events = emit(app)
            app.commit()
            await arrived(broker, events)
        assert value(app, "select pg_snapshot_xmin(pg_current_snapshot()) < pg_snapshot_xmax(pg_current_snapshot())")


async def test_a_prepared_transaction_delays_only_its_own_events(
    url: str, app: App, other: App, broker: InProcessBroker
) -> None:
    if not value(app, "select current_setting('max_prepared_transactions')::int > 0"):
        pytest.skip("this server has max_prepared_transactions = 0")
    app.commit()
    async with running(url, broker):
        prepared = emit(app)
        app.execute("prepare transaction 'relay-test'")
        app.commit()
        others = emit(other, count=3)
        other.commit()
        await arrived(broker, others)
        assert queued(broker) == others
        app.autocommit = True
        app.execute("commit prepared 'relay-test'")
        await arrived(broker, prepared)
    assert queued(broker) == others + prepared


async def test_a_row_inserted_between_reading_and_settling_is_published(
    url: str, app: App, broker: InProcessBroker
) -> None:
    """eventuate-foundation/eventuate-cdc#165: marking all that is there as published marks what was not read."""
    async with running(url, broker):
        events: list[UUID] = []
        for _ in range(200):
            events += emit(app)
            app.commit()  # as fast as it goes, while the relay reads, publishes, settles and persists
        await arrived(broker, events)
    assert queued(broker) == events
