"""What an app hands to ``emit``, checked and made into values. Pure: no session, no clock, no I/O."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from outbox import strict_json
from outbox.errors import ConfigError, InvalidEvent, PayloadTooLarge
from outbox.event import JSON, EventModel, Tier
from outbox.naming import check_type
from outbox.strict_json import NotStrict
from outbox.trail import Trail, check_optional_text

Json = Mapping[str, "Json"] | Sequence["Json"] | str | int | float | bool | None
Payload = Json | bytes

_VERSION_MAX: Final = 2**31 - 1
_DELAY_MAX: Final = timedelta(days=36_500)
_ERRORS_SHOWN: Final = 3
_SOURCE: Final = re.compile(r"[!-~]{1,255}")
_CONTENT_TYPE: Final = re.compile(r"[!-~][ -~]{0,254}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """An event's type and payload, ready to store. *tier* is its type's default."""

    type: str
    data_version: int
    content_type: str
    payload: bytes
    tier: Tier = Tier.STANDARD


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """All of an event that does not depend on its payload.

    *due* is a time, or a wait from the moment the database writes the row; ``None`` is at once.

    Raises:
        InvalidEvent: a field is wrong, or two do not go together.
    """

    tenant: str
    trail: Trail
    tier: Tier | None = None
    ordering_key: str | None = None
    idempotency_key: str | None = None
    due: datetime | timedelta | None = None

    def __post_init__(self) -> None:
        check_optional_text("ordering_key", self.ordering_key)
        check_optional_text("idempotency_key", self.idempotency_key)
        if self.tier is not None and not isinstance(self.tier, Tier):
            raise InvalidEvent(f"tier: want a Tier, got {self.tier!r}")
        if self.due is not None and self.ordering_key is not None:
            raise InvalidEvent("ordering_key: want none with a due time, since a later event would overtake it")


def due_of(*, due_at: datetime | None, delay: timedelta | None) -> datetime | timedelta | None:
    """Return when an event is due, a time in UTC or a wait; at most one of both may be given."""
    if due_at is not None and delay is not None:
        raise InvalidEvent("due_at and delay: want one of them, got both")
    if delay is not None:
        if not timedelta(0) <= delay <= _DELAY_MAX:
            raise InvalidEvent(f"delay: want 0..{_DELAY_MAX.days} days, got {delay}")
        return delay
    if due_at is None:
        return None
    if due_at.tzinfo is None:
        raise InvalidEvent("due_at: want a time with a time zone, got one without")
    try:
        return due_at.astimezone(UTC)
    except OverflowError:
        raise InvalidEvent("due_at: want a time within the years 1..9999 in UTC, got another") from None


def body_of_model(model: object, *, payload_bytes_max: int) -> Body:
    """Return the body of a typed event: its own fields as JSON, which the same model reads back.

    Raises:
        InvalidEvent: it is no event model, its class has no type, or its payload is not strict JSON.
    """
    if not isinstance(model, EventModel):
        raise InvalidEvent(f"event: want an EventModel or a type's name, got {type(model).__name__}")
    cls = type(model)
    if not cls.event_type:
        raise InvalidEvent(f"{cls.__name__}: want a type, as in class {cls.__name__}(EventModel, type=...), got none")
    name = check_type(cls.event_type)
    try:
        value = model.model_dump(mode="json", by_alias=True, round_trip=True, warnings=False)
    except PydanticSerializationError as error:
        raise InvalidEvent(f"payload of {name}: want what JSON can hold, got another: {error}") from None
    payload = _json_bytes(name, value, payload_bytes_max=payload_bytes_max)
    try:
        cls.model_validate_json(payload)
    except ValidationError as error:
        raise InvalidEvent(f"payload of {name}: want what its own model reads back, got {_errors(error)}") from None
    return Body(
        type=name,
        data_version=_checked_version(cls.event_version),
        content_type=JSON,
        payload=payload,
        tier=cls.event_tier,
    )


def body_of_plain(event_type: str, payload: object, *, version: int, content_type: str, payload_bytes_max: int) -> Body:
    """Return the body of a plain event: *payload* as JSON, or, if it is bytes, as it is.

    Bytes that claim to be JSON are held to the same strictness.

    Raises:
        InvalidEvent: the type, version or content type is wrong, or the payload is not strict JSON.
        PayloadTooLarge: it is over *payload_bytes_max*.
    """
    name = check_type(event_type)
    if not _CONTENT_TYPE.fullmatch(content_type):
        raise InvalidEvent("content_type: want 1..255 printable ASCII characters, got another text")
    if payload is None:
        raise InvalidEvent(f"payload of {name}: want a JSON value or bytes, got None")
    if not isinstance(payload, bytes):
        if not is_json(content_type):
            raise InvalidEvent(f"payload of {name}: want bytes with {content_type}, got {type(payload).__name__}")
        data = _json_bytes(name, payload, payload_bytes_max=payload_bytes_max)
    else:
        data = payload
        _check_size(name, data, payload_bytes_max)
        if is_json(content_type):
            _check_strict(name, data)
    return Body(type=name, data_version=_checked_version(version), content_type=content_type, payload=data)


def is_json(content_type: str) -> bool:
    """Whether a payload of *content_type* is JSON."""
    media_type = content_type.partition(";")[0].strip().lower()
    return media_type == JSON or media_type.endswith("+json")


def check_source(source: str) -> str:
    """Return *source* if it can name where events come from (a URI reference), else raise ConfigError."""
    if not _SOURCE.fullmatch(source):
        raise ConfigError(f"source: want 1..255 printable ASCII characters without spaces, got {source[:80]!r}")
    return source


def name_of(body: Body | Callable[[], Body]) -> str:
    """What to call an event in a log line; one that was never built has no type yet."""
    return body.type if isinstance(body, Body) else "(not built)"


def _json_bytes(name: str, value: object, *, payload_bytes_max: int) -> bytes:
    try:
        data = strict_json.encode(value)
    except NotStrict as error:
        raise InvalidEvent(f"payload of {name}: {error}") from None
    _check_size(name, data, payload_bytes_max)
    _check_strict(name, data)
    return data


def _check_size(name: str, data: bytes, payload_bytes_max: int) -> None:
    # Before anything reads it: what is too large is refused without being parsed.
    if len(data) > payload_bytes_max:
        raise PayloadTooLarge(f"payload of {name}: want at most {payload_bytes_max} bytes, got {len(data)}")


def _check_strict(name: str, data: bytes) -> None:
    try:
        strict_json.loads(data)
    except NotStrict as error:
        raise InvalidEvent(f"payload of {name}: {error}") from None


def _checked_version(version: int) -> int:
    if not isinstance(version, int) or not 0 <= version <= _VERSION_MAX:
        raise InvalidEvent(f"version: want a whole number of 0..{_VERSION_MAX}, got {version!r}")
    return version


def _errors(error: ValidationError) -> str:
    """Where and what kind, never the values: an error may be logged, a payload never."""
    shown = error.errors(include_input=False, include_context=False, include_url=False)[:_ERRORS_SHOWN]
    return ", ".join(
        f"{'.'.join(str(part) for part in item['loc']) or 'the payload'} ({item['type']})" for item in shown
    )
