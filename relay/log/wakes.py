"""Hearing of commits: the notifications that apps send after they have committed."""

from collections.abc import AsyncGenerator
from typing import Final

from outbox.schema import WAKE_CHANNEL
from outbox.shell.database import store_errors
from relay.log import store

_LISTEN: Final = f"LISTEN {WAKE_CHANNEL}"


async def wakes(url: str, *, within_s: float) -> AsyncGenerator[None, None]:
    """Connect, and yield once as soon as nothing more is missed, then for every notification.

    On a connection of its own: the others are read only while they have been asked something.

    Raises:
        StoreUnavailable: the database cannot be reached, or the connection was lost.
        ConfigError: the server refuses the address.
    """
    connection = await store.connect(url, store.ANY_PLAN, connect_s=within_s, statement_s=within_s)
    try:
        async with store.deadline(connection, within_s):
            await connection.execute(_LISTEN)
        yield
        with store_errors():
            async for _ in connection.notifies():
                yield
    finally:
        await store.close(connection)
