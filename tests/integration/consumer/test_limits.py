"""Caps and rates in the running engine: what they hold back costs nothing and goes on by itself."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from consumer import Cap, Consumer, Context, Rate
from outbox.event import EventModel
from tests.support.engine import GROUP, TYPE, Rig, an_event, memory_rig

INSERT = text("INSERT INTO effect (note) VALUES (:note)")


class OrderPlaced(EventModel, type=TYPE):
    order_id: int


@pytest.fixture
async def rig(migrated_database: str) -> AsyncIterator[Rig]:
    async with memory_rig(migrated_database) as rig:
        yield rig


async def test_what_a_cap_denies_spends_no_attempt_and_starts_when_room_comes(rig: Rig) -> None:
    """bensheldon/good_job#603."""
    running: Counter[str] = Counter()
    most: Counter[str] = Counter()
    attempts: list[int] = []

    @rig.consumer.on(OrderPlaced, limits=[Cap(2, per="tenant")])
    async def bill(event: OrderPlaced, ctx: Context, session: AsyncSession) -> None:
        running[ctx.tenant] += 1
        most[ctx.tenant] = max(most[ctx.tenant], running[ctx.tenant])
        attempts.append(ctx.attempt)
        await asyncio.sleep(0.002)
        await session.execute(INSERT, {"note": ctx.tenant})
        running[ctx.tenant] -= 1

    await rig.start()
    await rig.publish(*(an_event(number, tenant=f"t{number % 3}") for number in range(60)))
    await rig.until(lambda: rig.count("effect") == 60)
    assert most == {"t0": 2, "t1": 2, "t2": 2}
    assert attempts == [1] * 60
    assert rig.count("consumer.work") == 0


async def test_what_a_rate_denies_spends_no_attempt_and_starts_when_its_token_comes(rig: Rig) -> None:
    rig.consumer = Consumer(GROUP, limits=[Rate(20, burst=2, per="tenant")])
    attempts: list[int] = []

    @rig.consumer.on(OrderPlaced)
    async def bill(event: OrderPlaced, ctx: Context) -> None:
        attempts.append(ctx.attempt)

    await rig.start()
    began = time.monotonic()
    await rig.publish(*(an_event(number) for number in range(8)))
    await rig.until(lambda: len(attempts) == 8)
    assert time.monotonic() - began >= 6 * 0.05
    assert attempts == [1] * 8
