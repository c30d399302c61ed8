"""``wire.md``: what one event looks like to whoever reads the queues, and what stands on the broker."""

import inspect
import json
import re
from collections.abc import Set
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

from consumer.engine import service
from outbox.event import JSON, Event, Ordering, Tier
from outbox.naming import Lane, tenant_name
from outbox.topology import (
    DEAD_EXCHANGE,
    DIRECTORY_EXCHANGE,
    EVENTS_EXCHANGE,
    EXCHANGES,
    REFUSED_EXCHANGE,
    ROLL_CALL_EXCHANGE,
    BoundQueue,
    group_queues,
    lane_arguments,
)
from outbox.wire import encode
from reference.markdown import code, page, table

_ALWAYS: Final = "always"
_TIME: Final = datetime(2026, 11, 30, 12, tzinfo=UTC)
_TRACE: Final = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
_EVENT: Final = Event(
    id=UUID("0199f0a4-0000-7000-8000-000000000001"),
    tenant="acme",
    tier=Tier.STANDARD,
    type="orders.order.placed",
    data_version=1,
    source="/svc/orders",
    content_type=JSON,
    payload=b'{"order_id":1,"total":42}',
    time=_TIME,
    ledger_time=_TIME,
)
_FULL: Final = replace(
    _EVENT,
    ordering=Ordering(key="order-1", number=8, is_first=True, previous_time=_TIME, is_void=True),
    idempotency_key="order-1-placed",
    actor="user-7",
    causation_id="0199f0a3-0000-7000-8000-000000000009",
    correlation_id="checkout-12",
    traceparent=_TRACE,
    tracestate="vendor=1",
    replay="3",
)
_HEADERS: Final = {
    "ce-specversion": ("CloudEvents' version.", _ALWAYS),
    "ce-id": ("The event's id, a UUID of version 7; the same as `message_id`. A duplicate has the same.", _ALWAYS),
    "ce-source": ("Who emitted it, as `Outbox(source=...)` says.", _ALWAYS),
    "ce-type": ("The event's type.", _ALWAYS),
    "ce-time": ("When it was emitted, by the database's clock, in UTC.", _ALWAYS),
    "ce-ledgertime": (
        "The later of that and its due time. It decides where the consumer's ledger keeps what was done.",
        _ALWAYS,
    ),
    "ce-tenantid": ("Whose it is, as the app wrote it.", _ALWAYS),
    "ce-tier": ("`interactive`, `standard` or `bulk`.", _ALWAYS),
    "ce-dataversion": ("The version of the payload's schema.", _ALWAYS),
    "ce-idempotencykey": ("The key under which the app emitted it at most once.", "with such a key"),
    "ce-actorid": ("Who caused it.", "where the app said so"),
    "ce-causationid": ("The id of what caused it, such as the event whose handler emitted it.", "where it is known"),
    "ce-correlationid": ("What it belongs to with others.", "where it is known"),
    "ce-replayid": ("The number of the replay that published it again.", "in what a replay publishes"),
    "ce-traceparent": ("The trace in which it was emitted, by W3C Trace Context.", "where there was one"),
    "ce-tracestate": ("What belongs to it.", "where there was one"),
    "traceparent": ("The same, for libraries that look here; a hop may replace it.", "where there was one"),
    "tracestate": ("Likewise.", "where there was one"),
    "ce-partitionkey": ("The ordering key. Numbers count per tenant, tier and key.", "with an ordering key"),
    "ce-sequence": (
        "Its number under that key, one more than its predecessor's.",
        "with an ordering key",
    ),
    "ce-sequencefirst": ("`true`: no event of the key is before it.", "in a key's first event"),
    "ce-sequencevoid": (
        "`true`: the event was discarded before it could be published, and this only moves the number.",
        "in place of a discarded event",
    ),
    "ce-previoustime": ("The ledger time of the key's event before.", "with an ordering key, unless it is the first"),
}
_DEAD_HEADERS: Final = {
    "fairpost-dead-category": "Why it is dead: [categories](errors.md#dead-letters).",
    "fairpost-dead-reason": "The error, cleaned of what stood in the payload, and cut.",
    "fairpost-dead-fingerprint": "What those that failed alike have in common; `outbox dead groups` counts by it.",
    "fairpost-dead-attempts": "How often it was tried.",
    "fairpost-dead-at": "Since when it is dead.",
}
_PROPERTIES: Final = (
    ("message_id", "The event's id."),
    ("type", "The event's type."),
    ("app_id", "As much of `ce-source` as 255 bytes hold."),
    ("content_type", "The payload's, `application/json` unless the app says otherwise."),
    ("delivery_mode", "2: persistent."),
)
_EXCHANGES: Final = {
    EVENTS_EXCHANGE: "Events, by group, tier and tenant. Every publish is mandatory: what no queue takes comes back.",
    DIRECTORY_EXCHANGE: "What tells a group of its lanes, by the group's name.",
    ROLL_CALL_EXCHANGE: "By which a group asks the relays to name its lanes again.",
    REFUSED_EXCHANGE: "What the broker itself gives up: lanes name it as their dead-letter exchange.",
    DEAD_EXCHANGE: "Copies of the consumer's dead letters, for whoever binds a queue; nothing of ours reads them.",
}


