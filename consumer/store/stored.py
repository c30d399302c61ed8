"""A message as columns of ``consumer.work`` and ``consumer.dead``, and back.

The body is stored byte for byte. Headers become jsonb: text stays text, whatever jsonb cannot hold is
tagged, so that a readable message comes back equal and an unreadable one is still stored.
"""

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from math import isfinite
from typing import Final, LiteralString, TypeAlias

from psycopg import AsyncConnection
from psycopg.rows import TupleRow
from psycopg.types.json import Jsonb

from outbox.event import Event, Tier
from outbox.wire import Message

#: What every function of the consumer's SQL side is given: the default row type, any autocommit.
Connection: TypeAlias = AsyncConnection[TupleRow]

#: The columns a stored message takes, in the order of ``parameters`` and of ``restore``.
COLUMNS: Final[LiteralString] = (
    "tier, tenant, type, ordering_key, key_number, ledger_at, message_id, app_id, content_type, headers, body"
)

_TAG: Final = "$"
_LEVELS_MAX: Final = 8
_BIGINT: Final = 2**63
_UNSTORABLE: Final = re.compile("[\0\ud800-\udfff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A message with what tables index it by.

    *tier* and *tenant* are the lane's, so even an unreadable message has them; the rest is ``None`` where it
    could not be read.
    """

    tier: Tier
    tenant: str
    message: Message
    ordering_key: str | None = None
    key_number: int | None = None
    ledger_at: datetime | None = None


def of_event(event: Event, message: Message) -> Stored:
    """*message*, indexed by the *event* that was read from it."""
    return Stored(
        tier=event.tier,
        tenant=event.tenant,
        message=message,
        ordering_key=None if event.ordering is None else event.ordering.key,
        key_number=None if event.ordering is None else event.ordering.number,
        ledger_at=event.ledger_time,
    )


def unreadable(message: Message, *, tier: Tier, tenant: str) -> Stored:
    """*message*, of which only the lane it came by is known."""
    return Stored(tier=tier, tenant=tenant, message=message)


def parameters(stored: Stored) -> tuple[object, ...]:
    """The values of ``COLUMNS``, in order, ready for psycopg."""
    message = stored.message
    return (
        int(stored.tier),
        stored.tenant,
        storable(message.type),
        stored.ordering_key,
        stored.key_number,
        stored.ledger_at,
        storable(message.message_id),
        storable(message.app_id),
        storable(message.content_type),
        Jsonb(safe_headers(message.headers)),
        message.body,
    )


def restore(columns: TupleRow) -> Stored:
    """The message that ``parameters`` was made from, out of the values of ``COLUMNS``: equal if it was readable."""
    tier, tenant, event_type, key, number, ledger_at, message_id, app_id, content_type, headers, body = columns
    return Stored(
        tier=Tier(tier),
        tenant=tenant,
        ordering_key=key,
        key_number=number,
        ledger_at=ledger_at,
        message=Message(
            message_id=message_id,
            type=event_type,
            app_id=app_id,
            content_type=content_type,
            headers=original_headers(headers),
            body=body,
        ),
    )


def storable(text: str) -> str:
    """*text* with what PostgreSQL's text cannot hold (NUL, lone surrogates) replaced by U+FFFD."""
    return _UNSTORABLE.sub("\ufffd", text)


def safe_headers(headers: Mapping[str, object]) -> dict[str, object]:
    """*headers* as jsonb can hold them. Never raises, whatever a stranger sent."""
    return {storable(str(name)): _safe(value, _LEVELS_MAX) for name, value in headers.items()}


def original_headers(stored: Mapping[str, object]) -> dict[str, object]:
    """The headers that ``safe_headers`` was given. What had no JSON form comes back as a text that names its type."""
    return {name: _original(value) for name, value in stored.items()}


def _safe(value: object, levels: int) -> object:
    match value:
        case None | bool():
            return value
        case str():
            return value if storable(value) == value else _tagged("text", value.encode(errors="surrogatepass"))
        case int() if -_BIGINT <= value < _BIGINT:
            return value
        case float() if isfinite(value):
            return value
        case bytes() | bytearray() | memoryview():
            return _tagged("bytes", bytes(value))
        case _:
            return _safe_compound(value, levels)


def _safe_compound(value: object, levels: int) -> object:
    if levels == 0:
        return {_TAG: "opaque", "value": "nested too deeply"}
    match value:
        case Mapping():
            inside = {storable(str(name)): _safe(item, levels - 1) for name, item in value.items()}
            return {_TAG: "table", "value": inside}
        case list() | tuple():
            return {_TAG: "array", "value": [_safe(item, levels - 1) for item in value]}
        case datetime():
            return {_TAG: "time", "value": value.isoformat()}
        case Decimal() | int() | float():
            return {_TAG: "opaque", "value": str(value)[:100]}
        case _:
            return {_TAG: "opaque", "value": type(value).__name__}


def _tagged(kind: str, data: bytes) -> dict[str, object]:
    return {_TAG: kind, "value": base64.b64encode(data).decode()}


def _original(value: object) -> object:
    if not isinstance(value, dict):
        return value
    kind, content = value.get(_TAG), value.get("value")
    match kind, content:
        case "text" | "bytes", str():
            return _from_base64(kind, content)
        case "table", dict():
            return {name: _original(item) for name, item in content.items()}
        case "array", list():
            return [_original(item) for item in content]
        case "time", str():
            return datetime.fromisoformat(content)
        case _:
            return content


def _from_base64(kind: str, content: str) -> str | bytes:
    try:
        data = base64.b64decode(content, validate=True)
    except binascii.Error:
        return content
    return data if kind == "bytes" else data.decode(errors="surrogatepass")
