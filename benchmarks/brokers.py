"""NAME=brokers: what queues in PostgreSQL cost beside RabbitMQ's, and what 100,000 waiting messages cost them.

The same events through the same publisher port and the same consumer, round after round in turn: RabbitMQ with classic
queues, and queues in the database that the consumer writes to. Then claims alone: a hundred at a time from an empty
queue's few messages, from one with 100,000, and from one whose 100,000 settled ones no vacuum may remove yet.
"""

import asyncio
import json
import os
import statistics
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import Sequence

from psycopg import AsyncConnection

from benchmarks.consumer import tell_consumer
from benchmarks.events import events, lanes
from benchmarks.servers import Servers, on_servers
from consumer.postgres import claims, leases
from consumer.postgres.claims import Place, Wish
from outbox.naming import Lane
from outbox.queues import standing
from outbox.queues.session import connect
from outbox.shell.severed import Connection
from relay.ports import Confirmed, Outgoing
from relay.postgres.publisher import PostgresPublisher
from relay.rabbitmq.publisher import RabbitPublisher

_COUNT = int(os.environ.get("BENCH_EVENTS", "10000"))
_WAITING = 100_000
_TENANTS = 20
_ROUNDS = 3
_WINDOW = 2000
_BATCH = 200
_CLAIMS = 50
_CLAIMED = 100


def main() -> dict[str, float]:
    """Run all rounds and return medians and their ratios."""
    return on_servers(_run)


async def _run(given: Servers) -> dict[str, float]:
    mine = lanes(_TENANTS)
    await tell_consumer(given, mine)
    publishers: dict[str, RabbitPublisher | PostgresPublisher] = {
        given.rabbitmq_url: RabbitPublisher(url=given.rabbitmq_url, queue_kind="classic"),
        given.database_url: PostgresPublisher(url=given.database_url, queue_kind="classic"),
    }
    published: dict[str, list[float]] = {url: [] for url in publishers}
    consumed: dict[str, list[float]] = {url: [] for url in publishers}
    for number in range(_ROUNDS):
        for url, publisher in publishers.items():
            published[url].append(_COUNT / await _publish(publisher, mine))
            consumed[url].append(_COUNT / await _consume(given, url))
        print(f"round {number + 1}: published {published.values()} consumed {consumed.values()}", file=sys.stderr)
    rabbit, postgres = given.rabbitmq_url, given.database_url
    alone, waiting, held_back, look = await _claims(given)
    return {
        "publish_per_s": round(statistics.median(published[postgres])),
        "publish_over_rabbitmq": _ratio(published[postgres], published[rabbit]),
        "consume_per_s": round(statistics.median(consumed[postgres])),
        "consume_over_rabbitmq": _ratio(consumed[postgres], consumed[rabbit]),
        "claim_ms": round(alone, 3),
        "waiting_ratio": round(waiting / alone, 3),
        "held_back_ratio": round(held_back / alone, 3),
        "held_back_look_ms": round(look, 1),
    }


def _ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    return round(statistics.median(ours) / statistics.median(theirs), 3)


async def _publish(publisher: RabbitPublisher | PostgresPublisher, mine: Sequence[Lane]) -> float:
    """Seconds until all are confirmed, with as many in flight as a relay has."""
    batch = events(_COUNT, mine, payload_bytes=300)
    outgoing = [Outgoing(tag=tag, lane=lane, event=event) for tag, (event, lane) in enumerate(batch)]
    await publisher.open()
    assert not await publisher.declare(mine)
    sent = confirmed = 0
    began = time.perf_counter()
    while confirmed < _COUNT:
        while sent < _COUNT and sent - confirmed <= _WINDOW - _BATCH:
            await publisher.send(outgoing[sent : sent + _BATCH])
            sent += _BATCH
        settled = await publisher.settlements(timeout_s=30)
        assert all(isinstance(one, Confirmed) for one in settled)
        confirmed += len(settled)
    took_s = time.perf_counter() - began
    await publisher.close()
    return took_s


async def _consume(given: Servers, broker_url: str) -> float:
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.consumer_child", "ours", given.database_url, broker_url,
        str(_COUNT), str(_TENANTS), stdout=PIPE,
    )  # fmt: skip
    output, _ = await asyncio.wait_for(child.communicate(), 400)
    assert child.returncode == 0, broker_url
    seconds: float = json.loads(output)["seconds"]
    return seconds


async def _claims(given: Servers) -> tuple[float, float, float, float]:
    """Milliseconds per claim, settled with the next: with few waiting, with many, and behind many that are settled.

    Of the last also the first one, which looks from the queue's beginning.
    """
    connection = await connect(given.database_url, name="bench", within_s=60.0, may_forget=True)
    lane = lanes(1)[0]
    queue_id = (await standing.ids(connection, [lane.queue]))[lane.queue]
    await connection.execute("TRUNCATE outbox_broker.message")
    await _fill(connection, queue_id, _CLAIMS * _CLAIMED)
    alone, _ = await _claim(connection, queue_id)
    await _fill(connection, queue_id, _WAITING)
    waiting, _ = await _claim(connection, queue_id)
    async with await AsyncConnection.connect(given.database_url) as reader:
        # Its snapshot keeps vacuum from what is settled from now on.
        await reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        await reader.execute("SELECT 1")
        for _ in range((_WAITING - 2 * _CLAIMS * _CLAIMED) // (_CLAIMS * _CLAIMED)):
            await _claim(connection, queue_id)
        held_back, look = await _claim(connection, queue_id)
    await connection.close()
    return alone, waiting, held_back, look


async def _fill(connection: Connection, queue_id: int, count: int) -> None:
    await connection.execute(
        """INSERT INTO outbox_broker.message
               (queue_id, routing_key, message_id, type, app_id, content_type, headers, body)
           SELECT %s, 'k', n, 't', 'a', 'c', '{}', %s FROM generate_series(1, %s) n""",
        (queue_id, b"x" * 300, count),
    )


async def _claim(connection: Connection, queue_id: int) -> tuple[float, float]:
    token = await leases.begin(connection, lease_s=600.0)
    done: list[Place] = []
    after, times = 0, list[float]()
    for _ in range(_CLAIMS):
        began = time.perf_counter()
        wish = Wish(queue_id=queue_id, after=after, room=_CLAIMED)
        claimed = await claims.claim(connection, token, [wish], dead=[], done=done)
        times.append(time.perf_counter() - began)
        assert len(claimed) == _CLAIMED
        done, after = [one.place for one in claimed], claimed[-1].place.seq
    await claims.settle(connection, token, done)
    await leases.end(connection, token)
    return statistics.median(times) * 1000, times[0] * 1000
