"""A consumer whose leased handler calls another system: a table that it writes to at once, on its own connection."""

import asyncio
import os

import psycopg

from consumer import Consumer, Context, Outcome, Policy, Retry
from tests.scenarios.bank import Noted

MAKE = "CREATE TABLE call (token bigint NOT NULL, attempt integer NOT NULL, pid integer NOT NULL)"
_LOOK_EVERY_S = 0.05

consumer = Consumer("default", policy=Policy(max_retries=2, base_s=0.01, budget=None, breaker=None))


@consumer.on(Noted, ledger="leased")
async def call(event: Noted, ctx: Context) -> Outcome | None:
    """Fail once, so that a work row has the event; then call, and wait for the valve."""
    if ctx.attempt == 1:
        return Retry(reason="not yet")
    async with await psycopg.AsyncConnection.connect(os.environ["OUTBOX_DATABASE_URL"], autocommit=True) as other:
        await other.execute("INSERT INTO call VALUES (%s, %s, %s)", (ctx.fencing_token, ctx.attempt, os.getpid()))
        while await (await other.execute("SELECT FROM valve WHERE is_open")).fetchone() is None:
            await asyncio.sleep(_LOOK_EVERY_S)
    return None
