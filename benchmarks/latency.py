"""NAME=latency: from COMMIT to a consumer of the queue, at 200 commits a second for 15 seconds."""

import os
import statistics
import time

from benchmarks.events import lanes
from benchmarks.relay_process import declare_lanes, relay_process
from benchmarks.servers import Servers, on_servers
from benchmarks.timing import all_arrived, arrivals, commit_evenly, times_ms

_PER_S = 200
_SECONDS = int(os.environ.get("BENCH_SECONDS", "15"))
_TENANTS = 20
_WARM = 200


def main() -> dict[str, float]:
    """Run once and return the percentiles."""
    return on_servers(_run)


async def _run(given: Servers) -> dict[str, float]:
    mine = lanes(_TENANTS)
    await declare_lanes(given, mine, "classic")
    async with relay_process(given, "classic"), arrivals(given, mine) as arrived:
        await all_arrived(await commit_evenly(given, mine, count=_WARM, per_s=_PER_S), arrived)
        began = time.monotonic()
        committed = await commit_evenly(given, mine, count=_PER_S * _SECONDS, per_s=_PER_S)
        seconds = time.monotonic() - began
        await all_arrived(committed, arrived)
    percentiles = statistics.quantiles(times_ms(committed, arrived), n=100)
    return {
        "p50_ms": round(percentiles[49], 2),
        "p99_ms": round(percentiles[98], 2),
        "commits_per_s": round(len(committed) / seconds, 1),
    }
