"""A process's answers over HTTP, for probes and scrapers: ``/live``, ``/ready`` and ``/metrics``.

Asyncio's own streams rather than a framework: three fixed answers need neither two more packages nor a server
that takes the signals away from us.
"""

import asyncio
import contextlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from types import TracebackType
from typing import Final, Self

from outbox.errors import ConfigError

_MAX_HEAD_BYTES: Final = 8192
_READ_TIMEOUT_S: Final = 5.0
_JSON: Final = "application/json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """What is known of one thing that readiness depends on."""

    is_ok: bool
    detail: str = ""


Probe = Callable[[], Check]
"""Answers from memory, at once: a probe that asked the database would hang together with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    status: HTTPStatus
    content_type: str
    body: bytes


class HealthServer:
    """Serves ``/live`` (200 while the event loop runs), ``/ready`` (503 while a probe is not ok) and ``/metrics``.

    An async context manager: it listens inside. ``/metrics`` is 404 where prometheus-client is not installed.
    """

    def __init__(self, *, port: int, probes: Mapping[str, Probe], host: str = "127.0.0.1") -> None:
        """Prepare to listen on *host*.

        Args:
            port: 0 lets the system choose; ``port`` then tells which.
            probes: what readiness depends on, by name; all must be ok.
        """
        self.port = port
        self._host = host
        self._probes = probes
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Self:
        try:
            self._server = await asyncio.start_server(self._serve, self._host, self.port, limit=_MAX_HEAD_BYTES)
        except OSError as error:
            why = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
            raise ConfigError(
                f"the health port {self._host}:{self.port} cannot be opened: {why};"
                " 'outbox config explain health_port' tells how to set another"
            ) from error
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.close()
            for writer in list(self._open):
                writer.transport.abort()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            # A client that goes away, dawdles or sends too much has only itself to blame: its connection ends.
            with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                async with asyncio.timeout(_READ_TIMEOUT_S):
                    head = await reader.readuntil(b"\r\n\r\n")
                    writer.write(_response(head, self._answer))
                    await writer.drain()
        finally:
            self._open.discard(writer)
            writer.close()

    def _answer(self, path: str) -> _Answer:
        match path:
            case "/live":
                return _Answer(status=HTTPStatus.OK, content_type=_JSON, body=b'{"live":true}\n')
            case "/ready":
                return self._readiness()
            case "/metrics":
                return _metrics()
            case _:
                return _Answer(status=HTTPStatus.NOT_FOUND, content_type=_JSON, body=b'{"error":"not found"}\n')

    def _readiness(self) -> _Answer:
        checks = {name: probe() for name, probe in self._probes.items()}
        is_ready = all(check.is_ok for check in checks.values())
        body = {
            "ready": is_ready,
            "checks": {name: {"ok": check.is_ok, "detail": check.detail} for name, check in checks.items()},
        }
        status = HTTPStatus.OK if is_ready else HTTPStatus.SERVICE_UNAVAILABLE
        return _Answer(status=status, content_type=_JSON, body=json.dumps(body).encode() + b"\n")


def _response(head: bytes, answer: Callable[[str], _Answer]) -> bytes:
    words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
    method, target = words[0], words[1] if len(words) > 1 else ""
    if method not in {"GET", "HEAD"}:
        found = _Answer(status=HTTPStatus.METHOD_NOT_ALLOWED, content_type=_JSON, body=b'{"error":"only GET"}\n')
    else:
        found = answer(target.partition("?")[0])
    lines = (
        f"HTTP/1.1 {found.status.value} {found.status.phrase}",
        f"Content-Type: {found.content_type}",
        f"Content-Length: {len(found.body)}",
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
        "Connection: close",
    )
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + (b"" if method == "HEAD" else found.body)


def _metrics() -> _Answer:
    try:
        import prometheus_client  # noqa: PLC0415 (an extra's package: without it everything else works)
    except ImportError:
        return _Answer(status=HTTPStatus.NOT_FOUND, content_type=_JSON, body=b'{"error":"no prometheus-client"}\n')
    body = prometheus_client.generate_latest()
    return _Answer(status=HTTPStatus.OK, content_type=prometheus_client.CONTENT_TYPE_LATEST, body=body)
