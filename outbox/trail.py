"""What led to an event: who acted, which event caused it, which trace it belongs to.

The consumer opens a scope around each handler, so that what a handler emits names its cause by itself.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace
from typing import Final

from outbox.errors import InvalidEvent
from outbox.naming import check_text

TEXT_CHARS_MAX: Final = 255
_TRACESTATE: Final = re.compile(r"[ -~]{1,512}")
_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


def check_optional_text(name: str, text: object) -> str | None:
    """Return *text* if it is ``None`` or 1 to 255 characters that can be stored, else raise InvalidEvent."""
    if text is None:
        return None
    if not isinstance(text, str) or not 1 <= len(text) <= TEXT_CHARS_MAX:
        got = f"{len(text)} characters" if isinstance(text, str) else type(text).__name__
        raise InvalidEvent(f"{name}: want text of 1..{TEXT_CHARS_MAX} characters, got {got}")
    return check_text(name, text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trail:
    """The part of an event that says where it comes from; ``None`` is not known.

    Raises:
        InvalidEvent: a field cannot be stored, or is no W3C trace context.
    """

    actor: str | None = None
    causation_id: str | None = None
    correlation_id: str | None = None
    traceparent: str | None = None
    tracestate: str | None = None

    def __post_init__(self) -> None:
        for name in ("actor", "causation_id", "correlation_id"):
            check_optional_text(name, getattr(self, name))
        if self.traceparent is not None and not _TRACEPARENT.fullmatch(self.traceparent):
            raise InvalidEvent("traceparent: want the form 00-<32 hex>-<16 hex>-<2 hex>, got another text")
        if self.tracestate is not None and not _TRACESTATE.fullmatch(self.tracestate):
            raise InvalidEvent("tracestate: want 1..512 printable ASCII characters, got another text")

    def over(self, other: "Trail") -> "Trail":
        """This trail, with *other*'s fields where this one has none."""
        if other is _UNKNOWN:  # as it is around every handler
            return self
        own = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(other, **{name: value for name, value in own.items() if value is not None})


_UNKNOWN: Final = Trail()
_current: ContextVar[Trail | Callable[[], Trail]] = ContextVar("fairpost_trail", default=_UNKNOWN)


def current_trail() -> Trail:
    """The trail of the innermost scope."""
    trail = _current.get()
    return trail if isinstance(trail, Trail) else trail()


def enter_trail(trail: Callable[[], Trail]) -> None:
    """As ``trail_scope`` for what *trail* returns, to the end of the running task, which nothing else is done in.

    It is asked when something is emitted, as most handlers emit nothing.
    """
    outer = _current.get()
    _current.set(trail if outer is _UNKNOWN else trail().over(current_trail()))


@contextmanager
def trail_scope(trail: Trail) -> Iterator[None]:
    """Give what is emitted inside *trail*, save where ``emit`` is told otherwise; scopes nest field by field."""
    token = _current.set(trail.over(current_trail()))
    try:
        yield
    finally:
        _current.reset(token)
