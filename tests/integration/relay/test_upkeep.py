"""What stands beside the log stays small: positions under a held snapshot, idempotency keys, ordering counters."""

import asyncio
import random
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from uuid import UUID

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from outbox.inprocess import InProcessBroker
from relay.engine import janitor
from relay.engine.janitor import run_janitor
from relay.gauges import Gauges
from relay.limits import Upkeep
from relay.log import pruning, rewriting, store
from relay.log.rewriting import SIZE_BYTES_MAX
from tests.integration.outbox.conftest import psycopg_url
from tests.integration.outbox.shop import OrderPlaced, logged, new_outbox
from tests.integration.relay.running import QUICK, App, arrived, emit, queued, running, value
from tests.support.wait import until

DAY_S = 86_400.0
UPKEEP = Upkeep(retention_s=DAY_S, ordering_retention_s=2 * DAY_S, every_s=0.1)
POSITIONS = "select sum(pg_total_relation_size(t)) from unnest(array['outbox.bucket', 'outbox.stream']::regclass[]) t"


@pytest.fixture
async def session(url: str) -> AsyncIterator[store.Connection]:
    """A janitor's."""
    connection = await janitor.connect(url)
    yield connection
    await store.close(connection)


async def test_positions_stay_small_while_somebody_holds_a_snapshot_and_the_relay_goes_on(
    url: str, app: App, other: App, broker: InProcessBroker
) -> None:
    """Vacuum removes nothing that the snapshot could see, and each persist would go through all that was left."""
    other.execute("set transaction isolation level repeatable read")
    other.execute("select pg_current_snapshot()")
    limits = replace(QUICK, persist_s=0.001, busy_poll_s=0.002)
    async with running(url, broker, limits=limits) as relay, _janitor(url, relay.gauges):
        events: list[UUID] = []
        sizes = []

        def has_rewritten() -> bool:
            events.extend(emit(app, f"t{len(events) % 50}"))
            app.commit()
            is_over = relay.gauges.positions_rewritten >= 2
            sizes.append(int(str(value(app, POSITIONS))))
            app.commit()
            return is_over

        await until(has_rewritten, deadline_s=120, every_s=0.02)
        for number in range(50):
            await arrived(broker, events[number::50], f"t{number}")
            assert queued(broker, f"t{number}") == events[number::50]
        # What is written between two looks of the janitor comes on top.
        assert SIZE_BYTES_MAX < max(sizes) < 4 * SIZE_BYTES_MAX
        assert sizes[-1] < SIZE_BYTES_MAX
        assert relay.gauges.leases_lost == relay.gauges.store_losses == 0
        assert relay.gauges.takeovers == 1


async def test_a_rewrite_keeps_every_token_lease_and_position(
    url: str, app: App, session: store.Connection, broker: InProcessBroker
) -> None:
    async with running(url, broker) as relay:
        await arrived(broker, _commit(app, emit(app)))
        await relay.hand_over()
    app.execute(
        """insert into outbox.stream select 'default', 1, 't' || n, n, n % 64, '1:1:', pg_current_snapshot(), n, n
           from generate_series(1, 500) n"""
    )
    app.commit()
    before = _positions(app)
    for table in rewriting.TABLES:
        assert await rewriting.rewrite(session, table, within_s=5.0)
    assert _positions(app) == before


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
async def test_a_rewrite_under_an_old_snapshot_is_refused(url: str, app: App, level: str) -> None:
    """It would write back what positions were then."""
    app.execute(f"set transaction isolation level {level}")
    app.execute("select 1")
    with pytest.raises(psycopg.errors.InvalidTransactionState, match="want read committed"):
        app.execute("select outbox.rewrite_bucket()")


async def test_a_rewrite_waits_for_nobody_and_changes_nothing_then(
    url: str, app: App, other: App, session: store.Connection
) -> None:
    """Whoever has read positions in a transaction still open, a dump too, goes on seeing them."""
    before = _positions(app)
    other.execute("set transaction isolation level repeatable read")
    assert value(other, "select count(*) from outbox.bucket") == 64
    assert not await rewriting.rewrite(session, "bucket", within_s=5.0)
    assert value(other, "select count(*) from outbox.bucket") == 64
    other.rollback()
    # While a group is removed: its row is locked, and the bucket table not yet.
    other.execute("select from outbox.consumer_group for update")
    assert not await rewriting.rewrite(session, "bucket", within_s=5.0)
    other.rollback()
    assert _positions(app) == before


async def test_a_dump_that_has_not_come_to_the_positions_yet_finds_them(
    url: str, other: App, session: store.Connection
) -> None:
    other.execute("set application_name = 'pg_dump'")
    other.commit()
    other.execute("set transaction isolation level repeatable read")
    other.execute("select 1")
    assert not await rewriting.rewrite(session, "bucket", within_s=5.0)
    assert value(other, "select count(*) from outbox.bucket") == 64


