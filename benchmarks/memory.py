"""NAME=memory: how much the real processes grow from their 5,000th event to their 30,000th.

The first 5,000 bring all that is made once: lanes, connections, caches, compiled statements.
"""

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil
from psycopg import AsyncConnection

from benchmarks.events import events, insert, lanes
from benchmarks.servers import Servers, servers
from consumer import Consumer
from outbox.event import Event
from outbox.naming import Lane
from outbox.schema import DEFAULT_GROUP
from tests.support.processes import ConsoleProcess, Processes
from tests.support.wait import until

_TENANTS = 20
_FIRST = 5_000
_LAST = int(os.environ.get("BENCH_EVENTS", "30000"))
_BATCH = 500
_PAYLOAD_BYTES = 300
_MB = 1e6
_HANDLED = "SELECT count(*) FROM consumer.ledger WHERE state = 'done'"

consumer = Consumer(DEFAULT_GROUP)


@consumer.on("shop.order.placed")
async def nothing(event: Event) -> None:
    """Do nothing, once per event."""


def main() -> dict[str, float]:
    """Run both processes through all events and return by how much each has grown."""
    with servers() as given:
        print(given.versions, file=sys.stderr)
        processes = Processes()
        try:
            return asyncio.run(_run(given, processes))
        finally:
            processes.close()


async def _run(given: Servers, processes: Processes) -> dict[str, float]:
    settings = {
        "OUTBOX_DATABASE_URL": given.database_url,
        "OUTBOX_RABBITMQ_URL": given.rabbitmq_url,
        "OUTBOX_RELAY_HEALTH_PORT": "0",
        "OUTBOX_CONSUMER_HEALTH_PORT": "0",
    }
    root = Path(__file__).parents[1]
    running = [
        processes.start("outbox-relay", "run", settings=settings),
        processes.start("outbox-consumer", "run", "benchmarks.memory:consumer", settings=settings, cwd=root),
    ]
    mine = lanes(_TENANTS)
    async with await AsyncConnection.connect(given.database_url, autocommit=True) as connection:
        await _handle(connection, mine, running, count=_FIRST, until_count=_FIRST)
        before = [resident_mb(process) for process in running]
        await _handle(connection, mine, running, count=_LAST - _FIRST, until_count=_LAST)
        after = [resident_mb(process) for process in running]
    print(f"resident, MB: at {_FIRST} events {before}, at {_LAST} {after}", file=sys.stderr)
    relay_growth, consumer_growth = (end - begin for begin, end in zip(before, after, strict=True))
    return {"relay_growth_mb": round(relay_growth, 1), "consumer_growth_mb": round(consumer_growth, 1)}


async def _handle(
    connection: AsyncConnection,
    mine: Sequence[Lane],
    running: Sequence[ConsoleProcess],
    *,
    count: int,
    until_count: int,
) -> None:
    """Commit *count* events and return when *until_count* have been handled in all."""
    for _ in range(0, count, _BATCH):
        async with connection.transaction():
            await insert(connection, events(_BATCH, mine, payload_bytes=_PAYLOAD_BYTES))

    async def are_handled() -> bool:
        for process in running:
            assert process.is_running(), process.output[-2000:]
        row = await (await connection.execute(_HANDLED)).fetchone()
        return row is not None and row[0] >= until_count

    await until(are_handled, deadline_s=300.0, every_s=0.1, what=f"{until_count} events to be handled")


def resident_mb(process: ConsoleProcess) -> float:
    """What it weighs."""
    return float(sum(one.memory_info().rss for one in family(process))) / _MB


def family(process: ConsoleProcess) -> list[psutil.Process]:
    """The process and everything below it: a shell may stand between."""
    top = psutil.Process(process.pid)
    return [top, *top.children(recursive=True)]
