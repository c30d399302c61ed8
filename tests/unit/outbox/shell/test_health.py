"""What probes and scrapers hear."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import pytest

from outbox.errors import ConfigError
from outbox.shell.health import Check, HealthServer


class _Broker:
    def __init__(self) -> None:
        self.is_ok = True

    def probe(self) -> Check:
        return Check(is_ok=self.is_ok, detail="" if self.is_ok else "draining")


@pytest.fixture
def broker() -> _Broker:
    return _Broker()


@pytest.fixture
async def server(broker: _Broker) -> AsyncIterator[HealthServer]:
    async with HealthServer(port=0, probes={"broker": broker.probe, "database": lambda: Check(is_ok=True)}) as opened:
        yield opened


async def _send(server: HealthServer, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(request)
    answer = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    await writer.wait_closed()
    return answer


async def _get(server: HealthServer, path: str, *, method: str = "GET") -> tuple[int, bytes]:
    head, _, body = (await _send(server, f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())).partition(
        b"\r\n\r\n"
    )
    assert f"Content-Length: {len(body)}".encode() in head or method == "HEAD"
    return int(head.split()[1]), body


async def test_readiness_is_red_while_one_probe_is_and_liveness_stays_green(
    server: HealthServer, broker: _Broker
) -> None:
    assert (await _get(server, "/ready"))[0] == 200
    broker.is_ok = False
    status, body = await _get(server, "/ready")
    assert status == 503
    assert json.loads(body) == {
        "ready": False,
        "checks": {"broker": {"ok": False, "detail": "draining"}, "database": {"ok": True, "detail": ""}},
    }
    assert (await _get(server, "/live"))[0] == 200


async def test_metrics_are_in_the_format_that_prometheus_reads(server: HealthServer) -> None:
    status, body = await _get(server, "/metrics")
    assert status == 200
    assert b"# TYPE python_info gauge" in body


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/", 404), ("GET", "/live?x=1", 200), ("HEAD", "/live", 200), ("POST", "/live", 405), ("GET", "", 404)],
)
async def test_anything_else_has_its_own_status(server: HealthServer, method: str, path: str, status: int) -> None:
    assert (await _get(server, path, method=method))[0] == status


@pytest.mark.parametrize("request_bytes", [b"\r\n\r\n", b"\xff\xfe\r\n\r\n", b"GET /live " + b"x" * 100_000])
async def test_nonsense_ends_its_own_connection_and_nothing_else(server: HealthServer, request_bytes: bytes) -> None:
    with contextlib.suppress(ConnectionError):
        await _send(server, request_bytes)
    assert (await _get(server, "/live"))[0] == 200


async def test_a_client_that_says_nothing_does_not_keep_the_server_from_closing(broker: _Broker) -> None:
    async with HealthServer(port=0, probes={}) as opened:
        _, writer = await asyncio.open_connection("127.0.0.1", opened.port)
    writer.close()


async def test_a_port_that_is_taken_is_one_clear_sentence(server: HealthServer) -> None:
    with pytest.raises(
        ConfigError,
        match=f"127.0.0.1:{server.port} cannot be opened: Address already in use; 'outbox config explain health_port'",
    ):
        async with HealthServer(port=server.port, probes={}):
            pass


async def test_it_answers_at_the_address_that_it_was_given_and_at_no_other() -> None:
    async with HealthServer(port=0, probes={}, host="127.0.0.2") as opened:
        _, writer = await asyncio.open_connection("127.0.0.2", opened.port)
        writer.close()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", opened.port)