async def test_a_table_that_is_large_because_so_much_is_alive_is_left_alone(
    url: str, app: App, session: store.Connection
) -> None:
    app.execute(
        """insert into outbox.stream select 'default', 1, 't' || n, n, n % 64, '1:1:', pg_current_snapshot(), n, n
           from generate_series(1, 10000) n"""
    )
    app.commit()
    size = value(app, "select pg_total_relation_size('outbox.stream')")
    app.commit()
    assert isinstance(size, int)
    assert size > SIZE_BYTES_MAX
    assert not await rewriting.is_bloated(session, "stream", within_s=5.0)
    app.execute("delete from outbox.stream where tenant <> 't1'")
    app.commit()
    assert await rewriting.is_bloated(session, "stream", within_s=5.0)


async def test_expired_keys_and_unused_counters_go_and_those_in_use_stay(url: str, app: App, other: App) -> None:
    app.execute(
        """insert into outbox.key select 'acme', 'k' || n, '', gen_random_uuid(),
               clock_timestamp() + case when n <= 2500 then interval '-1 s' else interval '1 day' end
           from generate_series(1, 2600) n"""
    )
    app.execute(
        """insert into outbox.ordering select 'acme', n % 3, 'k' || n, n, 1, null,
               clock_timestamp() - case when n <= 2500 then interval '49 hours' else interval '47 hours' end
           from generate_series(1, 2600) n"""
    )
    app.commit()
    other.execute("select from outbox.key where idempotency_key = 'k1' for update")
    other.execute("select from outbox.ordering where ordering_key = 'k2' for update")
    gauges = Gauges()
    async with _janitor(url, gauges):

        def are_gone() -> bool:
            return gauges.keys_pruned == 2499 and gauges.counters_pruned == 2499

        await until(are_gone, deadline_s=10, what="all but those in use to go")
        assert value(app, "select count(*) from outbox.key") == 101
        assert value(app, "select count(*) from outbox.ordering") == 101
        app.commit()
        other.rollback()
        await until(lambda: gauges.keys_pruned == gauges.counters_pruned == 2500, deadline_s=10)


async def test_a_key_that_is_emitted_on_while_its_counter_is_pruned_keeps_its_order(
    url: str, session: store.Connection
) -> None:
    """Every number is one more than the one before it, or is higher and marked as a first."""
    outbox, engine = new_outbox(), sa.create_engine(psycopg_url(url))
    retention_s, rounds = 0.1, 25
    rng = random.Random(1)
    over = asyncio.Event()
    # As long as the key must be unused, give or take a little: pruning and three emits meet.
    together = threading.Barrier(3, action=lambda: _pause(retention_s + rng.uniform(-0.005, 0.01)))

    def write() -> None:
        for number in range(rounds):
            together.wait(20)
            with Session(engine) as orm, orm.begin():
                outbox.emit(orm, OrderPlaced(order_id=number), tenant="acme", ordering_key="k")
                outbox.emit(orm, OrderPlaced(order_id=number), tenant="acme", ordering_key="k")

    async def prune() -> int:
        removed = 0
        while not over.is_set():
            walked = await pruning.prune_counters(session, pruning.Place(), retention_s=retention_s, within_s=5.0)
            removed += walked.removed
        return removed

    pruner = asyncio.create_task(prune())
    await asyncio.gather(*(asyncio.to_thread(write) for _ in range(3)))
    over.set()
    removed = await pruner
    rows = logged(engine)
    engine.dispose()
    assert len(rows) == 3 * 2 * rounds
    assert removed > rounds / 5
    for before, after in pairwise(rows):
        if after.key_first:
            assert after.key_number > before.key_number
            assert (after.ledger_at - before.ledger_at).total_seconds() > retention_s
        else:
            assert (after.key_number, after.key_previous_at) == (before.key_number + 1, before.ledger_at)
    assert sum(row.key_first for row in rows) <= removed + 1


def _pause(seconds: float) -> None:
    threading.Event().wait(seconds)


@asynccontextmanager
async def _janitor(url: str, gauges: Gauges) -> AsyncIterator[None]:
    """A janitor at work."""
    stop = asyncio.Event()
    working = asyncio.create_task(run_janitor(url, stop=stop, upkeep=UPKEEP, gauges=gauges))
    try:
        yield
    finally:
        stop.set()
        await working


def _positions(app: App) -> list[tuple[object, ...]]:
    found = app.execute("select b::text from outbox.bucket b union all select s::text from outbox.stream s order by 1")
    rows = found.fetchall()
    app.commit()
    return rows


def _commit(app: App, events: list[UUID]) -> list[UUID]:
    app.commit()
    return events
