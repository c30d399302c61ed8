"""Handlers that say when they run, under a cap of the whole fleet."""

import asyncio
import os
from typing import Final

import psycopg

from consumer import Cap, Consumer, Context
from outbox.schema import DEFAULT_GROUP
from tests.scenarios.bank import Noted

MOST: Final = 2
#: *runs* has who runs; *seen* how many did, whenever one began.
MAKE: Final = """
CREATE TABLE runs (event_id uuid PRIMARY KEY, pid integer NOT NULL);
CREATE TABLE seen (count bigint NOT NULL, attempt integer NOT NULL, pid integer NOT NULL);
"""
_HANDLER_S: Final = 0.25
consumer = Consumer(DEFAULT_GROUP)


@consumer.on(Noted, limits=[Cap(MOST, scope="fleet")])
async def handle(event: Noted, ctx: Context) -> None:
    """Say so, take a while, and say that it is over."""
    url = os.environ["OUTBOX_DATABASE_URL"]
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await connection.execute("INSERT INTO runs VALUES (%s, %s)", (event.posting_id, os.getpid()))
        await connection.execute("INSERT INTO seen SELECT count(*), %s, %s FROM runs", (ctx.attempt, os.getpid()))
        await asyncio.sleep(_HANDLER_S)
        await connection.execute("DELETE FROM runs WHERE event_id = %s", (event.posting_id,))
