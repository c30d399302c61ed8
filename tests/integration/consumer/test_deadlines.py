"""Handlers past their deadline: the attempt has failed, nothing of it is kept, and the pool is whole."""

import asyncio
import threading
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from consumer import Context, Policy
from outbox.event import EventModel
from tests.support.engine import TYPE, Process, Rig, an_event, memory_rig
from tests.support.wait import until

INSERT = text("INSERT INTO effect (note) VALUES (:note)")
AT_ONCE = Policy(base_s=0.01, max_wait_s=0.02, budget=None, breaker=None)


class OrderPlaced(EventModel, type=TYPE):
    order_id: int


@pytest.fixture
async def rig(migrated_database: str) -> AsyncIterator[Rig]:
    async with memory_rig(migrated_database) as rig:
        yield rig


def alive(process: Process) -> int:
    return process.readiness.abandoned_alive


async def test_a_sync_handler_past_its_deadline_is_left_behind_and_its_slot_serves_on(rig: Rig) -> None:
    """celery/celery#6432"""
    rig.limits = replace(rig.limits, slots=2)
    go, late = threading.Event(), list[BaseException]()

    @rig.consumer.on(OrderPlaced, policy=AT_ONCE, deadline_s=2.0)
    def bill(event: OrderPlaced, ctx: Context, session: Session) -> None:
        session.execute(INSERT, {"note": f"{event.order_id} {ctx.attempt}"})
        if event.order_id == 1 and ctx.attempt == 1:
            go.wait()
            try:
                session.execute(INSERT, {"note": "late"})
            except BaseException as error:
                late.append(error)
                raise

    process = await rig.start()
    await rig.publish(an_event(1))
    await rig.until(lambda: rig.effects() == ["1 2"])
    await rig.publish(*(an_event(number, tenant=f"t{number}") for number in range(2, 8)))
    await rig.until(lambda: rig.count("effect") == 7)
    assert rig.value("SELECT max(attempts) FROM consumer.ledger") == 2
    assert alive(process) == 1
    go.set()
    await until(lambda: alive(process) == 0, what="the thread to end")
    # It was cut off: what it wrote after its deadline failed, and came to nothing.
    assert len(late) == 1
    assert sorted(rig.effects()) == ["1 2", *(f"{number} 1" for number in range(2, 8))]
    await process.drain()


async def test_a_handler_that_sits_in_a_statement_past_its_deadline_loses_the_statement_too(rig: Rig) -> None:
    @rig.consumer.on(OrderPlaced, policy=AT_ONCE, deadline_s=1.0)
    def bill(event: OrderPlaced, ctx: Context, session: Session) -> None:
        if ctx.attempt == 1:
            session.execute(text("SELECT pg_sleep(600)"))
        session.execute(INSERT, {"note": str(ctx.attempt)})

    process = await rig.start()
    await rig.publish(an_event())
    await rig.until(lambda: rig.effects() == ["2"])
    await until(lambda: alive(process) == 0, what="the thread to end")


async def test_an_async_handler_that_swallows_its_cancellation_is_left_behind_and_cut_off(rig: Rig) -> None:
    """python/cpython#86296"""
    rig.limits = replace(rig.limits, slots=2)
    go, late = asyncio.Event(), list[BaseException]()

    @rig.consumer.on(OrderPlaced, policy=AT_ONCE, deadline_s=1.0)
    async def bill(event: OrderPlaced, ctx: Context, session: AsyncSession) -> None:
        await session.execute(INSERT, {"note": str(ctx.attempt)})
        while ctx.attempt == 1 and not go.is_set():
            try:
                await go.wait()
            except asyncio.CancelledError:
                continue
        if ctx.attempt == 1:
            try:
                await session.execute(INSERT, {"note": "late"})
            except Exception as error:
                late.append(error)
                raise

    process = await rig.start()
    await rig.publish(an_event())
    await rig.until(lambda: rig.effects() == ["2"])
    assert alive(process) == 1
    go.set()
    await until(lambda: alive(process) == 0, what="the task to end")
    assert len(late) == 1
    assert rig.effects() == ["2"]
    await process.drain()


async def test_a_process_with_too_many_of_them_drains_and_ends(rig: Rig) -> None:
    rig.limits = replace(rig.limits, slots=2, abandoned_max=1, drain_s=2.0)
    go = threading.Event()

    @rig.consumer.on(OrderPlaced, policy=Policy(base_s=60, max_wait_s=60), deadline_s=0.1)
    def bill(event: OrderPlaced) -> None:
        go.wait()

    process = await rig.start()
    await rig.publish(an_event(1), an_event(2, tenant="other"))
    await asyncio.wait_for(asyncio.shield(process.task), 15.0)
    assert process.readiness.is_worn
    assert rig.value("SELECT count(*) FROM consumer.work WHERE reason = 'retry' AND attempts = 1") == 2
    go.set()
    await until(lambda: alive(process) == 0, what="the threads to end")
