"""Events as AMQP frames, marshalled by hand: what one publish puts on the wire, and nothing else.

The bytes are those that pamqp makes of ``outbox.wire.encode``'s message, which a property test holds;
pamqp takes five times as long. What many events share (routing key, type, source, tenant, ...) is
marshalled once and kept. No I/O, no clock.

Source of the layout: AMQP 0-9-1, sections 2.3.5 and 4.2; field tables sorted by name, as pamqp writes them.
"""

import struct
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from outbox.event import Event
from outbox.naming import Lane
from outbox.topology import EVENTS_EXCHANGE
from outbox.wire import SPEC_VERSION, app_id_of

FRAME_OVERHEAD_BYTES: Final = 8  # type, channel, size and end mark
DEFAULT_FRAME_BYTES_MAX: Final = 131_072  # RabbitMQ's own, and what a broker without a limit gets
DEFAULT_BODY_BYTES_MAX: Final = 16 * 1024 * 1024  # what RabbitMQ 4 takes unless told otherwise; 3.x takes 128 MiB

_METHOD, _HEADER, _BODY = 1, 2, 3
_END: Final = b"\xce"
_BASIC, _PUBLISH = 60, 40
_MANDATORY: Final = b"\x01"
_PERSISTENT: Final = b"\x02"
_SHORT_BYTES_MAX: Final = 255
_UUID_CHARS, _TIME_CHARS = 36, 27
_ENVELOPES_MAX: Final = 10_000

_CONTENT_TYPE, _HEADERS, _DELIVERY_MODE = 0x8000, 0x2000, 0x1000
_MESSAGE_ID, _TYPE, _APP_ID = 0x0080, 0x0020, 0x0008

_frame_head: Final = struct.Struct(">BHI").pack
_header_head: Final = struct.Struct(">BHIHHQ").pack
_HEADER_FIXED_BYTES: Final = 12  # class, weight and body size, inside the header frame
_long: Final = struct.Struct(">I").pack
_short: Final = struct.Struct(">H").pack


