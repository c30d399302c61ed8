"""A broker that takes no message larger than it is told."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.support.containers import RabbitContainer
from tests.support.rabbit import RabbitNode

_DEFAULT_BYTES = 134_217_728


@asynccontextmanager
async def messages_up_to(node: RabbitNode | RabbitContainer, size_bytes: int) -> AsyncIterator[None]:
    """*node* takes messages up to *size_bytes*, on channels that are opened meanwhile."""
    await _set(node, size_bytes)
    try:
        yield
    finally:
        await _set(node, _DEFAULT_BYTES)


async def _set(node: RabbitNode | RabbitContainer, size_bytes: int) -> None:
    # RabbitMQ 3 reads the setting when a channel opens, 4 has a copy of it from its start.
    set_it = f"application:set_env(rabbit, max_message_size, {size_bytes})"
    await asyncio.to_thread(node.ctl, "eval", f"{set_it}, persistent_term:put(max_message_size, {size_bytes}).")
