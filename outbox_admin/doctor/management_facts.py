"""Asking RabbitMQ's HTTP API, where there is one and this user may ask it."""

import asyncio
import base64
import http.client
import json
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, Final
from urllib.parse import quote

from yarl import URL

from outbox.errors import BrokerUnavailable, ConfigError
from outbox.shell.secrets import shown_url
from outbox_admin.doctor.facts import Management, Node, Policy

_WITHIN_S: Final = 5.0
_PORT: Final = 15672
_REFUSED: Final = (401, 403)


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """Where the API is, and whose user asks it."""

    url: URL
    """Below its path, where it has one, all of the API lies."""
    user: str
    password: str
    vhost: str

    @classmethod
    def beside(cls, amqp: str, url: str | None) -> "Api":
        """The API of the broker at *amqp*: at *url*, else on the usual port of its host. A login in *url* counts."""
        broker = URL(amqp)
        at = URL(url) if url else URL.build(scheme="http", host=broker.host or "", port=_PORT)
        if at.scheme not in ("http", "https"):
            raise ConfigError(f"--management: want http://host:port, got {shown_url(url or '')[:80]!r}")
        login = at if at.user else broker
        return cls(
            url=at.with_user(None),  # it is shown
            user=login.user or "guest",
            password=login.password or "guest",
            vhost=broker.path.removeprefix("/") or "/",
        )


async def management(api: Api) -> Management:
    """The nodes, their alarms, the broker's clock. Raises BrokerUnavailable: it does not answer, or not this user."""
    before = time.time()
    nodes, date = await asyncio.to_thread(_get, api, "/api/nodes")
    middle = (before + time.time()) / 2
    # This one knows of alarms also where statistics are off; "failed" is its answer, not an error.
    health, _ = await asyncio.to_thread(_get, api, "/api/health/checks/alarms")
    alarms = {(str(alarm["node"]), str(alarm["resource"])) for alarm in health.get("alarms") or ()}
    # A date of whole seconds is on average half a second old.
    clock_s = parsedate_to_datetime(date).timestamp() + 0.5 - middle if date else 0.0
    return Management(url=str(api.url), nodes=tuple(_node(node, alarms) for node in nodes), clock_s=clock_s)


async def policies(api: Api) -> list[Policy]:
    """The policies and the operators' policies of the vhost."""
    found = []
    for kind in ("policies", "operator-policies"):
        listed, _ = await asyncio.to_thread(_get, api, f"/api/{kind}/{quote(api.vhost, safe='')}")
        found += [
            Policy(
                pattern=str(one["pattern"]),
                priority=int(one.get("priority") or 0),
                definition=one["definition"],
                is_operators=kind != "policies",
            )
            for one in listed
            if one.get("apply-to", "all") != "exchanges"
        ]
    return found


def _get(api: Api, path: str) -> tuple[Any, str]:
    kind = http.client.HTTPSConnection if api.url.scheme == "https" else http.client.HTTPConnection
    connection = kind(api.url.host or "", api.url.port, timeout=_WITHIN_S)
    login = base64.b64encode(f"{api.user}:{api.password}".encode()).decode()
    try:
        connection.request("GET", api.url.raw_path.rstrip("/") + path, headers={"Authorization": f"Basic {login}"})
        answer = connection.getresponse()
        content = answer.read()
    except (OSError, http.client.HTTPException) as error:
        raise BrokerUnavailable(f"its HTTP API at {api.url} does not answer: {error}") from error
    finally:
        connection.close()
    if answer.status in _REFUSED:
        raise BrokerUnavailable(
            f"its HTTP API at {api.url} does not let user {api.user} ask: it wants the tag monitoring"
        )
    if answer.status not in (http.client.OK, http.client.SERVICE_UNAVAILABLE):
        raise BrokerUnavailable(f"its HTTP API at {api.url} answers {answer.status} to {path.partition('?')[0]}")
    return json.loads(content), answer.headers.get("Date", "")


def _node(node: Mapping[str, Any], alarms: Collection[tuple[str, str]]) -> Node:
    name = str(node["name"])
    return Node(
        name=name,
        handles=node.get("fd_used"),
        handles_max=node.get("fd_total"),
        has_memory_alarm=bool(node.get("mem_alarm")) or (name, "memory") in alarms,
        has_disk_alarm=bool(node.get("disk_free_alarm")) or (name, "disk") in alarms,
    )
