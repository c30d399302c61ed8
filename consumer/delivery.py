"""Whether what arrived may be handled: pure checks, bytes first. Anything wrong has a category and a sentence.

Nothing received is evaluated, imported or unpickled: a type's name only looks up what the app registered, and
payloads are read by the strict JSON reader and the app's own models. No sentence repeats a payload.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from pydantic import ValidationError

from consumer.outcome import DeadCategory
from consumer.registry import Handler, Role
from outbox import wire
from outbox.errors import Unreadable
from outbox.event import Event, EventModel
from outbox.naming import Lane
from outbox.strict_json import NotStrict, loads

_AHEAD: Final = timedelta(minutes=5)
_ERRORS_MAX: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """It will not be handled. *event* is there once the envelope could be read."""

    category: DeadCategory
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
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
    # The relay put it into its own tenant's lane; whoever put it into another's is not the relay.
    if event.tenant != lane.tenant or event.tier is not lane.tier:
        return Refused(
            category=DeadCategory.SECURITY, reason="tenant and tier: want those of the lane it came by, got others"
        )
    return event


def check_horizon(event: Event, *, now: datetime, horizon: timedelta) -> Refused | None:
    """Say whether the ledger could no longer tell, or not yet, if *event* was handled. *now* is the database's."""
    if event.ledger_time < now - horizon:
        return Refused(
            category=DeadCategory.OUTSIDE_HORIZON,
            reason=f"ledger time: want at most {horizon} ago, got {event.ledger_time.isoformat()}",
        )
    if event.ledger_time > now + _AHEAD:
        return Refused(
            category=DeadCategory.OUTSIDE_HORIZON,
            reason=f"ledger time: want at most {_AHEAD} ahead, got {event.ledger_time.isoformat()}",
        )
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
    if handler.model is not None and event.data_version > handler.model.event_version:
        return Refused(
            category=DeadCategory.UNKNOWN_VERSION,
            reason=f"data version: want at most {handler.model.event_version}, got {event.data_version}",
        )
    roles = {role for _, role in handler.parameters}
    if Role.MODEL in roles:
        return _read_model(handler.model, event, body)
    if Role.EVENT in roles:
        return event
    if not isinstance(body.value, dict):
        return Refused(category=DeadCategory.INVALID, reason="payload: want a JSON object, got another")
    return body.value


def _read_model(model: type[EventModel] | None, event: Event, body: Body) -> EventModel | Refused:
    assert model is not None  # noqa: S101 - a handler with this role has one
    if not body.is_json:
        return Refused(
            category=DeadCategory.INVALID, reason=f"content type: want JSON, got {event.content_type[:100]!r}"
        )
    try:
        return model.model_validate_json(event.payload)
    except ValidationError as error:
        return Refused(category=DeadCategory.INVALID, reason=f"payload: {_what_is_wrong(error, model)}")


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


def _is_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind == "application/json" or kind.endswith("+json")
