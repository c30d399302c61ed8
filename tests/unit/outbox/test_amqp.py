"""The AMQP client as relay and consumer open it, against another side that leaves."""

import asyncio
from typing import Any

import pytest
from aiormq.connection import TransportFactory
from aiormq.exceptions import AMQPConnectionError
from yarl import URL

from outbox.shell.amqp import Connection


class _Slow(TransportFactory):
    """Opens a stream, and hands it over only once the other side has left."""

    async def create(self, url: URL, **kwargs: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        async def leave(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.close()

        async with await asyncio.start_server(leave, "127.0.0.1", 0) as server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            assert await reader.read() == b""
            return reader, writer


async def test_a_broker_that_leaves_before_it_has_greeted_is_a_lost_connection() -> None:
    """aiormq says StopAsyncIteration of it, which nobody who opens a connection expects."""
    connection = Connection("amqp://guest:guest@localhost/", transport_factory=_Slow())
    with pytest.raises(AMQPConnectionError, match="want another frame, got the connection closed"):
        await connection.connect()
