"""A TCP proxy that a test can cut, freeze and close, and that can tell a COMMIT on a PostgreSQL link."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal, Self

Moment = Literal["before_request", "after_request", "before_answer", "after_answer"]

_CHUNK = 65536
_STARTUP_HEADER = 8
_READY_AND_IDLE = b"Z\0\0\0\5I"
# The first packet of a client that asks for encryption; the proxy answers no itself, so that it can read.
_ENCRYPTION_REQUESTS = (80877103, 80877104)


@dataclass(slots=True, kw_only=True)
class _Trigger:
    moment: Moment
    nth: int


class Proxy:
    """Forwards connections to a server; everything else it does only when told."""

    def __init__(self, *, host: str, port: int, speaks: Literal["postgres", "anything"]) -> None:
        """Prepare a proxy to *host* and *port*; ``open`` starts it.

        Args:
            speaks: with ``postgres`` the proxy reads messages and ``cut_at_commit`` works.
        """
        self._target = (host, port)
        self._speaks = speaks
        self._listener: asyncio.Server | None = None
        self._links: dict[asyncio.Task[None], tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = {}
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._trigger: _Trigger | None = None
        self.port = 0
        self.fired = asyncio.Event()
        """Set when ``cut_at_commit`` has cut."""
        self.accepted = 0
        """Connections taken since the start."""
        self.transactions = 0
        """How often a PostgreSQL session was told that it is ready and in no transaction: after every statement of its
        own and every transaction, and once when it begins."""

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Listen, on the same port as before if there was one."""
        if self._listener is None:
            self._listener = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
            self.port = self._listener.sockets[0].getsockname()[1]

    async def refuse(self) -> None:
        """Cut every connection and refuse new ones until ``open``."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        self.cut()

    async def close(self) -> None:
        """Stop listening and end every connection."""
        await self.refuse()
        self._flowing.set()
        await asyncio.gather(*self._links, return_exceptions=True)

    def turn(self, *, host: str, port: int) -> None:
        """Break every connection, and lead new ones to another server, as a failover does."""
        self._target = (host, port)
        self.cut()

    def cut(self) -> None:
        """Break every connection now, both sides; new ones are taken."""
        for client, server in self._links.values():
            client.transport.abort()
            server.transport.abort()

    def lead_to(self, port: int) -> None:
        """Forward new connections to *port* of the same host; those that stand stay where they are."""
        self._target = (self._target[0], port)

    def freeze(self) -> None:
        """Forward nothing and close nothing, as a network does that drops every packet, until ``thaw``."""
        self._flowing.clear()

    def thaw(self) -> None:
        """Forward again, starting with what came while frozen."""
        self._flowing.set()

    def cut_at_commit(self, moment: Moment, *, nth: int = 1) -> None:
        """Break the link on which the *nth* COMMIT from now is seen, and no other; ``fired`` tells when.

        ``before_request``: the server never hears of it. ``after_request``: the server has it, the link is
        gone. ``before_answer``: the server has committed and nobody was told. ``after_answer``: the client knows.
        """
        assert self._speaks == "postgres", "only a proxy that speaks postgres can tell a COMMIT"
        self.fired.clear()
        self._trigger = _Trigger(moment=moment, nth=nth)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        task = asyncio.current_task()
        assert task is not None
        try:
            server_reader, server_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        self._links[task] = (writer, server_writer)
        try:
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(self._pump(reader, server_writer, back=writer, asks=True))
                pumps.create_task(self._pump(server_reader, writer, back=server_writer, asks=False))
        finally:
            del self._links[task]
            for side in (writer, server_writer):
                side.close()
                with contextlib.suppress(OSError):
                    await side.wait_closed()

    async def _pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, back: asyncio.StreamWriter, asks: bool
    ) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            async for piece, is_commit in self._pieces(source, back=back, asks=asks):
                await self._flowing.wait()
                moment = self._due(asks=asks) if is_commit else None
                if moment is not None and moment.startswith("before"):
                    break
                sink.write(piece)
                await sink.drain()
                if moment is not None:
                    break
        # Closed, not aborted: what was already forwarded must arrive, or "after" would mean "maybe".
        sink.close()
        back.close()

    def _due(self, *, asks: bool) -> Moment | None:
        """The trigger's moment if this COMMIT, seen in this direction, is the one it waits for."""
        trigger = self._trigger
        if trigger is None or trigger.moment.endswith("request") != asks:
            return None
        trigger.nth -= 1
        if trigger.nth > 0:
            return None
        self._trigger = None
        self.fired.set()
        return trigger.moment

    async def _pieces(
        self, source: asyncio.StreamReader, *, back: asyncio.StreamWriter, asks: bool
    ) -> AsyncIterator[tuple[bytes, bool]]:
        """What to forward, piece by piece, and whether the piece is a COMMIT or the answer to one."""
        if self._speaks == "postgres":
            if asks:
                yield await _startup(source, back), False
            while True:
                kind, message = await _message(source)
                is_commit = _is_commit(kind, message[5:], asks=asks)
                while is_commit and not asks and kind != b"Z":
                    # The client has its answer when the server has said that it is ready again.
                    kind, more = await _message(source)
                    message += more
                self.transactions += not asks and message.endswith(_READY_AND_IDLE)
                yield message, is_commit
        while chunk := await source.read(_CHUNK):
            yield chunk, False


async def _message(source: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """The next message's kind, and the whole message."""
    head = await source.readexactly(5)
    return head[:1], head + await source.readexactly(int.from_bytes(head[1:]) - 4)


async def _startup(source: asyncio.StreamReader, back: asyncio.StreamWriter) -> bytes:
    while True:
        header = await source.readexactly(_STARTUP_HEADER)
        if int.from_bytes(header[4:]) not in _ENCRYPTION_REQUESTS:
            return header + await source.readexactly(int.from_bytes(header[:4]) - _STARTUP_HEADER)
        back.write(b"N")


def _is_commit(kind: bytes, body: bytes, *, asks: bool) -> bool:
    if not asks:
        return kind == b"C" and body == b"COMMIT\0"
    if kind == b"Q":
        return body.upper().startswith(b"COMMIT")
    # Parse: the statement's name, then its text.
    return kind == b"P" and body.partition(b"\0")[2].upper().startswith(b"COMMIT")
