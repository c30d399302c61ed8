"""An event as one AMQP message, and back: CloudEvents 1.0 in binary mode, as RabbitMQ bindings read it.

The body is the payload, unchanged. Every CloudEvents attribute is a header ``ce-<name>`` with a text
value; ``content_type`` carries the payload's. Extensions of ours are attributes too, so names are
lower-case letters and digits. Nothing an app gives becomes a header's name: no ``x-``, ``CC`` or
``BCC`` header ever passes. What a replay publishes again is the same event under the same id, and says so:
``ce-replayid`` has the replay's number.

Source: the RabbitMQ binding named in the CloudEvents repository's proprietary-specs.md.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final, cast
from uuid import UUID

from outbox.errors import InvalidEvent, Unreadable
from outbox.event import Event, Ordering, Tier
from outbox.naming import check_tenant, check_text, check_type
from outbox.records import record

SPEC_VERSION: Final = "1.0"
DATA_VERSION: Final = "ce-dataversion"
_TIERS: Final = {tier.label: tier for tier in Tier}
_TRUE: Final = "true"
_NUMBER_MAX: Final = 2**63 - 1
_NUMBER_DIGITS_MAX: Final = len(str(_NUMBER_MAX))
_SHORT_BYTES_MAX: Final = 255  # of an AMQP property


@record
class Message:
    """One message's properties, headers and body. It is always persistent (delivery mode 2).

    *headers* holds text only; from a broker it may hold anything, and ``decode`` says what is wrong.
    """

    message_id: str
    type: str
    app_id: str
    content_type: str
    headers: Mapping[str, object]
    body: bytes


def encode(event: Event) -> Message:
    """Return the message that carries *event*. ``decode`` of it gives an equal event."""
    headers = {
        "ce-specversion": SPEC_VERSION,
        "ce-id": str(event.id),
        "ce-source": event.source,
        "ce-type": event.type,
        "ce-time": _text_of_time(event.time),
        "ce-ledgertime": _text_of_time(event.ledger_time),
        "ce-tenantid": event.tenant,
        "ce-tier": event.tier.label,
        DATA_VERSION: str(event.data_version),
    }
    optional = {
        "ce-idempotencykey": event.idempotency_key,
        "ce-actorid": event.actor,
        "ce-causationid": event.causation_id,
        "ce-correlationid": event.correlation_id,
        "ce-replayid": event.replay,
        "ce-traceparent": event.traceparent,
        "ce-tracestate": event.tracestate,
        "traceparent": event.traceparent,  # this hop; the attribute above stays the origin's
        "tracestate": event.tracestate,
    }
    headers.update({name: value for name, value in optional.items() if value is not None})
    if event.ordering is not None:
        headers["ce-partitionkey"] = event.ordering.key
        headers["ce-sequence"] = str(event.ordering.number)
        if event.ordering.is_first:
            headers["ce-sequencefirst"] = _TRUE
        if event.ordering.is_void:
            headers["ce-sequencevoid"] = _TRUE
        if event.ordering.previous_time is not None:
            headers["ce-previoustime"] = _text_of_time(event.ordering.previous_time)
    return Message(
        message_id=str(event.id),
        type=event.type,
        app_id=app_id_of(event.source),
        content_type=event.content_type,
        headers=headers,
        body=event.payload,
    )


def app_id_of(source: str) -> str:
    """The property that names the sender: as much of *source* as AMQP's 255 bytes hold."""
    return source.encode()[:_SHORT_BYTES_MAX].decode(errors="ignore")


