"""A consumer in a process of its own whose handler takes 50 ms: ours, or one that takes what comes first.

Prints a JSON line per event: its tenant, how long it had waited when its handler began, and when that began and ended,
in monotonic seconds, which are the same clock in every process. Ends when its input does.
"""

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace

import aio_pika
from psycopg_pool import AsyncConnectionPool

from benchmarks.baselines import PLAIN_INSERT, make_plain_ledger
from consumer import Consumer
from consumer.engine.run import Readiness, run_consumer
from consumer.event_loop import run_on
from consumer.limits import Limits
from consumer.rabbitmq.broker import rabbitmq_broker
from consumer.rabbitmq.connection import Address
from consumer.rabbitmq.exchange import RabbitMQExchange
from consumer.settings import read_tiers
from outbox.event import Event
from outbox.schema import DEFAULT_GROUP
from outbox.shell.logs import configure
from outbox.shell.signals import Stop

#: How long a handler takes.
HANDLER_S = 0.05
consumer = Consumer(DEFAULT_GROUP)


@consumer.on("shop.order.placed")
async def handle(event: Event) -> None:
    """Take 50 ms, and say so."""
    await work(event.tenant, event.payload)


async def work(tenant: str, payload: bytes) -> None:
    """What both consumers do per event."""
    began = time.monotonic()
    await asyncio.sleep(HANDLER_S)
    print(json.dumps([tenant, began - json.loads(payload)["at"], began, time.monotonic()]), flush=True)


async def run_fifo(database_url: str, rabbitmq_url: str, queues: Sequence[str], *, workers: int) -> None:
    """Handle what comes first, so many at once: one INSERT ... ON CONFLICT each in the handler's transaction."""
    async with (
        AsyncConnectionPool(database_url, min_size=workers, max_size=workers, open=False) as pool,
        await aio_pika.connect(rabbitmq_url) as broker,
    ):
        await pool.wait()
        await make_plain_ledger(pool)
        free = asyncio.Semaphore(workers)

        async def handle(message: aio_pika.abc.AbstractIncomingMessage) -> None:
            async with free, pool.connection() as connection:
                await connection.execute(PLAIN_INSERT, (message.message_id,))
                await work(str(message.headers["ce-tenantid"]), message.body)
            await message.ack()

        channel = await broker.channel()
        await channel.set_qos(prefetch_count=2 * workers)
        for name in queues:
            queue = await channel.get_queue(name, ensure=False)
            await queue.consume(handle)
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.read)


async def main(which: str, database_url: str, rabbitmq_url: str, argument: str) -> None:
    """Run until nobody listens any more. *argument*: the tiers of ours, or the other's workers and queues."""
    if which == "fifo":
        workers, *queues = argument.split()
        await run_fifo(database_url, rabbitmq_url, queues, workers=int(workers))
        return
    address, stop, readiness = Address(url=rabbitmq_url, name="bench"), Stop(), Readiness()
    running = asyncio.create_task(
        run_consumer(
            consumer,
            rabbitmq_broker(address),
            RabbitMQExchange(address),
            database_url,
            stop=stop,
            limits=replace(Limits(), tiers=read_tiers(argument)),
            queue_kind="classic",
            readiness=readiness,
        )
    )
    while readiness.engine is None or readiness.engine.lanes.attached == 0:
        await asyncio.sleep(0.02)
    print("ready", flush=True)
    await asyncio.wait(
        [running, asyncio.ensure_future(asyncio.to_thread(sys.stdin.read))], return_when=asyncio.FIRST_COMPLETED
    )
    stop.request()
    await running


if __name__ == "__main__":
    configure(level="warning", format="console", stream=sys.stderr)
    run_on("auto", main(*sys.argv[1:5]))  # as the process does
