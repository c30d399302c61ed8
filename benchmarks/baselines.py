"""What ours is measured against: the relays and the consumer that a careful engineer writes in an afternoon.

Both relays read a table of their own, shaped like the ones that such code uses, with the usual partial index.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final
from uuid import UUID

import aio_pika
from psycopg import AsyncConnection
from psycopg_pool import AsyncConnectionPool
from sqlalchemy import DateTime, Uuid, column, func, make_url, table
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from outbox.event import Event
from outbox.topology import EVENTS_EXCHANGE
from outbox.wire import encode

_BATCH = 100
_TABLE = """
DROP TABLE IF EXISTS plain_outbox;
CREATE TABLE plain_outbox (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, event_id uuid NOT NULL, routing_key text NOT NULL,
    type text NOT NULL, payload bytea NOT NULL, headers jsonb NOT NULL, published_at timestamptz
);
CREATE INDEX ON plain_outbox (id) WHERE published_at IS NULL;
"""
_SELECT = """
SELECT id, event_id, routing_key, type, payload, headers FROM plain_outbox WHERE published_at IS NULL
ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED
"""
PLAIN_INSERT: Final = "INSERT INTO plain_ledger VALUES (%s, now()) ON CONFLICT DO NOTHING"
_Row = tuple[int, UUID, str, str, bytes, dict[str, str]]


async def fill_plain_outbox(connection: AsyncConnection, events: Sequence[tuple[Event, str]]) -> None:
    """Make the table anew and commit *events*, each with its routing key."""
    await connection.execute(_TABLE)
    async with (
        connection.cursor() as cursor,
        cursor.copy("COPY plain_outbox (event_id, routing_key, type, payload, headers) FROM STDIN") as copy,
    ):
        for event, routing_key in events:
            message = encode(event)
            headers = json.dumps(message.headers)
            await copy.write_row((event.id, routing_key, event.type, message.body, headers))
    await connection.commit()
    await connection.execute("ANALYZE plain_outbox")
    await connection.commit()


async def run_plain_relay(dsn: str, url: str, *, is_careful: bool) -> tuple[int, float]:
    """Publish everything that waits; returns how many and the seconds it took.

    The straightforward one publishes and awaits one confirm after another; the careful one publishes a
    batch concurrently. Both mark a batch with one UPDATE after its confirms.
    """
    published = 0
    async with await AsyncConnection.connect(dsn) as database, await aio_pika.connect(url) as broker:
        channel = await broker.channel(publisher_confirms=True, on_return_raises=True)
        exchange = await channel.get_exchange(EVENTS_EXCHANGE, ensure=False)
        began = time.perf_counter()
        while True:
            cursor = await database.execute(_SELECT, (_BATCH,))
            rows: Sequence[_Row] = await cursor.fetchall()
            if not rows:
                return published, time.perf_counter() - began
            if is_careful:
                await asyncio.gather(*(_publish(exchange, row) for row in rows))
                await database.execute(
                    "UPDATE plain_outbox SET published_at = now() WHERE id = ANY(%s)", ([row[0] for row in rows],)
                )
            else:
                for row in rows:
                    await _publish(exchange, row)
                    await database.execute("UPDATE plain_outbox SET published_at = now() WHERE id = %s", (row[0],))
            await database.commit()
            published += len(rows)


async def _publish(exchange: aio_pika.abc.AbstractExchange, row: _Row) -> None:
    _, event_id, routing_key, event_type, payload, headers = row
    message = aio_pika.Message(
        payload,
        headers=dict(headers),
        message_id=str(event_id),
        type=event_type,
        content_type="application/json",
        delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
    )
    await exchange.publish(message, routing_key, mandatory=True)


async def make_plain_ledger(pool: AsyncConnectionPool) -> None:
    """Make the table of ``PLAIN_INSERT`` anew."""
    async with pool.connection() as connection:
        await connection.execute(
            "DROP TABLE IF EXISTS plain_ledger;"
            "CREATE TABLE plain_ledger (event_id uuid PRIMARY KEY, at timestamptz NOT NULL)"
        )


Insert = Callable[[str], Awaitable[None]]
"""Remembers a message by its id, committed when it returns."""


@asynccontextmanager
async def _by_driver(dsn: str) -> AsyncIterator[Insert]:
    async with AsyncConnectionPool(dsn, min_size=10, max_size=10, open=False) as pool:
        await pool.wait()
        await make_plain_ledger(pool)

        async def insert(message_id: str) -> None:
            async with pool.connection() as connection:
                await connection.execute(PLAIN_INSERT, (message_id,))

        yield insert


@asynccontextmanager
async def _by_session(dsn: str) -> AsyncIterator[Insert]:
    async with AsyncConnectionPool(dsn, min_size=1, max_size=1, open=False) as pool:
        await pool.wait()
        await make_plain_ledger(pool)
    engine = create_async_engine(make_url(dsn).set(drivername="postgresql+psycopg"), pool_size=10, max_overflow=0)
    ledger = table("plain_ledger", column("event_id", Uuid), column("at", DateTime))
    once = postgresql.insert(ledger).on_conflict_do_nothing()

    async def insert(message_id: str) -> None:
        async with AsyncSession(engine) as session, session.begin():
            await session.execute(once.values(event_id=UUID(message_id), at=func.now()))

    yield insert
    await engine.dispose()


async def run_plain_consumer(dsn: str, url: str, queues: Sequence[str], *, count: int, by_session: bool) -> float:
    """Handle *count* messages: one INSERT ... ON CONFLICT each, ten connections, then the ack. Returns the seconds.

    Time runs from the first delivery to the last ack. *by_session*: with a SQLAlchemy AsyncSession for each message,
    else with psycopg alone.
    """
    began: float | None = None
    handled = 0
    done = asyncio.Event()
    async with (_by_session if by_session else _by_driver)(dsn) as insert, await aio_pika.connect(url) as broker:

        async def handle(message: aio_pika.abc.AbstractIncomingMessage) -> None:
            nonlocal began, handled
            began = began or time.perf_counter()
            assert message.message_id is not None
            await insert(message.message_id)
            await message.ack()
            handled += 1
            if handled == count:
                done.set()

        channel = await broker.channel()
        await channel.set_qos(prefetch_count=20)
        for name in queues:
            queue = await channel.get_queue(name, ensure=False)
            await queue.consume(handle)
        await asyncio.wait_for(done.wait(), 300)
        assert began is not None
        return time.perf_counter() - began