@dataclass(frozen=True, slots=True, kw_only=True)
class TooLarge:
    """The event does not fit what the broker takes; *reason* names the part and both sizes."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Envelope:
    """What events of one lane, type and source share, ready to be joined with the rest."""

    method: bytes
    before_table: bytes  # property flags and content type
    before_id: bytes  # header ce-dataversion, and the name of ce-id
    before_time: bytes  # headers ce-source to ce-tier, and the name of ce-time
    after_time: bytes  # header ce-type
    after_id: bytes  # properties type and app_id, and the frame's end
    table_bytes: int  # of the header table without optional headers
    properties_bytes: int  # of all properties without the table's content


_Key = tuple[str, int, str, str, str, str, int, int, str]


class Marshaller:
    """Marshals for one channel of one connection."""

    def __init__(self, *, channel: int, frame_bytes_max: int, body_bytes_max: int) -> None:
        """Args:
        channel: the channel's number.
        frame_bytes_max: what the connection agreed on; 0 is no limit.
        body_bytes_max: the largest body the broker takes.
        """
        self._channel = channel
        self._content_bytes_max = (frame_bytes_max or DEFAULT_FRAME_BYTES_MAX) - FRAME_OVERHEAD_BYTES
        self._body_bytes_max = body_bytes_max
        self._envelopes: dict[_Key, _Envelope | TooLarge] = {}

    def limit(self, body_bytes_max: int) -> None:
        """The broker turned out to take no larger bodies than this."""
        self._body_bytes_max = min(body_bytes_max, self._body_bytes_max)

    def publish(self, lane: Lane, event: Event) -> bytes | TooLarge:
        """The frames that publish *event* to *lane*, persistent and mandatory."""
        envelope = self._envelope(lane, event)
        if isinstance(envelope, TooLarge):
            return envelope
        event_id = str(event.id).encode()
        time = _text_of_time(event.time)
        ledger_time = time if event.ledger_time == event.time else _text_of_time(event.ledger_time)
        origin, key, ordering, trace, hop = _optional(event)
        optional_bytes = len(origin) + len(key) + len(ordering) + len(trace) + len(hop)
        header_bytes = envelope.properties_bytes + envelope.table_bytes + optional_bytes
        body = event.payload
        if header_bytes > self._content_bytes_max:
            return TooLarge(reason=f"headers: want at most {self._content_bytes_max} bytes, got {header_bytes}")
        if len(body) > self._body_bytes_max:
            return TooLarge(reason=f"payload: want at most {self._body_bytes_max} bytes, got {len(body)}")
        return b"".join((
            envelope.method,
            _header_head(_HEADER, self._channel, header_bytes, _BASIC, 0, len(body)),
            envelope.before_table,
            _long(envelope.table_bytes + optional_bytes),
            origin,
            envelope.before_id,
            event_id,
            key,
            _LEDGER_TIME,
            ledger_time,
            ordering,
            envelope.before_time,
            time,
            trace,
            envelope.after_time,
            hop,
            _BEFORE_MESSAGE_ID,
            event_id,
            envelope.after_id,
            self._body(body),
        ))  # fmt: skip

    def _body(self, body: bytes) -> bytes:
        """Body frames: none for an empty body, one as long as it fits, else full ones and a rest."""
        size = self._content_bytes_max
        if 0 < len(body) <= size:
            return _frame_head(_BODY, self._channel, len(body)) + body + _END
        pieces = (body[start : start + size] for start in range(0, len(body), size))
        return b"".join(_frame_head(_BODY, self._channel, len(piece)) + piece + _END for piece in pieces)

    def _envelope(self, lane: Lane, event: Event) -> _Envelope | TooLarge:
        key = (
            lane.group,
            lane.tier,
            lane.tenant,
            event.type,
            event.source,
            event.tenant,
            event.tier,
            event.data_version,
            event.content_type,
        )
        envelope = self._envelopes.get(key)
        if envelope is None:
            if len(self._envelopes) >= _ENVELOPES_MAX:
                self._envelopes.clear()
            envelope = self._envelopes[key] = _make_envelope(self._channel, lane, event)
        return envelope


def _make_envelope(channel: int, lane: Lane, event: Event) -> _Envelope | TooLarge:
    content_type = event.content_type.encode()
    if len(content_type) > _SHORT_BYTES_MAX:
        return TooLarge(reason=f"content type: want at most {_SHORT_BYTES_MAX} bytes, got {len(content_type)}")
    app_id = app_id_of(event.source).encode()
    arguments = (
        _short(_BASIC)
        + _short(_PUBLISH)
        + _short(0)
        + _short_text(EVENTS_EXCHANGE.encode())
        + _short_text(lane.routing_key.encode())
        + _MANDATORY
    )
    flags = _HEADERS | _DELIVERY_MODE | _MESSAGE_ID | _TYPE
    flags |= (_CONTENT_TYPE if content_type else 0) | (_APP_ID if app_id else 0)
    before_table = _short(flags) + (_short_text(content_type) if content_type else b"")
    before_id = _header("ce-dataversion", str(event.data_version)) + _NAMES["ce-id"] + _long(_UUID_CHARS)
    before_time = (
        _header("ce-source", event.source)
        + _header("ce-specversion", SPEC_VERSION)
        + _header("ce-tenantid", event.tenant)
        + _header("ce-tier", event.tier.label)
        + _NAMES["ce-time"]
        + _long(_TIME_CHARS)
    )
    after_time = _header("ce-type", event.type)
    after_id = _short_text(event.type.encode()) + (_short_text(app_id) if app_id else b"")
    table_bytes = (
        len(before_id) + _UUID_CHARS + len(_LEDGER_TIME) + len(before_time) + 2 * _TIME_CHARS + len(after_time)
    )
    return _Envelope(
        method=_frame_head(_METHOD, channel, len(arguments)) + arguments + _END,
        before_table=before_table,
        before_id=before_id,
        before_time=before_time,
        after_time=after_time,
        after_id=after_id + _END,
        table_bytes=table_bytes,
        properties_bytes=(
            _HEADER_FIXED_BYTES
            + len(before_table)
            + len(_long(0))
            + len(_BEFORE_MESSAGE_ID)
            + _UUID_CHARS
            + len(after_id)
        ),
    )


def _optional(event: Event) -> tuple[bytes, bytes, bytes, bytes, bytes]:
    """Optional headers, in the five places where they stand among the others."""
    origin = key = ordering = trace = hop = b""
    if event.actor is not None:
        origin = _header("ce-actorid", event.actor)
    if event.causation_id is not None:
        origin += _header("ce-causationid", event.causation_id)
    if event.correlation_id is not None:
        origin += _header("ce-correlationid", event.correlation_id)
    if event.idempotency_key is not None:
        key = _header("ce-idempotencykey", event.idempotency_key)
    if event.ordering is not None or event.replay is not None:
        ordering = _ordering(event)
    if event.traceparent is not None:
        trace = _header("ce-traceparent", event.traceparent)
        hop = _header("traceparent", event.traceparent)
    if event.tracestate is not None:
        trace += _header("ce-tracestate", event.tracestate)
        hop += _header("tracestate", event.tracestate)
    return origin, key, ordering, trace, hop


def _ordering(event: Event) -> bytes:
    ordering = event.ordering
    replay = b"" if event.replay is None else _header("ce-replayid", event.replay)
    if ordering is None:
        return replay
    headers = _header("ce-partitionkey", ordering.key)
    if ordering.previous_time is not None:
        headers += _PREVIOUS_TIME + _text_of_time(ordering.previous_time)
    headers += replay + _header("ce-sequence", str(ordering.number))
    if ordering.is_first:
        headers += _SEQUENCE_FIRST
    if ordering.is_void:
        headers += _SEQUENCE_VOID
    return headers


def _text_of_time(time: datetime) -> bytes:
    text = time.isoformat(timespec="microseconds")
    if not text.endswith("+00:00"):
        text = time.astimezone(UTC).isoformat(timespec="microseconds")
    return text[: _TIME_CHARS - 1].encode() + b"Z"


def _short_text(encoded: bytes) -> bytes:
    return bytes((len(encoded),)) + encoded


def _header(name: str, value: str) -> bytes:
    encoded = value.encode()
    return _NAMES[name] + _long(len(encoded)) + encoded


# A header's name, and the mark that a text follows.
_NAMES: Final = {
    name: _short_text(name.encode()) + b"S"
    for name in (
        "ce-actorid",
        "ce-causationid",
        "ce-correlationid",
        "ce-dataversion",
        "ce-id",
        "ce-idempotencykey",
        "ce-ledgertime",
        "ce-partitionkey",
        "ce-previoustime",
        "ce-replayid",
        "ce-sequence",
        "ce-sequencefirst",
        "ce-sequencevoid",
        "ce-source",
        "ce-specversion",
        "ce-tenantid",
        "ce-tier",
        "ce-time",
        "ce-traceparent",
        "ce-tracestate",
        "ce-type",
        "traceparent",
        "tracestate",
    )
}
_LEDGER_TIME: Final = _NAMES["ce-ledgertime"] + _long(_TIME_CHARS)
_PREVIOUS_TIME: Final = _NAMES["ce-previoustime"] + _long(_TIME_CHARS)
_SEQUENCE_FIRST: Final = _header("ce-sequencefirst", "true")
_SEQUENCE_VOID: Final = _header("ce-sequencevoid", "true")
_BEFORE_MESSAGE_ID: Final = _PERSISTENT + bytes((_UUID_CHARS,))
