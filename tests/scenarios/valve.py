"""A consumer of the bank's events whose handlers wait until a valve in the database is opened."""

import asyncio
import os

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession

from consumer import Consumer, Context, Outcome, Policy, Retry
from tests.scenarios.bank import Noted, Posted, effect

MAKE = "CREATE TABLE valve (is_open boolean NOT NULL); INSERT INTO valve VALUES (false)"
OPEN = "UPDATE valve SET is_open = true"
_LOOK_EVERY_S = 0.05
_IS_OPEN = sa.text("SELECT is_open FROM valve")

consumer = Consumer("default", policy=Policy(max_retries=2, base_s=0.01, budget=None, breaker=None))


@consumer.on(Noted)
async def file(event: Noted, ctx: Context, session: AsyncSession) -> None:
    """Write the effect, then wait for the valve."""
    row = {"posting_id": event.posting_id, "tenant": ctx.tenant, "attempt": ctx.attempt, "pid": os.getpid()}
    await session.execute(sa.insert(effect).values(row))
    while not await session.scalar(_IS_OPEN):
        await asyncio.sleep(_LOOK_EVERY_S)


@consumer.on(Posted)
async def book(event: Posted, ctx: Context, session: AsyncSession) -> Outcome | None:
    """Ask to be tried again at the first attempt, without waiting; then as ``file``."""
    if ctx.attempt == 1:
        return Retry(reason="not yet")
    await file(Noted(posting_id=event.posting_id), ctx, session)
    return None
