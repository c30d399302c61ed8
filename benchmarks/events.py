"""Events for benchmarks: made once, committed as an app would have, and read back from queues."""

from collections.abc import Sequence
from datetime import UTC, datetime

import aio_pika
from psycopg import AsyncConnection

from outbox.event import JSON, Event, Tier, new_event_id
from outbox.naming import Lane, bucket_of, tenant_hash
from outbox.schema import DEFAULT_GROUP

_COLUMNS = "id, bucket, tier, tenant, tenant_hash, type, data_version, source, content_type, payload"


def lanes(count: int) -> list[Lane]:
    """The default group's lanes of *count* tenants."""
    return [Lane(group=DEFAULT_GROUP, tier=Tier.STANDARD, tenant=f"tenant-{number:03}") for number in range(count)]


def events(count: int, among: Sequence[Lane], *, payload_bytes: int) -> list[tuple[Event, Lane]]:
    """*count* events, dealt to the lanes in turn."""
    now = datetime.now(UTC)
    payload = b'{"text":"' + b"x" * (payload_bytes - 11) + b'"}'
    return [
        (
            Event(
                id=new_event_id(),
                tenant=lane.tenant,
                tier=lane.tier,
                type="shop.order.placed",
                data_version=1,
                source="/svc/shop",
                content_type=JSON,
                payload=payload,
                time=now,
                ledger_time=now,
            ),
            lane,
        )
        for lane in (among[number % len(among)] for number in range(count))
    ]


async def insert(connection: AsyncConnection, batch: Sequence[tuple[Event, Lane]]) -> None:
    """Write *batch* to the log in the caller's transaction."""
    async with (
        connection.cursor() as cursor,
        cursor.copy(f"COPY outbox.event ({_COLUMNS}) FROM STDIN") as copy,
    ):
        for event, _ in batch:
            hashed = tenant_hash(event.tenant)
            await copy.write_row(
                (
                    event.id,
                    bucket_of(hashed),
                    int(event.tier),
                    event.tenant,
                    hashed,
                    event.type,
                    event.data_version,
                    event.source,
                    event.content_type,
                    event.payload,
                )
            )


async def take_all(url: str, queues: Sequence[str]) -> list[str]:
    """Empty the queues; returns the message ids that were in them, however many."""
    async with await aio_pika.connect(url) as broker:
        channel = await broker.channel()
        found: list[str] = []
        for name in queues:
            queue = await channel.declare_queue(name, passive=True)
            ready = queue.declaration_result.message_count or 0
            before = len(found)
            async with queue.iterator(no_ack=True) as messages:
                while len(found) - before < ready:
                    message = await anext(messages)
                    found.append(message.message_id or "")
        return found


async def purge(url: str, queues: Sequence[str]) -> None:
    """Empty the queues."""
    async with await aio_pika.connect(url) as broker:
        channel = await broker.channel()
        for name in queues:
            queue = await channel.get_queue(name, ensure=False)
            await queue.purge()
