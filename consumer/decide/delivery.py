"""Whether what arrived may be handled: pure checks, bytes first. Anything wrong has a category and a sentence.

Nothing received is evaluated, imported or unpickled: a type's name only looks up what the app registered, and
payloads are read by the strict JSON reader and the app's own models. No sentence repeats a payload.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from pydantic import ValidationError

from consumer.decide.versions import NEWEST, NotRaised
from consumer.outcome import DeadCategory
from consumer.registry import Handler, Role
from outbox import wire
from outbox.errors import InvalidEvent, Unreadable
from outbox.event import Event, EventModel
from outbox.naming import Lane
from outbox.records import record
from outbox.strict_json import NotStrict, dumps, loads
from outbox.trail import Trail

_ERRORS_MAX: Final = 5
_NUMBER_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """It will not be handled. *reason* is one sentence, and repeats none of the payload."""

    category: DeadCategory
    reason: str


@record
class Body:
    """A payload that was read: *value* is what its JSON says, ``None`` too when it is no JSON (*is_json* says)."""

    is_json: bool
    value: object


def open_envelope(message: wire.Message, lane: Lane, *, payload_bytes_max: int) -> Event | Refused:
    """Return the event in *message*, which came by *lane*."""
    if len(message.body) > payload_bytes_max:
        return Refused(
            category=DeadCategory.OVERSIZED,
            reason=f"payload: want at most {payload_bytes_max} bytes, got {len(message.body)}",
        )
    try:
        event = wire.decode(message)
    except Unreadable as error:
        return Refused(category=DeadCategory.UNREADABLE, reason=str(error))
    if (unusable := _unusable(event)) is not None:
        return Refused(category=DeadCategory.UNREADABLE, reason=unusable)
    # The relay put it into its own tenant's lane; whoever put it into another's is not the relay.
    if event.tenant != lane.tenant or event.tier is not lane.tier:
        return Refused(
            category=DeadCategory.SECURITY, reason="tenant and tier: want those of the lane it came by, got others"
        )
    return event


def trail_of(event: Event) -> Trail:
    """What is emitted while *event* is handled says where it comes from. Raises InvalidEvent."""
    return Trail(
        actor=event.actor,
        causation_id=str(event.id),
        correlation_id=event.correlation_id or str(event.id),
        traceparent=event.traceparent,
        tracestate=event.tracestate,
    )


def _unusable(event: Event) -> str | None:
    """Say what in *event* no table of ours could hold, though it can be read."""
    if event.ordering is not None and event.ordering.number > _NUMBER_MAX:
        return f"ce-sequence: want at most {_NUMBER_MAX}, got more"
    if (event.actor, event.correlation_id, event.traceparent, event.tracestate) != (None, None, None, None):
        try:
            trail_of(event)
        except InvalidEvent as error:
            return str(error)
    return None


def read_body(event: Event) -> Body | Refused:
    """Return the payload of *event*, read strictly if it says that it is JSON."""
    if not _is_json(event.content_type):
        return Body(is_json=False, value=None)
    try:
        return Body(is_json=True, value=loads(event.payload))
    except NotStrict as error:
        return Refused(category=DeadCategory.INVALID, reason=f"payload: {error}")


def read_payload(handler: Handler, event: Event, body: Body) -> object | Refused:
    """Return what the payload parameter of *handler* is given, or why it cannot be called."""
    text: bytes | Refused = event.payload
    if handler.model is None or event.data_version != handler.model.event_version:
        known = handler.versions
        if event.data_version not in known:
            return Refused(
                category=DeadCategory.UNKNOWN_VERSION, reason=f"data version: want {known}, got {event.data_version}"
            )
        if event.data_version < known.newest < NEWEST and event.type in handler.checks.upcasters.types:
            text = _raise(handler, event, body, to=known.newest)
    if handler.takes_event:
        return event
    if isinstance(text, Refused):
        return text
    if Role.MODEL in handler.roles:
        return _read_model(handler.model, event, body, text)
    value = body.value if text is event.payload else loads(text)
    if not isinstance(value, dict):
        return Refused(category=DeadCategory.INVALID, reason="payload: want a JSON object, got another")
    return value


def _raise(handler: Handler, event: Event, body: Body, *, to: int) -> bytes | Refused:
    """Return the payload of *event* as one of version *to*."""
    if not isinstance(body.value, dict):
        return Refused(
            category=DeadCategory.INVALID, reason="payload: want a JSON object for its upcasters, got another"
        )
    upcasters = handler.checks.upcasters
    try:
        return dumps(upcasters.raised(event.type, body.value, version=event.data_version, to=to))
    except NotRaised as error:
        return Refused(category=DeadCategory.INVALID, reason=f"upcaster {error}")
    except NotStrict as error:
        return Refused(category=DeadCategory.INVALID, reason=f"payload, after its upcasters: {error}")


def _read_model(model: type[EventModel] | None, event: Event, body: Body, text: bytes) -> EventModel | Refused:
    assert model is not None  # noqa: S101 - a handler with this role has one
    if not body.is_json:
        return Refused(
            category=DeadCategory.INVALID, reason=f"content type: want JSON, got {event.content_type[:100]!r}"
        )
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        return Refused(category=DeadCategory.INVALID, reason=f"payload: {_what_is_wrong(error, model)}")
    except MemoryError:
        raise  # that may be the process's fault
    except Exception as error:  # noqa: BLE001 - a validator of the app's; reading it again would end in the same way
        return Refused(
            category=DeadCategory.INVALID,
            reason=f"payload: want a {model.__name__}, got {type(error).__name__} from a validator of it",
        )


def _what_is_wrong(error: ValidationError, model: type[EventModel]) -> str:
    """Name fields and kinds of error alone: pydantic's own text repeats what was received."""
    known = {name for name in model.model_fields} | {
        field.alias for field in model.model_fields.values() if field.alias is not None
    }
    found = error.errors(include_url=False, include_context=False, include_input=False)
    texts = [f"{_place(item['loc'], known)}: {item['type']}" for item in found[:_ERRORS_MAX]]
    return f"want a {model.__name__}, got {'; '.join(texts)}"


def _place(loc: tuple[int | str, ...], known: set[str]) -> str:
    # What is deeper than a field of the model may be a key out of the payload.
    return str(loc[0]) if loc and loc[0] in known else "payload"


@lru_cache(maxsize=64)
def _is_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind == "application/json" or kind.endswith("+json")