def render() -> str:
    """The page."""
    lane = Lane(group="billing", tier=Tier.STANDARD, tenant="acme")
    lane_queue = BoundQueue(
        name=lane.queue, exchange=EVENTS_EXCHANGE, routing_key=lane.routing_key, arguments=lane_arguments("quorum")
    )
    queues = [lane_queue, *group_queues("billing", "quorum")]
    return page(
        "On the wire",
        "An event is one AMQP message: CloudEvents 1.0 in binary mode, as the RabbitMQ binding of the `cloudevents`"
        " package reads it. The body is the payload, unchanged. Every header's value is text, and none of ours starts"
        " with `x-`. Queues in PostgreSQL hold the same.",
        "## Headers",
        table(("header", "what it means", "when it is there", "example"), _headers()),
        "## Properties",
        table(("property", "what it is"), [(code(name), what) for name, what in _PROPERTIES]),
        "A copy of a dead letter has these beside them:",
        table(("header", "what it means"), _dead_headers()),
        "## Exchanges\n\nAll are durable.",
        table(
            ("exchange", "kind", "what goes through it"),
            [(code(n), kind, _EXCHANGES[n]) for n, kind in EXCHANGES.items()],
        ),
        "## Queues\n\nAs they are declared for the group `billing` and the tenant `acme`, with"
        " `OUTBOX_QUEUE_KIND=quorum`. `classic` ones have `x-queue-type` and the dead-letter exchange alone.",
        table(("queue", "bound to", "arguments"), [_queue(queue) for queue in queues]),
        "In names a tenant's letters, digits and `_.-` stand for themselves and every other byte is `+` and two"
        f" hexadecimal digits: `a b` is {code(tenant_name('a b'))}. What would be longer than 100 bytes is `@` and a"
        " digest of it. `ce-tenantid` always has the tenant itself.",
    )


def _headers() -> list[tuple[str, ...]]:
    headers = encode(_FULL).headers
    _agree(_HEADERS.keys(), headers.keys())
    return [(code(name), *_HEADERS[name], code(str(headers[name]))) for name in headers]


def _dead_headers() -> list[tuple[str, ...]]:
    _agree(_DEAD_HEADERS.keys(), set(re.findall(r'"(fairpost-dead-[a-z]+)"', inspect.getsource(service))))
    return [(code(name), what) for name, what in _DEAD_HEADERS.items()]


def _agree(told: Set[str], found: Set[str]) -> None:
    if wrong := told ^ found:
        raise LookupError(f"reference/wire.py: want a line for each header and no other, got {sorted(wrong)} without")


def _queue(queue: BoundQueue) -> tuple[str, ...]:
    arguments = ", ".join(f"{name}={json.dumps(value)}" for name, value in queue.arguments.items())
    return code(queue.name), f"{code(queue.exchange)}, by {code(queue.routing_key)}", code(arguments)
