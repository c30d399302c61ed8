"""Hearing notifications, on a connection that does nothing else: others are read only while they are asked."""

from collections.abc import AsyncGenerator

from psycopg import sql

from outbox.shell import severed
from outbox.shell.database import store_errors
from outbox.shell.severed import ANY_PLAN, deadline


async def notifications(url: str, channel: str, *, name: str, within_s: float) -> AsyncGenerator[str, None]:
    """Connect, and yield an empty text as soon as nothing more is missed, then the payload of every notification.

    Raises:
        StoreUnavailable: the database cannot be reached, or the connection was lost.
        ConfigError: *url* is no address.
    """
    connection = await severed.connect(url, ANY_PLAN, application_name=name, connect_s=within_s, statement_s=within_s)
    try:
        async with deadline(connection, within_s):
            await connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
        yield ""
        with store_errors():
            async for notification in connection.notifies():
                yield notification.payload
    finally:
        await severed.close(connection)
