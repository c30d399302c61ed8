"""From COMMIT to a consumer of the queue: commits at an even rate, and when each event had come.

A time runs from the moment COMMIT is sent until a consumer on this side has the message, so it holds the commit
itself and the delivery too.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import aio_pika
from psycopg import AsyncConnection

from benchmarks.events import events, insert
from benchmarks.servers import Servers
from outbox.naming import Lane

_WRITERS = 8
_PAYLOAD_BYTES = 300


@asynccontextmanager
async def arrivals(given: Servers, mine: Sequence[Lane]) -> AsyncIterator[dict[str, float]]:
    """When each event of these lanes came, in monotonic seconds; filled while it is open."""
    arrived: dict[str, float] = {}
    async with await aio_pika.connect(given.rabbitmq_url) as broker:
        channel = await broker.channel()
        for lane in mine:
            queue = await channel.get_queue(lane.queue, ensure=False)
            await queue.consume(lambda message: _note(arrived, message), no_ack=True)
        yield arrived


async def commit_evenly(given: Servers, mine: Sequence[Lane], *, count: int, per_s: int) -> dict[str, float]:
    """Commit one event at a time, whatever a commit takes; return when each commit was sent."""
    committed: dict[str, float] = {}
    batch = events(count, mine, payload_bytes=_PAYLOAD_BYTES)
    began = time.monotonic() + 0.1

    async def write(first: int) -> None:
        async with await AsyncConnection.connect(given.database_url) as connection:
            for number in range(first, count, _WRITERS):
                await asyncio.sleep(began + number / per_s - time.monotonic())
                await insert(connection, batch[number : number + 1])
                committed[str(batch[number][0].id)] = time.monotonic()
                await connection.commit()

    async with asyncio.TaskGroup() as tasks:
        for first in range(_WRITERS):
            tasks.create_task(write(first))
    return committed


async def all_arrived(committed: dict[str, float], arrived: dict[str, float], *, within_s: float = 30) -> None:
    """Wait until everything *committed* has *arrived*."""
    async with asyncio.timeout(within_s):
        while not committed.keys() <= arrived.keys():
            await asyncio.sleep(0.05)


def times_ms(committed: dict[str, float], arrived: dict[str, float]) -> list[float]:
    """How long each event took."""
    return [(arrived[event_id] - at) * 1000 for event_id, at in committed.items()]


async def _note(arrived: dict[str, float], message: aio_pika.abc.AbstractIncomingMessage) -> None:
    arrived[message.message_id or ""] = time.monotonic()
