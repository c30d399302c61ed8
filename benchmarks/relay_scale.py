"""NAME=relay-scale: what an event costs as the log, the lanes and the oldest snapshot grow.

One relay on a log of 1,000 retained rows, one on a log of 5,000,000, measured in turn; then a REPEATABLE READ snapshot
is held on the large one: ten minutes of steady work under it, and the same measurement again with it still held.
Lanes are measured in turn too, on the small log.

A cost is CPU of the relay and of its sessions on the database, per event, half of the events committed at once and
half in small transactions at an even rate. Each half begins on empty queues and with a broker at rest, as where
consumers keep up: one that has confirmed events of thousands of queues works on for seconds, and what it takes of the
cores' caches would count as the relay's (a fifth more, for its sessions' same queries). The ratios that end in
``wall_ratio`` are those of the time from the one commit to the last confirm. BENCH_RETAINED, BENCH_LANES,
BENCH_EVENTS, BENCH_ROUNDS and BENCH_SECONDS (how long the snapshot is held) shorten it; what was run is told beside
the figures.
"""

import asyncio
import os
import statistics
import sys
from collections.abc import Sequence

from psycopg import AsyncConnection

from benchmarks.cost import Cost, MeasuredRelay, measured_relay, now
from benchmarks.events import events, insert, lanes, purge
from benchmarks.relay_process import declare_lanes
from benchmarks.retained import retain
from benchmarks.servers import Servers, servers, with_another_database
from outbox.naming import Lane

_RETAINED = int(os.environ.get("BENCH_RETAINED", "5000000"))
_FEW_RETAINED = 1000
_LANES = int(os.environ.get("BENCH_LANES", "5000"))
_FEW_LANES, _SOME_LANES = 10, 100
_COUNT = int(os.environ.get("BENCH_EVENTS", "10000"))
_ROUNDS = int(os.environ.get("BENCH_ROUNDS", "5"))
_HELD_S = float(os.environ.get("BENCH_SECONDS", "600"))
_MINUTE_S = min(60.0, _HELD_S / 3)
_HELD_EVENTS = 200_000
_PAYLOAD_BYTES = 300
_REST_S = 4.0
_IN_A_COMMIT, _PER_S = 50, 2500
_HELD_IN_A_COMMIT, _HELD_PER_S = 20, 400
_DEAD = """
SELECT sum(n_dead_tup + n_tup_upd + n_tup_del)::bigint FROM pg_stat_all_tables
WHERE schemaname = 'outbox' AND relname LIKE 'event%'"""


def main() -> dict[str, float]:
    """Run all of it and return the ratios."""
    with servers() as small, with_another_database(small) as large:
        print(small.versions, file=sys.stderr)
        return asyncio.run(_run(small, large))


async def _run(small: Servers, large: Servers) -> dict[str, float]:
    mine = lanes(_LANES)
    some = mine[:_SOME_LANES]
    await declare_lanes(small, some, "classic")
    await retain(small.database_url, some, count=_FEW_RETAINED)
    await retain(large.database_url, some, count=_RETAINED)
    async with measured_relay(small, "classic") as few, measured_relay(large, "classic") as many:
        for relay in (few, many):
            await _warm(relay, some)
        retained = await _ratio((many, some), (few, some), what=f"{_RETAINED:,} over {_FEW_RETAINED:,} retained rows")
        async with await AsyncConnection.connect(large.database_url) as holder:
            await holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            await holder.execute("SELECT count(*) FROM pg_class")
            first, last, held_events = await _hold(many, some)
            held = await _ratio((many, some), (few, some), what="the same, its snapshot held")
            held_events += 2 * _COUNT * _ROUNDS
            while held_events < _HELD_EVENTS:
                await many.cost(_COUNT, lambda: _at_once(many, some))
                await _empty(many, some)
                held_events += _COUNT
            await holder.execute("SELECT 1")
    dead = await _value(large, _DEAD)
    async with measured_relay(small, "classic") as relay:
        await _warm(relay, mine)
        spread = await _ratio((relay, mine), (relay, mine[:_FEW_LANES]), what=f"{_LANES} over {_FEW_LANES} lanes")
    return {
        "retained_ratio": retained[0],
        "retained_wall_ratio": retained[1],
        "held_snapshot_ratio": held[0],
        "held_snapshot_wall_ratio": held[1],
        "lanes_ratio": spread[0],
        "lanes_wall_ratio": spread[1],
        "dead_tuples": dead,
        "persist_ratio": round(last / first, 2),
        "persist_first_ms": round(first, 2),
        "persist_last_ms": round(last, 2),
        "retained_rows": _RETAINED,
        "lanes": _LANES,
        "held_s": _HELD_S,
        "held_events": held_events,
        "rounds": _ROUNDS,
    }


