"""A message as columns: readable ones come back equal, strangers' headers are made safe."""

import json
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from consumer.store.stored import (
    Stored,
    of_event,
    original_headers,
    parameters,
    restore,
    safe_headers,
    storable,
    unreadable,
)
from outbox import wire
from outbox.event import Event, Tier
from outbox.wire import Message
from tests.support.waiting_events import an_event, keyed


def through_columns(stored: Stored) -> Stored:
    """*stored* as a table would give it back."""
    values = list(parameters(stored))
    values[9] = json.loads(json.dumps(values[9].obj))  # type: ignore[attr-defined] # psycopg's Jsonb
    return restore(tuple(values))


@pytest.mark.parametrize("event", [an_event(), keyed(7), an_event(tenant="Ünïcode/..#*", payload=b"\0\xff")])
def test_a_readable_message_comes_back_equal(event: Event) -> None:
    stored = of_event(event, wire.encode(event))
    back = through_columns(stored)
    assert back == stored
    assert wire.decode(back.message) == event


def test_what_tables_index_by_is_read_from_the_event() -> None:
    stored = of_event(event := keyed(7), wire.encode(event))
    assert (stored.ordering_key, stored.key_number, stored.ledger_at) == ("order-1", 7, event.ledger_time)


def test_text_that_postgresql_cannot_hold_is_stored_all_the_same() -> None:
    message = Message(
        message_id="a\0b",
        type="\ud800",
        app_id="",
        content_type="\0",
        headers={"ce-id": "x\0y", "z": "\udfff"},
        body=b"\0",
    )
    back = through_columns(unreadable(message, tier=Tier.BULK, tenant="acme"))
    assert (back.message.message_id, back.message.type, back.message.content_type) == ("a\ufffdb", "\ufffd", "\ufffd")
    assert back.message.headers == {"ce-id": "x\0y", "z": "\udfff"}
    assert back.message.body == b"\0"


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        2**62,
        1.5,
        "text",
        b"\x00\xff",
        datetime(2026, 1, 1, tzinfo=UTC),
        {"queue": "q", "count": 3, "raw": b"\0"},
        [{"reason": "rejected"}, [b"x"], None],
        {"$": "bytes", "value": "not base64"},
    ],
)
def test_every_value_that_a_broker_sends_in_a_header_comes_back(value: object) -> None:
    assert original_headers(json.loads(json.dumps(safe_headers({"x-death": value})))) == {"x-death": value}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 2**80, Decimal("1.5"), object(), {1, 2}])
def test_a_value_without_a_json_form_becomes_a_text(value: object) -> None:
    back = original_headers(json.loads(json.dumps(safe_headers({"h": value}), allow_nan=False)))
    assert isinstance(back["h"], str)


def test_headers_nested_without_end_are_cut_off() -> None:
    nested: list[object] = []
    for _ in range(100_000):
        nested = [nested]
    assert "nested too deeply" in json.dumps(safe_headers({"h": nested}))


def test_storable_text_is_left_as_it_is() -> None:
    assert storable("naïve 🎈") == "naïve 🎈"
