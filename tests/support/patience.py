"""A broker that waits for no acknowledgement longer than a second."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.support.containers import RabbitContainer
from tests.support.rabbit import RabbitNode


@asynccontextmanager
async def impatient(node: RabbitNode | RabbitContainer) -> AsyncIterator[None]:
    """A delivery is held for no more than a second or so, of channels and queues that come to be meanwhile.

    Then its channel is closed, or its consumer cancelled: see ``times_out_in_queues``.
    """
    await _set(node, consumer_timeout=1_000, channel_tick_interval=500)
    try:
        yield
    finally:
        await _set(node, consumer_timeout=1_800_000, channel_tick_interval=60_000)


def times_out_in_queues(node: RabbitNode | RabbitContainer) -> bool:
    """Whether consumers are timed by their queue, as from RabbitMQ 4.3 on, and not by their channel."""
    major, minor = (int(part) for part in node.management.version().split(".")[:2])
    return (major, minor) >= (4, 3)


async def _set(node: RabbitNode | RabbitContainer, **milliseconds: int) -> None:
    settings = ", ".join(f"application:set_env(rabbit, {name}, {value})" for name, value in milliseconds.items())
    await asyncio.to_thread(node.ctl, "eval", f"{settings}.")