_Side = tuple[MeasuredRelay, Sequence[Lane]]


async def _ratio(dear: _Side, cheap: _Side, *, what: str) -> tuple[float, float]:
    """Cost of *dear* over that of *cheap*: CPU, and time from commit to confirm; medians of rounds in turn."""
    cpu: list[list[float]] = [[], []]
    wall: list[list[float]] = [[], []]
    for number in range(_ROUNDS):
        for index in (0, 1) if number % 2 else (1, 0):
            relay, among = (dear, cheap)[index]
            at_once = await relay.cost(_COUNT, lambda relay=relay, among=among: _at_once(relay, among))  # type: ignore[misc]
            await _at_rest(relay, among)
            evenly = await relay.cost(_COUNT, lambda relay=relay, among=among: _evenly(relay, among))  # type: ignore[misc]
            await _at_rest(relay, among)
            cpu[index].append((at_once.cpu_us + evenly.cpu_us) / 2)
            wall[index].append(at_once.wall_us)
            side = "cheap" if index else "dear"
            print(f"{what}: {side}: {_text(at_once)} at once, {_text(evenly)} evenly", file=sys.stderr)
    ratios = tuple(round(statistics.median(one[0]) / statistics.median(one[1]), 3) for one in (cpu, wall))
    print(f"{what}: {ratios}", file=sys.stderr)
    return ratios[0], ratios[1]


async def _hold(relay: MeasuredRelay, among: Sequence[Lane]) -> tuple[float, float, int]:
    """Work steadily under the held snapshot; the median persist of the first and the last minute, and the events."""
    medians = []
    each_minute = int(_HELD_PER_S * _MINUTE_S)
    count = 0

    async def minute() -> float:
        return await _evenly(relay, among, count=each_minute, each=_HELD_IN_A_COMMIT, per_s=_HELD_PER_S)

    for seconds in (_MINUTE_S, _HELD_S - 2 * _MINUTE_S, _MINUTE_S):
        await relay.persists_ms()
        for _ in range(max(1, round(seconds / _MINUTE_S))):
            await relay.cost(each_minute, minute)
            await _empty(relay, among)
            count += each_minute
        medians.append(statistics.median(await relay.persists_ms()))
        print(f"snapshot held, persists of {seconds:g} s: {medians[-1]:.2f} ms", file=sys.stderr)
    return medians[0], medians[-1], count


async def _warm(relay: MeasuredRelay, among: Sequence[Lane]) -> None:
    """Once through every lane, so that all are declared."""
    await relay.cost(len(among), lambda: _at_once(relay, among, count=len(among)))
    await _empty(relay, among)


async def _at_once(relay: MeasuredRelay, among: Sequence[Lane], *, count: int = _COUNT) -> float:
    async with await AsyncConnection.connect(relay.given.database_url) as connection:
        await insert(connection, events(count, among, payload_bytes=_PAYLOAD_BYTES))
        return now()


async def _evenly(
    relay: MeasuredRelay, among: Sequence[Lane], *, count: int = _COUNT, each: int = _IN_A_COMMIT, per_s: int = _PER_S
) -> float:
    began = now()
    async with await AsyncConnection.connect(relay.given.database_url) as connection:
        for number in range(0, count, each):
            await asyncio.sleep(began + number / per_s - now())
            first = number % len(among)
            dealt = [*among[first:], *among[:first]] if len(among) <= each else among[first : first + each]
            await insert(connection, events(each, dealt, payload_bytes=_PAYLOAD_BYTES))
            await connection.commit()
    return began


async def _empty(relay: MeasuredRelay, among: Sequence[Lane]) -> None:
    await purge(relay.given.rabbitmq_url, [lane.queue for lane in among])


async def _at_rest(relay: MeasuredRelay, among: Sequence[Lane]) -> None:
    await _empty(relay, among)
    await asyncio.sleep(_REST_S)


def _text(cost: Cost) -> str:
    return f"cpu {cost.cpu_us:.1f} us, wall {cost.wall_us:.1f} us"


async def _value(given: Servers, query: str) -> int:
    async with await AsyncConnection.connect(given.database_url) as connection:
        row = await (await connection.execute(query)).fetchone()
    assert row is not None
    return int(row[0])
