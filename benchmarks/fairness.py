"""NAME=fairness: how long quiet tenants wait for a slot, alone and beside a flood, and what that costs the flood.

Real PostgreSQL and RabbitMQ, the engine in processes of its own, 10 slots, handlers of 50 ms. Twenty quiet tenants
publish an event a second each, every one at its own moment; a time runs from publishing until the handler begins.
"""

import asyncio
import json
import os
import random
import statistics
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace

import aio_pika

from benchmarks.consumer import tell_consumer
from benchmarks.events import events
from benchmarks.fairness_child import HANDLER_S
from benchmarks.raw_amqp import RawConnection, publish_frames
from benchmarks.relay_process import declare_lanes
from benchmarks.servers import Servers, on_servers
from consumer.settings import ALL_TIERS
from outbox.event import Event, Tier
from outbox.naming import Lane
from outbox.schema import DEFAULT_GROUP
from outbox.topology import EVENTS_EXCHANGE
from outbox.wire import encode

_WAITING = int(os.environ.get("BENCH_EVENTS", "2000"))
_ROUNDS = int(os.environ.get("BENCH_ROUNDS", "2"))
_ALONE_S = 12.0
_SLOTS, _RESERVED = 10, 3
_QUIET = 20
_PROCESSES = 4


def _lanes(name: str, tier: Tier, count: int) -> list[Lane]:
    return [Lane(group=DEFAULT_GROUP, tier=tier, tenant=f"{name}-{number:02}") for number in range(count)]


QUIET = _lanes("quiet", Tier.STANDARD, _QUIET)
URGENT = _lanes("urgent", Tier.INTERACTIVE, _QUIET)
FLOODS = _lanes("flood", Tier.STANDARD, _QUIET)
BULK = _lanes("bulk", Tier.BULK, _QUIET)


@dataclass(slots=True)
class Consumers:
    """Processes that consume, and what they have handled: tenant, seconds waited, when it began and ended."""

    handled: list[tuple[str, float, float, float]] = field(default_factory=list)
    ready: int = 0

    async def read(self, child: Process) -> None:
        """Note what *child* says."""
        assert child.stdout is not None
        while line := await child.stdout.readline():
            if line == b"ready\n":
                self.ready += 1
            else:
                self.handled.append(tuple(json.loads(line)))

    async def have(self, count: int, *, within_s: float = 120.0) -> None:
        """Wait until so many were handled since ``clear``."""
        async with asyncio.timeout(within_s):
            while len(self.handled) < count:
                await asyncio.sleep(0.02)

    def waits_ms(self, mine: Sequence[Lane]) -> list[float]:
        """How long what was handled of these lanes had waited."""
        tenants = {lane.tenant for lane in mine}
        return [waited * 1000 for tenant, waited, _, _ in self.handled if tenant in tenants]

    def makespan_s(self) -> float:
        """From the first start to the last end."""
        return max(ended for *_, ended in self.handled) - min(began for _, _, began, _ in self.handled)


@asynccontextmanager
async def consumers(
    given: Servers, *, processes: int = 1, which: str = "ours", argument: str = ALL_TIERS
) -> AsyncIterator[Consumers]:
    """That many processes, each attached to every lane of its tiers."""
    found = Consumers()
    async with AsyncExitStack() as stack:
        for _ in range(processes):
            child = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "benchmarks.fairness_child", which, given.database_url, given.rabbitmq_url,
                argument, stdin=PIPE, stdout=PIPE,
            )  # fmt: skip
            reader = asyncio.create_task(found.read(child))
            stack.push_async_callback(_end, child, reader)
        async with asyncio.timeout(60):
            while found.ready < processes:
                await asyncio.sleep(0.02)
        yield found


async def _end(child: Process, reader: "asyncio.Task[None]") -> None:
    assert child.stdin is not None
    child.stdin.close()
    await asyncio.wait_for(child.wait(), 60)
    await reader


class Publisher:
    """Publishes what waits at once, and what is quiet at its pace."""

    def __init__(self, given: Servers, exchange: aio_pika.abc.AbstractExchange) -> None:
        self._given = given
        self._exchange = exchange
        self._dice = random.Random(7)

    async def flood(self, mine: Sequence[Lane], count: int) -> None:
        """Publish *count* events at once, dealt to the lanes in turn."""
        await asyncio.to_thread(self._flood, mine, count)

    async def quietly(self, mine: Sequence[Lane], seconds: float) -> int:
        """Let each tenant publish an event a second, at a moment of its own; return how many were published."""
        offsets = [(self._dice.random(), lane) for lane in mine]
        moments = [(second + offset, lane) for second in range(int(seconds)) for offset, lane in offsets]
        began = time.monotonic()
        count = 0
        for at, lane in sorted(moments, key=lambda moment: moment[0]):
            await asyncio.sleep(began + at - time.monotonic())
            message = encode(_event(lane))
            await self._exchange.publish(
                aio_pika.Message(
                    message.body,
                    headers={name: str(value) for name, value in message.headers.items()},
                    message_id=message.message_id,
                    type=message.type,
                    app_id=message.app_id,
                    content_type=message.content_type,
                ),
                lane.routing_key,
            )
            count += 1
        return count

    def _flood(self, mine: Sequence[Lane], count: int) -> None:
        raw = RawConnection(self._given.rabbitmq_url)
        batch = [(lane, _event(lane)) for number in range(count) for lane in [mine[number % len(mine)]]]
        raw.publish_all([publish_frames(event, lane.routing_key) for lane, event in batch], window=2000, batch=200)
        raw.close()


