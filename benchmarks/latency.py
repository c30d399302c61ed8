"""NAME=latency: from COMMIT to a consumer of the queue, at 200 commits a second for 15 seconds.

A time runs from the moment COMMIT is sent until a consumer on this side has the message, so it holds the commit
itself and the delivery too.
"""

import asyncio
import os
import statistics
import sys
import time
from collections.abc import Sequence

import aio_pika
from psycopg import AsyncConnection

from benchmarks.events import events, insert, lanes
from benchmarks.relay_process import declare_lanes, relay_process
from benchmarks.servers import Servers, servers
from outbox.naming import Lane

_PER_S = 200
_SECONDS = int(os.environ.get("BENCH_SECONDS", "15"))
_TENANTS = 20
_WRITERS = 8
_WARM = 200


def main() -> dict[str, float]:
    """Run once and return the percentiles."""
    with servers() as given:
        print(given.versions, file=sys.stderr)
        return asyncio.run(_run(given))


async def _run(given: Servers) -> dict[str, float]:
    mine = lanes(_TENANTS)
    await declare_lanes(given, mine, "classic")
    arrived: dict[str, float] = {}
    committed: dict[str, float] = {}
    async with relay_process(given, "classic"), await aio_pika.connect(given.rabbitmq_url) as broker:
        channel = await broker.channel()
        for lane in mine:
            queue = await channel.get_queue(lane.queue, ensure=False)
            await queue.consume(lambda message: _note(arrived, message), no_ack=True)
        warm: dict[str, float] = {}
        await _commit_all(given, mine, warm, count=_WARM)
        await _all_arrived(warm, arrived)
        began = time.monotonic()
        await _commit_all(given, mine, committed, count=_PER_S * _SECONDS)
        seconds = time.monotonic() - began
        await _all_arrived(committed, arrived)
    times_ms = [(arrived[event_id] - at) * 1000 for event_id, at in committed.items()]
    percentiles = statistics.quantiles(times_ms, n=100)
    return {
        "p50_ms": round(percentiles[49], 2),
        "p99_ms": round(percentiles[98], 2),
        "commits_per_s": round(len(committed) / seconds, 1),
    }


async def _note(arrived: dict[str, float], message: aio_pika.abc.AbstractIncomingMessage) -> None:
    arrived[message.message_id or ""] = time.monotonic()


async def _all_arrived(committed: dict[str, float], arrived: dict[str, float]) -> None:
    async with asyncio.timeout(30):
        while not committed.keys() <= arrived.keys():
            await asyncio.sleep(0.05)


async def _commit_all(given: Servers, mine: Sequence[Lane], committed: dict[str, float], *, count: int) -> None:
    """Commit one event at a time at an even rate, whatever a commit takes."""
    batch = events(count, mine, payload_bytes=300)
    began = time.monotonic() + 0.1

    async def write(first: int) -> None:
        async with await AsyncConnection.connect(given.database_url) as connection:
            for number in range(first, count, _WRITERS):
                await asyncio.sleep(began + number / _PER_S - time.monotonic())
                await insert(connection, batch[number : number + 1])
                committed[str(batch[number][0].id)] = time.monotonic()
                await connection.commit()

    async with asyncio.TaskGroup() as tasks:
        for first in range(_WRITERS):
            tasks.create_task(write(first))
