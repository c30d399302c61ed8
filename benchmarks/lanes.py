"""NAME=lanes: a consumer process with thousands of lanes: how soon it consumes from all of them, and what it weighs.

Every lane's queue holds one event when the real process starts; it has started when each of them is handled.
*rss_mb* is what it weighs then, *idle_cpu_percent* what it uses of one core with nothing to do. BENCH_LANES and
BENCH_QUEUE_KIND say how many lanes of which kind; a broker needs file handles for each (docs/how-to/sizing.md).
"""

import asyncio
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from psycopg import AsyncConnection

from benchmarks.events import events, lanes
from benchmarks.memory import family, resident_mb
from benchmarks.raw_amqp import RawConnection, publish_frames
from benchmarks.relay_process import declare_lanes
from benchmarks.servers import Servers, on_servers
from outbox.naming import Lane
from outbox.topology import QueueKind
from tests.support.processes import ConsoleProcess
from tests.support.wait import until

_LANES: Final = int(os.environ.get("BENCH_LANES", "5000"))
_KIND: Final[QueueKind] = "classic" if os.environ.get("BENCH_QUEUE_KIND") == "classic" else "quorum"
_IDLE_S: Final = 10.0
_HANDLED: Final = "SELECT count(*) FROM consumer.ledger WHERE state = 'done'"


def main() -> dict[str, float]:
    """Start one consumer process on all lanes and return what that took."""
    return on_servers(_run)


async def _run(given: Servers) -> dict[str, float]:
    mine = lanes(_LANES)
    began = time.monotonic()
    await declare_lanes(given, mine, _KIND)
    print(f"{len(mine)} {_KIND} lanes declared in {time.monotonic() - began:.1f} s", file=sys.stderr)
    await asyncio.to_thread(_publish, given, mine)
    async with await AsyncConnection.connect(given.database_url, autocommit=True) as connection:
        await _tell_consumer(connection, mine)
        began = time.monotonic()
        process = ConsoleProcess.start(
            "outbox-consumer",
            "run",
            "benchmarks.memory:consumer",
            settings={
                "OUTBOX_CONSUMER_DATABASE_URL": given.database_url,
                "OUTBOX_CONSUMER_RABBITMQ_URL": given.rabbitmq_url,
                "OUTBOX_CONSUMER_QUEUE_KIND": _KIND,
                "OUTBOX_CONSUMER_HEALTH_PORT": "0",
            },
            cwd=Path(__file__).parents[1],
        )
        try:
            await until(lambda: _are_handled(connection, process), deadline_s=600, every_s=0.1, what="all handled")
            start_s = time.monotonic() - began
            rss_mb, used_s = resident_mb(process), _cpu_s(process)
            await asyncio.sleep(_IDLE_S)
            idle_percent = (_cpu_s(process) - used_s) / _IDLE_S * 100
            rss_mb = max(rss_mb, resident_mb(process))
        finally:
            print(process.output[-2000:], file=sys.stderr)
            process.close()
    return {
        "rss_mb": round(rss_mb, 1),
        "start_s": round(start_s, 1),
        "lanes": len(mine),
        "idle_cpu_percent": round(idle_percent, 1),
    }


async def _tell_consumer(connection: AsyncConnection, mine: Sequence[Lane]) -> None:
    """Write what the directory would have told it."""
    async with (
        connection.cursor() as cursor,
        cursor.copy("COPY consumer.lane (group_name, tier, tenant, queue) FROM STDIN") as copy,
    ):
        for lane in mine:
            await copy.write_row((lane.group, int(lane.tier), lane.tenant, lane.queue))


def _publish(given: Servers, mine: Sequence[Lane]) -> None:
    raw = RawConnection(given.rabbitmq_url)
    batch = events(len(mine), mine, payload_bytes=300)
    raw.publish_all([publish_frames(event, lane.routing_key) for event, lane in batch], window=200, batch=50)
    raw.close()


async def _are_handled(connection: AsyncConnection, process: ConsoleProcess) -> bool:
    assert process.is_running(), process.output[-2000:]
    row = await (await connection.execute(_HANDLED)).fetchone()
    return row is not None and row[0] >= _LANES


def _cpu_s(process: ConsoleProcess) -> float:
    return float(sum(sum(one.cpu_times()[:2]) for one in family(process)))
