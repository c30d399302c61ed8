"""A proxy to RabbitMQ that keeps back some of the broker's answers, or all of them, while the connection stays."""

import asyncio
import contextlib
import struct
from collections.abc import Callable
from typing import Final, Self
from urllib.parse import urlsplit, urlunsplit

from pamqp import commands

_frame_head: Final = struct.Struct(">BHI")
_method: Final = struct.Struct(">I")
_METHOD: Final = 1
_CHUNK: Final = 65536


def everything(kind: int, payload: bytes) -> bool:
    """All frames, heartbeats included."""
    return True


def acks(kind: int, payload: bytes) -> bool:
    """Confirms, and nothing else: the connection answers all the same."""
    return kind == _METHOD and _method.unpack_from(payload)[0] == commands.Basic.Ack.index


class WithholdingProxy:
    """Forwards to the broker at the URL it is given; *url* leads through it.

    While *is_withholding*, the broker's frames for which *withheld*, given type and payload, is true are thrown away.
    """

    def __init__(self, url: str, *, withheld: Callable[[int, bytes], bool]) -> None:
        self._withheld = withheld
        self._parts = urlsplit(url)
        self._server: asyncio.Server | None = None
        self._links: set[asyncio.Task[None]] = set()
        self.is_withholding = False
        self.url = ""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        login = self._parts.netloc.rpartition("@")[0]
        self.url = urlunsplit(self._parts._replace(netloc=f"{login}@127.0.0.1:{port}"))
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for link in self._links:
            link.cancel()
        await asyncio.gather(*self._links, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._links.add(task)
        back, forth = await asyncio.open_connection(self._parts.hostname, self._parts.port)
        try:
            await asyncio.gather(self._ask(reader, forth), self._answer(back, writer))
        finally:
            for side in (writer, forth):
                side.transport.abort()
            self._links.discard(task)

    async def _ask(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while chunk := await source.read(_CHUNK):
                sink.write(chunk)
                await sink.drain()
        sink.close()

    async def _answer(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = await source.readexactly(_frame_head.size)
                kind, _, size = _frame_head.unpack(head)
                rest = await source.readexactly(size + 1)
                if not (self.is_withholding and self._withheld(kind, rest)):
                    sink.write(head + rest)
                    await sink.drain()
        sink.close()
