"""Emptying the ledger's partitions on a real database, beside the claims that write them."""

import asyncio
import time
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from consumer.decide.horizon import Ring, free_slots, slot_of
from consumer.store import pruning, results
from consumer.store.stored import Connection
from outbox.errors import ConfigError
from tests.integration.consumer.conftest import Connect
from tests.support.waiting_events import GROUP, HORIZON

RING = Ring(slots=16, slot_seconds=86_400)
# A short horizon, so that a slot is free at any time of the day the tests run.
SHORT = timedelta(days=12)


async def fill(connection: Connection, slot: int, *, rows: int = 1) -> None:
    await connection.execute(
        "INSERT INTO consumer.ledger (slot, group_name, event_id, handler, tenant, state, attempts)"
        " SELECT %s, %s, gen_random_uuid(), 'h', 'acme', 'done', 1 FROM generate_series(1, %s)",
        (slot, GROUP, rows),
    )


async def used_slots(connection: Connection) -> set[int]:
    cursor = await connection.execute("SELECT DISTINCT slot FROM consumer.ledger")
    return {slot for (slot,) in await cursor.fetchall()}


def free_now(horizon: timedelta = SHORT) -> frozenset[int]:
    return free_slots(now=datetime.now(UTC), horizon=horizon, ring=RING)


async def test_the_ring_is_the_one_the_database_was_migrated_with(connection: Connection) -> None:
    assert await pruning.read_ring(connection) == RING


async def test_a_horizon_that_leaves_no_slot_free_is_refused() -> None:
    assert pruning.check_horizon(HORIZON, RING) == HORIZON
    for wrong in (HORIZON + timedelta(seconds=1), timedelta(), timedelta(days=-1)):
        with pytest.raises(ConfigError, match="horizon: want"):
            pruning.check_horizon(wrong, RING)


async def test_only_slots_outside_the_horizon_are_emptied(connection: Connection) -> None:
    for slot in range(RING.slots):
        await fill(connection, slot)
    pruned = await pruning.prune(connection, horizon=SHORT)
    assert set(pruned.emptied) == free_now()
    assert pruned.busy == ()
    assert await used_slots(connection) == set(range(RING.slots)) - free_now()
    assert (await pruning.prune(connection, horizon=SHORT)).emptied == ()


async def test_the_database_refuses_a_slot_in_use_whoever_asks(connection: Connection) -> None:
    """A process whose clock is wrong drops nothing that a duplicate could still ask for."""
    now = datetime.now(UTC)
    for age in (timedelta(), HORIZON, timedelta(minutes=-5)):
        slot = slot_of(now - age, RING)
        await fill(connection, slot)
        cursor = await connection.execute("SELECT consumer.truncate_slot(%s, %s)", (slot, HORIZON))
        assert await cursor.fetchone() == ("in use",)
    for keep_for in (None, timedelta(), timedelta(days=-30), timedelta(days=16), timedelta(days=400)):
        cursor = await connection.execute(
            "SELECT DISTINCT consumer.truncate_slot(s, %s) FROM generate_series(0, 15) s", (keep_for,)
        )
        assert await cursor.fetchall() == [("in use",)]


async def test_the_databases_free_slots_are_ours(connection: Connection) -> None:
    cursor = await connection.execute(
        "SELECT s FROM generate_series(0, 15) s WHERE consumer.is_slot_free(s, %s)", (SHORT,)
    )
    assert {slot for (slot,) in await cursor.fetchall()} == free_now()


async def test_pruning_gives_way_to_a_claim_and_tries_again_later(connect: Connect) -> None:
    one, other = await connect(), await connect()
    busy_slot, *_ = sorted(free_now())
    await fill(one, busy_slot)
    async with one.transaction():
        await fill(one, busy_slot)  # the claim of a work row older than the horizon
        began = time.monotonic()
        pruned = await pruning.prune(other, horizon=SHORT)
        assert time.monotonic() - began < 2
        assert pruned.busy == (busy_slot,)
    assert (await pruning.prune(other, horizon=SHORT)).emptied == (busy_slot,)


async def test_no_claim_waits_over_100_ms_behind_the_pruning_of_a_million_rows(connect: Connect) -> None:
    """JasperFx/wolverine#3116, NServiceBus.Persistence.Sql#778"""
    pruner, claimer, holder = await connect(), await connect(), await connect()
    victim, *_ = sorted(free_now())
    current = slot_of(datetime.now(UTC), RING)
    await fill(pruner, victim, rows=1_000_000)
    await pruner.execute("CHECKPOINT")  # a day's rows in a second: their writing is not what is asked about
    await claimer.execute("SET lock_timeout = '100ms'")  # a claim that waited longer would raise LockNotAvailable
    is_over = asyncio.Event()
    claims = 0

    async def claim() -> None:
        nonlocal claims
        while not is_over.is_set():
            for slot in (current, victim):
                await fill(claimer, slot)
                claims += 1

    async def prune() -> None:
        async with holder.transaction():  # a slow claim in the way: pruning queues for its lock, and gives up
            await fill(holder, victim)
            for _ in range(5):
                assert (await pruning.prune(pruner, horizon=SHORT)).busy == (victim,)
        while victim not in (await pruning.prune(pruner, horizon=SHORT)).emptied:
            pass
        is_over.set()

    async with asyncio.timeout(60):
        await asyncio.gather(claim(), prune())
    assert claims > 10


async def test_results_are_removed_by_age_and_by_the_thousand(connection: Connection) -> None:
    await connection.execute(
        "INSERT INTO consumer.result (event_id, group_name, handler, tenant, result, at)"
        " SELECT gen_random_uuid(), g, 'h', 'acme', '1', clock_timestamp() - age"
        " FROM unnest(ARRAY[%s, 'other']) g, unnest(ARRAY[interval '6 days', interval '8 days']) age,"
        " generate_series(1, 1500)",
        (GROUP,),
    )
    keep_for = timedelta(days=7)
    assert [await results.prune(connection, GROUP, keep_for=keep_for) for _ in range(3)] == [1000, 500, 0]
    cursor = await connection.execute("SELECT group_name, count(*) FROM consumer.result GROUP BY 1 ORDER BY 1")
    assert dict(await cursor.fetchall()) == {GROUP: 1500, "other": 3000}


async def test_pruning_needs_a_grant(connection: Connection) -> None:
    async with connection.transaction(force_rollback=True):
        await connection.execute("CREATE ROLE fairpost_test_nobody")
        await connection.execute("GRANT USAGE ON SCHEMA consumer TO fairpost_test_nobody")
        await connection.execute("SET LOCAL ROLE fairpost_test_nobody")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            await pruning.prune(connection, horizon=SHORT)
