"""A broker that waits for no acknowledgement longer than a second."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.support.containers import RabbitContainer
from tests.support.rabbit import RabbitNode


@asynccontextmanager
async def impatient(node: RabbitNode | RabbitContainer) -> AsyncIterator[None]:
    """Of channels that are opened meanwhile each is closed that holds a delivery for more than a second or so."""
    await _set(node, consumer_timeout=1_000, channel_tick_interval=500)
    try:
        yield
    finally:
        await _set(node, consumer_timeout=1_800_000, channel_tick_interval=60_000)


async def _set(node: RabbitNode | RabbitContainer, **milliseconds: int) -> None:
    settings = ", ".join(f"application:set_env(rabbit, {name}, {value})" for name, value in milliseconds.items())
    await asyncio.to_thread(node.ctl, "eval", f"{settings}.")
