"""A broker that tests may kill and block."""

import asyncio

import aio_pika
import pytest
from aio_pika.exceptions import AMQPError

from tests.support.rabbit import RabbitNode


async def _publish(url: str, *, timeout_s: float) -> None:
    connection = await aio_pika.connect(url)
    async with connection:
        channel = await connection.channel()
        await channel.declare_queue("durable", durable=True)
        message = aio_pika.Message(b"x", delivery_mode=2)
        await asyncio.wait_for(channel.default_exchange.publish(message, "durable"), timeout_s)


async def _waiting(url: str) -> int | None:
    connection = await aio_pika.connect(url)
    async with connection:
        channel = await connection.channel()
        return (await channel.declare_queue("durable", durable=True)).declaration_result.message_count


async def test_a_killed_broker_comes_back_on_its_port_with_its_messages(faulty_rabbit: RabbitNode) -> None:
    await _publish(faulty_rabbit.url(), timeout_s=10)
    faulty_rabbit.kill()
    with pytest.raises((AMQPError, OSError)):
        await _publish(faulty_rabbit.url(), timeout_s=10)
    faulty_rabbit.start()
    assert await _waiting(faulty_rabbit.url()) == 1


async def test_a_blocked_broker_takes_nothing_until_it_is_unblocked(faulty_rabbit: RabbitNode) -> None:
    faulty_rabbit.block()
    try:
        with pytest.raises(TimeoutError):
            await _publish(faulty_rabbit.url(), timeout_s=1.0)
    finally:
        faulty_rabbit.unblock()
    await _publish(faulty_rabbit.url(), timeout_s=10)


async def test_the_broker_can_close_every_connection(faulty_rabbit: RabbitNode) -> None:
    connection = await aio_pika.connect(faulty_rabbit.url())
    closed = asyncio.Event()
    connection.close_callbacks.add(lambda *_: closed.set())
    faulty_rabbit.close_connections()
    await asyncio.wait_for(closed.wait(), 10)
