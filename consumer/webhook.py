"""Alerts as JSON to one HTTP address. The address comes from the process's settings, never from an app or an event.

Asyncio's own streams, as in the health server: one fixed request needs no client, follows no redirect by
construction, looks into no proxy variable, and one deadline holds for all of it, name look-up included.
"""

import asyncio
import json
import ssl
from typing import Final
from urllib.parse import SplitResult

from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from consumer.ports import Alert
from consumer.web_address import PORTS, check_url

_DEADLINE_S: Final = 5.0
_TRIES: Final = 3
_HEAD_BYTES_MAX: Final = 8192


class WebhookRefused(Exception):
    """The target answered, and did not take the alert."""


class WebhookAlerts:
    """POSTs each alert to *url*: kind, group, tenant, event type, handler, text and count, and nothing else.

    Any 2xx is taken as success. A redirect is a refusal. What may pass is tried three times.
    """

    def __init__(self, url: str, *, deadline_s: float = _DEADLINE_S) -> None:
        """*url* is http or https, checked by ``check_url``; *deadline_s* holds for each try."""
        self._url = check_url(url)
        self._deadline_s = deadline_s

    async def send(self, alert: Alert) -> None:
        """As the port says. Raises OSError, TimeoutError, WebhookRefused."""
        async for attempt in AsyncRetrying(
            stop=stop_after_attempt(_TRIES),
            wait=wait_random_exponential(multiplier=0.5, max=5),
            retry=retry_if_exception_type(OSError),  # TimeoutError is one
            reraise=True,
        ):
            with attempt:
                async with asyncio.timeout(self._deadline_s):
                    status = await self._post(_body(alert))
                if status in {408, 425, 429} or status >= 500:  # noqa: PLR2004
                    raise ConnectionError(f"alert target: want 2xx, got {status}")
                if not 200 <= status < 300:  # noqa: PLR2004
                    raise WebhookRefused(f"alert target: want 2xx, got {status}")

    async def _post(self, body: bytes) -> int:
        """Return the status that came back."""
        url, is_tls = self._url, self._url.scheme == "https"
        reader, writer = await asyncio.open_connection(
            url.hostname,
            url.port or PORTS[url.scheme],
            ssl=ssl.create_default_context() if is_tls else None,
            limit=_HEAD_BYTES_MAX,
        )
        try:
            writer.write(_head(url, len(body)) + body)
            await writer.drain()
            try:
                line = await reader.readuntil(b"\r\n")
            except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
                raise ConnectionError("alert target: want an HTTP status, got none") from error
        finally:
            writer.transport.abort()  # nobody waits for what it might still say
        version, _, rest = line.decode("latin-1").partition(" ")
        status = rest[:3]
        if not (version.startswith("HTTP/1.") and status.isdigit()):
            raise ConnectionError("alert target: want an HTTP status, got something else")
        return int(status)


def _head(url: SplitResult, length: int) -> bytes:
    target = (url.path or "/") + (f"?{url.query}" if url.query else "")
    lines = (
        f"POST {target} HTTP/1.1",
        f"Host: {url.netloc}",
        "Content-Type: application/json",
        f"Content-Length: {length}",
        "User-Agent: fairpost",
        "Connection: close",
    )
    return "\r\n".join(lines).encode("ascii") + b"\r\n\r\n"


def _body(alert: Alert) -> bytes:
    return json.dumps(
        {
            "kind": alert.kind.value,
            "level": "error" if alert.kind.is_error else "warning",
            "group": alert.group,
            "tenant": alert.tenant,
            "event_type": alert.event_type,
            "handler": alert.handler,
            "text": alert.text,
            "count": alert.count,
        }
    ).encode()
