"""NAME=consumer: how fast messages are handled by a handler that does nothing, transactionally and leased, once each.

Beside it, two that are written by hand: aio-pika, one INSERT ... ON CONFLICT per message, a pool of ten connections,
with psycopg alone and with a SQLAlchemy AsyncSession. All find the same messages in the same queues, each in a process
of its own, round after round in turn.
"""

import asyncio
import json
import os
import statistics
import sys
from asyncio.subprocess import PIPE
from collections.abc import Sequence

from psycopg import AsyncConnection

from benchmarks.events import events, lanes
from benchmarks.raw_amqp import RawConnection, publish_frames
from benchmarks.relay_process import declare_lanes
from benchmarks.servers import Servers, on_servers
from outbox.naming import Lane

_COUNT = int(os.environ.get("BENCH_EVENTS", "20000"))
_TENANTS = 20
_ROUNDS = 3
_WHICH = ("ours", "leased", "handwritten", "asyncsession")


def main() -> dict[str, float]:
    """Run all rounds and return the medians."""
    return on_servers(_run)


async def _run(given: Servers) -> dict[str, float]:
    mine = lanes(_TENANTS)
    await declare_lanes(given, mine, "classic")
    await tell_consumer(given, mine)
    per_s: dict[str, list[float]] = {which: [] for which in _WHICH}
    cpu_us: dict[str, list[float]] = {which: [] for which in _WHICH}
    for number in range(_ROUNDS):
        for which in _WHICH:
            await asyncio.to_thread(_publish, given, mine)
            answer = await _consume(given, which)
            per_s[which].append(_COUNT / answer["seconds"])
            cpu_us[which].append(answer["cpu_s"] / _COUNT * 1e6)
        print(f"round {number + 1}: per s {per_s}, cpu us {cpu_us}", file=sys.stderr)
    speed = {which: statistics.median(per_s[which]) for which in _WHICH}
    return {
        "per_s": round(speed["ours"]),
        "handwritten_per_s": round(speed["handwritten"]),
        "asyncsession_per_s": round(speed["asyncsession"]),
        "over_handwritten": round(speed["ours"] / speed["handwritten"], 3),
        "over_asyncsession": round(speed["ours"] / speed["asyncsession"], 3),
        "cpu_us": round(statistics.median(cpu_us["ours"]), 1),
        "leased_per_s": round(speed["leased"]),
        "leased_over_handwritten": round(speed["leased"] / speed["handwritten"], 3),
        "leased_cpu_us": round(statistics.median(cpu_us["leased"]), 1),
        "handwritten_cpu_us": round(statistics.median(cpu_us["handwritten"]), 1),
    }


def _publish(given: Servers, mine: Sequence[Lane]) -> None:
    raw = RawConnection(given.rabbitmq_url)
    batch = events(_COUNT, mine, payload_bytes=300)
    raw.publish_all([publish_frames(event, lane.routing_key) for event, lane in batch], window=2000, batch=200)
    raw.close()


async def tell_consumer(given: Servers, mine: Sequence[Lane]) -> None:
    """What the directory would have told it."""
    async with await AsyncConnection.connect(given.database_url) as connection:
        for lane in mine:
            await connection.execute(
                "INSERT INTO consumer.lane (group_name, tier, tenant, queue) VALUES (%s, %s, %s, %s)",
                (lane.group, int(lane.tier), lane.tenant, lane.queue),
            )


async def _consume(given: Servers, which: str) -> dict[str, float]:
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.consumer_child", which, given.database_url, given.rabbitmq_url,
        str(_COUNT), str(_TENANTS), stdout=PIPE,
    )  # fmt: skip
    output, _ = await asyncio.wait_for(child.communicate(), 400)
    assert child.returncode == 0, which
    answer: dict[str, float] = json.loads(output)
    return answer