def _event(lane: Lane) -> Event:
    event, _ = events(1, [lane], payload_bytes=20)[0]
    return replace(event, payload=json.dumps({"at": time.monotonic()}).encode())


@dataclass(slots=True)
class Bench:
    """The scenes, each with what is published in it."""

    given: Servers
    publisher: Publisher
    waits_ms: dict[str, list[float]] = field(default_factory=dict)
    seconds: dict[str, list[float]] = field(default_factory=dict)

    async def quiet(
        self, name: str, mine: Sequence[Lane], floods: Sequence[Lane] = (), *, processes: int = 1, slots: int = 1
    ) -> None:
        """Have *mine* publish quietly while *floods* have events waiting for *slots*, or for a while where none has."""
        async with consumers(self.given, processes=processes) as running:
            await self._warm(running, [*mine, *floods])
            waiting = _WAITING * processes if floods else 0
            await self.publisher.flood(floods, waiting)
            seconds = waiting * HANDLER_S / (slots * processes) - 1 if floods else _ALONE_S
            count = await self.publisher.quietly(mine, seconds)
            left = waiting + count - len(running.handled)
            assert not floods or left > slots, f"{name}: want a flood that lasts, got {left} left"
            await running.have(waiting + count)
            self.waits_ms.setdefault(name, []).extend(running.waits_ms(mine))
            worst = [round(wait) for wait in sorted(running.waits_ms(mine))[-9:]]
            print(f"{name}: p99 {self.p99_ms(name)} ms, worst {worst}", file=sys.stderr)

    async def drain(self, name: str, mine: Sequence[Lane], *, which: str = "ours", argument: str = ALL_TIERS) -> None:
        """Have what waits in *mine* drained."""
        async with consumers(self.given, which=which, argument=argument) as running:
            await self._warm(running, mine)
            await self.publisher.flood(mine, _WAITING)
            await running.have(_WAITING)
            self.seconds.setdefault(name, []).append(running.makespan_s())
            print(f"{name}: {running.makespan_s():.2f} s", file=sys.stderr)

    async def _warm(self, running: Consumers, mine: Sequence[Lane]) -> None:
        """Connections, threads and estimates are made by what comes first."""
        await self.publisher.flood(mine, 3 * len(mine))
        await running.have(3 * len(mine))
        running.handled.clear()

    def p99_ms(self, name: str) -> float:
        """Of all rounds' times together: one round has three above it."""
        return round(statistics.quantiles(self.waits_ms[name], n=100)[98], 1)

    def median_s(self, name: str) -> float:
        """Of the rounds."""
        return statistics.median(self.seconds[name])


def main() -> dict[str, float]:
    """Run all scenes, round after round."""
    return on_servers(_run)


async def _run(given: Servers) -> dict[str, float]:
    every = [*QUIET, *URGENT, *FLOODS, *BULK]
    await declare_lanes(given, every, "classic")
    await tell_consumer(given, every)
    fifo = " ".join([str(_SLOTS - _RESERVED), *(lane.queue for lane in FLOODS)])
    async with await aio_pika.connect(given.rabbitmq_url) as broker:
        channel = await broker.channel(publisher_confirms=False)
        bench = Bench(given, Publisher(given, await channel.get_exchange(EVENTS_EXCHANGE, ensure=False)))
        for _ in range(_ROUNDS):
            await bench.quiet("alone", QUIET)
            await bench.quiet("flooded", QUIET, FLOODS[:1], slots=7)
            await bench.quiet("split", QUIET, FLOODS, slots=7)
            await bench.quiet("fleet", QUIET, FLOODS[:1], slots=7, processes=_PROCESSES)
            await bench.quiet("urgent alone", URGENT)
            await bench.quiet("urgent", URGENT, BULK, slots=6)
            await bench.drain("lone", FLOODS[:1])
            await bench.drain("many", FLOODS)
            await bench.drain("fifo", FLOODS, which="fifo", argument=fifo)
            await bench.drain("unreserved", FLOODS, argument="standard,bulk")
    return {
        "alone_p99_ms": bench.p99_ms("alone"),
        "flooded_p99_ms": bench.p99_ms("flooded"),
        "split_p99_ms": bench.p99_ms("split"),
        "fleet_p99_ms": bench.p99_ms("fleet"),
        "interactive_alone_p99_ms": bench.p99_ms("urgent alone"),
        "interactive_p99_ms": bench.p99_ms("urgent"),
        "makespan_ratio": round(bench.median_s("many") / bench.median_s("fifo"), 3),
        "lone_ratio": round(bench.median_s("lone") * (_SLOTS - _RESERVED) / (_WAITING * HANDLER_S), 3),
        "reservation_ratio": round(bench.median_s("many") / bench.median_s("unreserved"), 3),
    }
