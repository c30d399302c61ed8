"""NAME=takeover: three relays share the log; how soon one that is killed is replaced, and what three cost.

A takeover runs from SIGKILL until an event of every bucket, committed right after it, has reached its queue.
Throughput runs from the COMMIT of all events until positions say that all are published, with one relay and with
three in turn: on two cores, where database and broker run too, three have no more to work with than one.
"""

import asyncio
import os
import statistics
import sys
import time
from asyncio.subprocess import Process
from collections.abc import Sequence
from contextlib import AsyncExitStack

import aio_pika
from psycopg import AsyncConnection

from benchmarks.events import events, insert, lanes, take_all
from benchmarks.relay_child import LEASE_S
from benchmarks.relay_process import declare_lanes, relay_process
from benchmarks.servers import Servers, on_servers
from outbox.event import Event
from outbox.naming import BUCKETS, Lane, bucket_of, tenant_hash

_RELAYS = 3
_ROUNDS = 3
_TENANTS = 100
_COUNT = int(os.environ.get("BENCH_EVENTS", "20000"))
_PAYLOAD_BYTES = int(os.environ.get("BENCH_PAYLOAD_BYTES", "300"))
_SETTLE_S = 60.0

# An eighth of a share more or less is left as it is.
_HAVE_SHARED = f"""
SELECT count(*) = %s AND min(owned) >= {BUCKETS} / %s * 7 / 8 AND sum(owned) = {BUCKETS} FROM (
    SELECT (SELECT count(*) FROM outbox.bucket b WHERE b.token = r.token) AS owned
    FROM outbox.relay r WHERE expires_at > clock_timestamp()
) relays"""
_IS_PUBLISHED = """
SELECT bool_and(pg_visible_in_snapshot(%s::xid8, lo)) AND NOT EXISTS (SELECT FROM outbox.stream) FROM outbox.bucket"""


def main() -> dict[str, float]:
    """Run all rounds; return the slowest takeover, and medians."""
    return on_servers(_run)


async def _run(given: Servers) -> dict[str, float]:
    mine = lanes(_TENANTS)
    each = _one_lane_per_bucket()
    await declare_lanes(given, [*mine, *each], "classic")
    alone: list[float] = []
    together: list[float] = []
    takeovers: list[float] = []
    async with relay_process(given, "classic"):
        await _throughput(given, mine, relays=1)
        for number in range(_ROUNDS):
            alone.append(await _throughput(given, mine, relays=1))
            async with AsyncExitStack() as stack:
                others = [await stack.enter_async_context(relay_process(given, "classic")) for _ in range(_RELAYS - 1)]
                await _throughput(given, mine, relays=_RELAYS)
                together.append(await _throughput(given, mine, relays=_RELAYS))
                takeovers.append(await _takeover(given, each, others[0]))
            print(f"round {number + 1}: {alone=} {together=} {takeovers=}", file=sys.stderr)
    return {
        "takeover_s": round(max(takeovers), 2),
        "lease_s": LEASE_S,
        "three_over_one": round(statistics.median(together) / statistics.median(alone), 2),
        "one_per_s": round(statistics.median(alone)),
        "three_per_s": round(statistics.median(together)),
    }


def _one_lane_per_bucket() -> list[Lane]:
    found: dict[int, Lane] = {}
    for lane in lanes(_TENANTS + 20 * BUCKETS)[_TENANTS:]:
        found.setdefault(bucket_of(tenant_hash(lane.tenant)), lane)
    assert len(found) == BUCKETS
    return list(found.values())


async def _throughput(given: Servers, mine: Sequence[Lane], *, relays: int) -> float:
    """Events per second of so many relays, which have shared the buckets before."""
    async with await AsyncConnection.connect(given.database_url, autocommit=True) as asker:
        await _until(asker, _HAVE_SHARED, (relays, relays))
        # They are awake then, and know their lanes.
        await _committed(given, asker, events(len(mine), mine, payload_bytes=_PAYLOAD_BYTES))
        seconds = await _committed(given, asker, events(_COUNT, mine, payload_bytes=_PAYLOAD_BYTES))
    found = await take_all(given.rabbitmq_url, [lane.queue for lane in mine])
    assert len(set(found)) == _COUNT + len(mine), f"want {_COUNT + len(mine)} events, got {len(set(found))}"
    return _COUNT / seconds


async def _committed(given: Servers, asker: AsyncConnection, batch: Sequence[tuple[Event, Lane]]) -> float:
    """Commit *batch* and return how many seconds later all of it was published."""
    async with await AsyncConnection.connect(given.database_url) as connection:
        await insert(connection, batch)
        row = await (await connection.execute("SELECT pg_current_xact_id()::text")).fetchone()
        assert row is not None
        began = time.monotonic()
        await connection.commit()
    await _until(asker, _IS_PUBLISHED, row)
    return time.monotonic() - began


async def _takeover(given: Servers, each: Sequence[Lane], victim: Process) -> float:
    """Kill *victim*, and return how many seconds later every bucket's events were published."""
    missing = {lane.queue for lane in each}
    async with await AsyncConnection.connect(given.database_url) as connection:
        async with await AsyncConnection.connect(given.database_url, autocommit=True) as asker:
            await _until(asker, _HAVE_SHARED, (_RELAYS, _RELAYS))
        await insert(connection, events(len(each), each, payload_bytes=_PAYLOAD_BYTES))
        victim.kill()
        began = time.monotonic()
        await connection.commit()
    async with await aio_pika.connect(given.rabbitmq_url) as broker, asyncio.timeout(_SETTLE_S):
        channel = await broker.channel()
        while missing:
            for name in sorted(missing):
                queue = await channel.get_queue(name, ensure=False)
                if await queue.get(no_ack=True, fail=False) is not None:
                    missing.remove(name)
        return time.monotonic() - began


async def _until(asker: AsyncConnection, question: str, parameters: Sequence[object]) -> None:
    async with asyncio.timeout(_SETTLE_S):
        while True:
            row = await (await asker.execute(question.encode(), parameters)).fetchone()
            if row is not None and row[0]:
                return
            await asyncio.sleep(0.01)
