"""NAME=relay-noisy: a quiet tenant's commit-to-queue time, alone and while another has 200,000 events waiting.

Round after round in turn: the quiet tenant commits at a steady rate alone, then the same while the other's events,
all of one transaction, are committed and published. A round counts only if some of these still waited at its end.
"""

import asyncio
import os
import statistics
import sys
import time
from dataclasses import dataclass, field

import aio_pika
from psycopg import AsyncConnection

from benchmarks.events import events, insert, lanes
from benchmarks.relay_process import declare_lanes, relay_process
from benchmarks.servers import Servers, on_servers
from benchmarks.timing import all_arrived, arrivals, commit_evenly, times_ms
from outbox.naming import Lane

_WAITING = int(os.environ.get("BENCH_EVENTS", "200000"))
_ROUNDS = 3
_PER_S = 100
_COUNT = 600
_DRAIN_S = 180


@dataclass(slots=True)
class Figures:
    """One value per round."""

    alone: list[float] = field(default_factory=list)
    beside: list[float] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)
    """How many of the other tenant's events were still unpublished when the round ended."""


def main() -> dict[str, float]:
    """Run all rounds and return the medians."""
    return on_servers(_run)


async def _run(given: Servers) -> dict[str, float]:
    quiet, noisy = mine = lanes(2)
    figures = Figures()
    await declare_lanes(given, mine, "classic")
    async with (
        relay_process(given, "classic"),
        arrivals(given, [quiet]) as arrived,
        await aio_pika.connect(given.rabbitmq_url) as broker,
    ):
        channel = await broker.channel()
        for number in range(_ROUNDS):
            await _wake(given, quiet, arrived)
            figures.alone.append(await _p99_ms(given, quiet, arrived))
            async with await AsyncConnection.connect(given.database_url) as connection:
                await insert(connection, events(_WAITING, [noisy], payload_bytes=300))
                await _wake(given, quiet, arrived)
                async with asyncio.TaskGroup() as tasks:
                    round_of_quiet = tasks.create_task(_p99_ms(given, quiet, arrived))
                    await connection.commit()
            figures.beside.append(round_of_quiet.result())
            figures.waiting.append(_WAITING - await _queued(channel, noisy))
            print(f"round {number + 1}: {figures}", file=sys.stderr)
            await _drained(channel, noisy)
    assert all(figures.waiting), f"want events waiting at the end of every round, got {figures.waiting}"
    alone, beside = statistics.median(figures.alone), statistics.median(figures.beside)
    return {
        "alone_p99_ms": round(alone, 2),
        "beside_p99_ms": round(beside, 2),
        "ratio": round(beside / alone, 2),
        "waiting": min(figures.waiting),
    }


async def _wake(given: Servers, quiet: Lane, arrived: dict[str, float]) -> None:
    """Have the relay awake: how long an idle one may sleep is another question."""
    await all_arrived(await commit_evenly(given, [quiet], count=_PER_S, per_s=_PER_S), arrived)


async def _p99_ms(given: Servers, quiet: Lane, arrived: dict[str, float]) -> float:
    committed = await commit_evenly(given, [quiet], count=_COUNT, per_s=_PER_S)
    await all_arrived(committed, arrived)
    return statistics.quantiles(times_ms(committed, arrived), n=100)[98]


async def _queued(channel: aio_pika.abc.AbstractChannel, lane: Lane) -> int:
    queue = await channel.declare_queue(lane.queue, passive=True)
    return queue.declaration_result.message_count or 0


async def _drained(channel: aio_pika.abc.AbstractChannel, lane: Lane) -> None:
    """Wait until all that waited is in the queue, and empty that."""
    until = time.monotonic() + _DRAIN_S
    while await _queued(channel, lane) < _WAITING:
        assert time.monotonic() < until, f"want {_WAITING} events within {_DRAIN_S} s"
        await asyncio.sleep(0.2)
    queue = await channel.get_queue(lane.queue, ensure=False)
    await queue.purge()
