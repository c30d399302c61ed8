"""Whatever headers a stranger sends can be stored, and come back as they were."""

import json
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from consumer.store.stored import original_headers, parameters, restore, safe_headers, storable, unreadable
from outbox.event import Tier
from outbox.wire import Message

_ANY_TEXT = st.text(st.characters(exclude_categories=()))  # lone surrogates and NUL too
_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | _ANY_TEXT
    | st.binary()
    | st.datetimes(timezones=st.just(UTC))
)
_NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_NAMES, inner, max_size=4),
    max_leaves=10,
)
_ANYTHING = st.one_of(
    _VALUES, st.floats(), st.integers(), st.complex_numbers(), st.sets(st.integers()), st.just(object())
)


def as_jsonb(headers: dict[str, object]) -> dict[str, object]:
    """*headers* through what jsonb accepts, which is checked."""
    text = json.dumps(headers, allow_nan=False)
    assert "\\u0000" not in text.replace("\\\\", "")
    text.encode()
    back = json.loads(text)
    json.dumps(back, ensure_ascii=False).encode()  # jsonb refuses lone surrogates
    assert isinstance(back, dict)
    return back


@given(st.dictionaries(_NAMES, _VALUES, max_size=6))
def test_headers_come_back_as_they_were(headers: dict[str, object]) -> None:
    assert original_headers(as_jsonb(safe_headers(headers))) == headers


@given(st.dictionaries(_ANY_TEXT, _ANYTHING, max_size=6))
def test_no_header_is_refused(headers: dict[str, object]) -> None:
    original_headers(as_jsonb(safe_headers(headers)))


@given(_ANY_TEXT)
def test_stored_text_holds_nothing_that_postgresql_refuses(text: str) -> None:
    stored = storable(text)
    assert "\0" not in stored
    stored.encode()
    assert len(stored) == len(text)


@given(st.binary(), _ANY_TEXT)
def test_a_body_is_never_touched(body: bytes, text: str) -> None:
    message = Message(message_id=text, type=text, app_id=text, content_type=text, headers={}, body=body)
    values = list(parameters(unreadable(message, tier=Tier.BULK, tenant="acme")))
    values[9] = {}
    assert restore(tuple(values)).message.body == body


def test_times_come_back_to_the_microsecond() -> None:
    at = datetime(2026, 6, 15, 12, 0, 0, 123456, tzinfo=UTC)
    assert original_headers(as_jsonb(safe_headers({"at": at}))) == {"at": at}