def decode(message: Message) -> Event:
    """Return the event that *message* carries.

    Raises:
        Unreadable: an attribute is missing or wrong; the sentence names it and never repeats the payload.
    """
    attributes = _Attributes(message.headers)
    if attributes.text("ce-specversion") != SPEC_VERSION:
        raise Unreadable(f"ce-specversion: want {SPEC_VERSION}, got another")
    try:
        tenant = check_tenant(attributes.text("ce-tenantid"))
        event_type = check_type(attributes.text("ce-type"))
    except InvalidEvent as error:
        raise Unreadable(str(error)) from None
    tier = _TIERS.get(attributes.text("ce-tier"))
    if tier is None:
        raise Unreadable(f"ce-tier: want one of {', '.join(_TIERS)}, got another")
    return Event(
        id=attributes.uuid("ce-id"),
        tenant=tenant,
        tier=tier,
        type=event_type,
        data_version=attributes.number(DATA_VERSION),
        source=attributes.text("ce-source"),
        content_type=message.content_type,
        payload=message.body,
        time=attributes.time("ce-time"),
        ledger_time=attributes.time("ce-ledgertime"),
        ordering=_ordering(attributes),
        idempotency_key=attributes.text_or_none("ce-idempotencykey"),
        actor=attributes.text_or_none("ce-actorid"),
        causation_id=attributes.text_or_none("ce-causationid"),
        correlation_id=attributes.text_or_none("ce-correlationid"),
        traceparent=attributes.text_or_none("ce-traceparent"),
        tracestate=attributes.text_or_none("ce-tracestate"),
        replay=attributes.text_or_none("ce-replayid"),
    )


def _ordering(attributes: "_Attributes") -> Ordering | None:
    key = attributes.text_or_none("ce-partitionkey")
    if key is None:
        return None
    has_previous = attributes.text_or_none("ce-previoustime") is not None
    return Ordering(
        key=key,
        number=attributes.number("ce-sequence"),
        is_first=attributes.text_or_none("ce-sequencefirst") == _TRUE,
        previous_time=attributes.time("ce-previoustime") if has_previous else None,
        is_void=attributes.text_or_none("ce-sequencevoid") == _TRUE,
    )


def _text_of_time(time: datetime) -> str:
    return time.astimezone(UTC).isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"


class _Attributes:
    """A message's CloudEvents attributes, read one by one; each method raises Unreadable naming the header."""

    def __init__(self, headers: Mapping[str, object]) -> None:
        self._headers = headers
        texts = _texts(headers)
        self.text_or_none: Callable[[str], str | None] = self._checked if texts is None else texts.get

    def _checked(self, name: str) -> str | None:
        value = self._headers.get(name)
        if isinstance(value, bytes):  # some clients send header text as a byte array
            value = value.decode(errors="replace")
        if value is None:
            return None
        if not isinstance(value, str):
            raise Unreadable(f"{name}: want text, got {type(value).__name__}")
        try:
            return check_text(name, value)
        except InvalidEvent as error:
            raise Unreadable(str(error)) from None

    def text(self, name: str) -> str:
        value = self.text_or_none(name)
        if value is None:
            raise Unreadable(f"{name}: want this header, got none")
        return value

    def number(self, name: str) -> int:
        value = self.text(name)
        is_digits = value.isascii() and value.isdigit() and len(value) <= _NUMBER_DIGITS_MAX
        if not is_digits or int(value) > _NUMBER_MAX:
            raise Unreadable(f"{name}: want a whole number below 2^63, got another text")
        return int(value)

    def uuid(self, name: str) -> UUID:
        try:
            return UUID(self.text(name))
        except ValueError:
            raise Unreadable(f"{name}: want a UUID, got another text") from None

    def time(self, name: str) -> datetime:
        try:
            time = datetime.fromisoformat(self.text(name))
            if time.tzinfo is None:
                raise Unreadable(f"{name}: want a time with an offset, got one without")
            return time.astimezone(UTC)
        except (ValueError, OverflowError):  # the year 0 or 10000, once in UTC
            raise Unreadable(f"{name}: want an RFC 3339 time, got another text") from None


def _texts(headers: Mapping[str, object]) -> Mapping[str, str] | None:
    """*headers*, looked at all at once, if every one is text that can be stored; else each is looked at by itself."""
    texts = cast("Mapping[str, str]", headers)
    try:
        everything = "".join(texts.values())
        everything.encode()
    except (TypeError, UnicodeEncodeError):
        return None
    return None if "\0" in everything else texts
