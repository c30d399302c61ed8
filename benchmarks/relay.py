"""NAME=relay: how fast committed events reach their queues, beside a raw socket and two relays written by hand.

Every contender sends the same events to the same durable, already declared queues, round after round in turn. The
ceiling is a raw publisher that sends in the order of the commits, as all the others read them; beside it stands one
that was given whole runs per queue, which RabbitMQ takes more than twice as fast. Of each, the faster counts: within
the relay's window, or within a five times wider one.
Ours is measured from the COMMIT of all events to the last confirm, in a process of its own that an event has just
woken: how long an idle one may sleep is another question (NAME=latency).
"""

import asyncio
import os
import statistics
import sys
import time
from asyncio.subprocess import Process
from collections.abc import Sequence
from dataclasses import dataclass, field

import aio_pika
from psycopg import AsyncConnection

from benchmarks.baselines import fill_plain_outbox, run_plain_relay
from benchmarks.events import events, insert, lanes, purge, take_all
from benchmarks.raw_amqp import RawConnection, publish_frames
from benchmarks.relay_process import answer, ask, declare_lanes, relay_process
from benchmarks.servers import Servers, on_servers
from outbox.event import Event
from outbox.naming import Lane
from relay.limits import Limits

_TENANTS = 100
_COUNT = int(os.environ.get("BENCH_EVENTS", "20000"))
_CAREFUL_COUNT, _NAIVE_COUNT = _COUNT // 5, _COUNT // 20
_PAYLOAD_BYTES = int(os.environ.get("BENCH_PAYLOAD_BYTES", "1024"))
_ROUNDS = int(os.environ.get("BENCH_ROUNDS", "5"))
_WIDE = 5
_COMMITTED, _IN_RUNS = "as committed", "in runs"


@dataclass(slots=True)
class Figures:
    """One list per contender, one value per round."""

    ours: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)
    ceilings: dict[tuple[str, int], list[float]] = field(default_factory=dict)
    careful: list[float] = field(default_factory=list)
    naive: list[float] = field(default_factory=list)
    lost: int = 0


def main() -> dict[str, float]:
    """Run all rounds and return the medians."""
    return on_servers(_run)


async def _run(given: Servers) -> dict[str, float]:
    figures = Figures()
    mine = lanes(_TENANTS)
    await declare_lanes(given, mine, "classic")
    async with relay_process(given, "classic") as child:
        await _ours(given, child, mine, count=_TENANTS)
        for number in range(_ROUNDS):
            await _round(given, child, mine, figures)
            print(f"round {number + 1}: {figures}", file=sys.stderr)
    quorum = await _quorum(given)
    ours = statistics.median(figures.ours)
    ceiling, runs_ceiling = (_best(figures, order) for order in (_COMMITTED, _IN_RUNS))
    careful, naive = statistics.median(figures.careful), statistics.median(figures.naive)
    return {
        "events_per_s": round(ours),
        "cpu_us_per_event": round(statistics.median(figures.cpu_us), 1),
        "ceiling_per_s": round(ceiling),
        "naive_per_s": round(naive),
        "careful_per_s": round(careful),
        "of_ceiling": round(ours / ceiling, 3),
        "of_runs_ceiling": round(ours / runs_ceiling, 3),
        "over_naive": round(ours / naive, 2),
        "over_careful": round(ours / careful, 2),
        "lost": figures.lost,
        "quorum_per_s": round(quorum),
    }


async def _round(given: Servers, child: Process, mine: Sequence[Lane], figures: Figures) -> None:
    await _ceilings(given, mine, figures)
    per_s, cpu_us, lost = await _ours(given, child, mine, count=_COUNT)
    figures.ours.append(per_s)
    figures.cpu_us.append(cpu_us)
    figures.lost += lost

    for is_careful, count, into in ((True, _CAREFUL_COUNT, figures.careful), (False, _NAIVE_COUNT, figures.naive)):
        async with await AsyncConnection.connect(given.database_url) as connection:
            batch = [(event, lane.routing_key) for event, lane in _batch(mine, count)]
            await fill_plain_outbox(connection, batch)
        published, seconds = await run_plain_relay(given.database_url, given.rabbitmq_url, is_careful=is_careful)
        into.append(published / seconds)
        await take_all(given.rabbitmq_url, [lane.queue for lane in mine])


async def _ceilings(given: Servers, mine: Sequence[Lane], figures: Figures) -> None:
    limits = Limits()
    committed = _batch(mine, _COUNT)
    in_runs = sorted(enumerate(committed), key=lambda one: (one[0] // len(mine) // limits.chunk, one[1][1].queue))
    for order, batch in ((_COMMITTED, committed), (_IN_RUNS, [one for _, one in in_runs])):
        frames = [publish_frames(event, lane.routing_key) for event, lane in batch]
        for window in (limits.window, limits.window * _WIDE):
            raw = RawConnection(given.rabbitmq_url)
            seconds = await asyncio.to_thread(raw.publish_all, frames, window=window, batch=limits.batch)
            raw.close()
            figures.ceilings.setdefault((order, window), []).append(_COUNT / seconds)
            await purge(given.rabbitmq_url, [lane.queue for lane in mine])


def _best(figures: Figures, order: str) -> float:
    return max(statistics.median(per_s) for (one, _), per_s in figures.ceilings.items() if one == order)


def _batch(mine: Sequence[Lane], count: int) -> list[tuple[Event, Lane]]:
    return events(count, mine, payload_bytes=_PAYLOAD_BYTES)


async def _ours(given: Servers, child: Process, mine: Sequence[Lane], *, count: int) -> tuple[float, float, int]:
    """Events per second, CPU microseconds per event, and how many never reached a queue."""
    batch = _batch(mine, count)
    async with (
        await AsyncConnection.connect(given.database_url) as waker,
        await AsyncConnection.connect(given.database_url) as connection,
    ):
        await insert(connection, batch)
        await insert(waker, _batch(mine, 1))
        await ask(child, {"expect": 1})
        await waker.commit()
        await answer(child)
        await ask(child, {"expect": count})
        began = time.monotonic()
        await connection.commit()
    said = await answer(child)
    found = await take_all(given.rabbitmq_url, [lane.queue for lane in mine])
    lost = len({str(event.id) for event, _ in batch} - set(found))
    return count / (said["last_confirm"] - began), said["cpu_s"] / count * 1e6, lost


async def _quorum(given: Servers) -> float:
    """The same once with quorum queues, made anew."""
    mine = lanes(_TENANTS)
    await _delete(given, mine)
    await declare_lanes(given, mine, "quorum")
    async with relay_process(given, "quorum") as child:
        await _ours(given, child, mine, count=_TENANTS)
        per_s, _, _ = await _ours(given, child, mine, count=_COUNT)
    return per_s


async def _delete(given: Servers, mine: Sequence[Lane]) -> None:
    async with await aio_pika.connect(given.rabbitmq_url) as broker:
        channel = await broker.channel()
        for name in [*(lane.queue for lane in mine), "outbox.directory.default", "outbox.refused.default"]:
            await channel.queue_delete(name)
