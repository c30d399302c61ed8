"""NAME=consumer: how fast messages are handled by a handler that does nothing, transactionally and leased, once each.

Beside it, a hand-written consumer: aio-pika, one INSERT ... ON CONFLICT per message, a pool of ten connections. Both
find the same messages in the same queues, each in a process of its own, round after round in turn.
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
from benchmarks.servers import Servers, servers
from outbox.naming import Lane

_COUNT = int(os.environ.get("BENCH_EVENTS", "20000"))
_TENANTS = 20
_ROUNDS = 3


def main() -> dict[str, float]:
    """Run all rounds and return the medians."""
    with servers() as given:
        print(given.versions, file=sys.stderr)
        return asyncio.run(_run(given))


async def _run(given: Servers) -> dict[str, float]:
    mine = lanes(_TENANTS)
    await declare_lanes(given, mine, "classic")
    await tell_consumer(given, mine)
    ours: list[float] = []
    cpu_us: list[float] = []
    leased: list[float] = []
    leased_cpu_us: list[float] = []
    handwritten: list[float] = []
    for number in range(_ROUNDS):
        await asyncio.to_thread(_publish, given, mine)
        answer = await _consume(given, "ours")
        ours.append(_COUNT / answer["seconds"])
        cpu_us.append(answer["cpu_s"] / _COUNT * 1e6)
        await asyncio.to_thread(_publish, given, mine)
        answer = await _consume(given, "leased")
        leased.append(_COUNT / answer["seconds"])
        leased_cpu_us.append(answer["cpu_s"] / _COUNT * 1e6)
        await asyncio.to_thread(_publish, given, mine)
        answer = await _consume(given, "handwritten")
        handwritten.append(_COUNT / answer["seconds"])
        print(
            f"round {number + 1}: ours {ours} cpu {cpu_us} leased {leased} handwritten {handwritten}", file=sys.stderr
        )
    per_s, by_hand = statistics.median(ours), statistics.median(handwritten)
    return {
        "per_s": round(per_s),
        "handwritten_per_s": round(by_hand),
        "over_handwritten": round(per_s / by_hand, 3),
        "cpu_us": round(statistics.median(cpu_us), 1),
        "leased_per_s": round(statistics.median(leased)),
        "leased_over_handwritten": round(statistics.median(leased) / by_hand, 3),
        "leased_cpu_us": round(statistics.median(leased_cpu_us), 1),
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
