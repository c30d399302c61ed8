from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from uuid import UUID

import pytest

from outbox import wire
from outbox.errors import Unreadable
from outbox.event import Event, Ordering, Tier

_TIME = datetime(2026, 5, 1, 12, 30, tzinfo=UTC)
_EVENT = Event(
    id=UUID("01890a5d-ac96-774b-bcce-b302099a8057"),
    tenant="acme",
    tier=Tier.INTERACTIVE,
    type="shop.order.placed",
    data_version=2,
    source="/svc/shop",
    content_type="application/json",
    payload=b'{"order_id":7}',
    time=_TIME,
    ledger_time=_TIME + timedelta(hours=1),
    ordering=Ordering(key="order-7", number=12, is_first=False, previous_time=_TIME),
    traceparent="00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
)


def with_header(name: str, value: object) -> wire.Message:
    message = wire.encode(_EVENT)
    return replace(message, headers={**message.headers, name: value})


def without_header(name: str) -> wire.Message:
    message = wire.encode(_EVENT)
    return replace(message, headers={key: value for key, value in message.headers.items() if key != name})


def test_a_message_is_a_cloudevent_in_binary_mode() -> None:
    message = wire.encode(_EVENT)

    assert (message.message_id, message.type, message.app_id) == (str(_EVENT.id), _EVENT.type, "/svc/shop")
    assert (message.content_type, message.body) == ("application/json", b'{"order_id":7}')
    assert message.headers == {
        "ce-specversion": "1.0",
        "ce-id": "01890a5d-ac96-774b-bcce-b302099a8057",
        "ce-source": "/svc/shop",
        "ce-type": "shop.order.placed",
        "ce-time": "2026-05-01T12:30:00.000000Z",
        "ce-ledgertime": "2026-05-01T13:30:00.000000Z",
        "ce-tenantid": "acme",
        "ce-tier": "interactive",
        "ce-dataversion": "2",
        "ce-partitionkey": "order-7",
        "ce-sequence": "12",
        "ce-previoustime": "2026-05-01T12:30:00.000000Z",
        "ce-traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    }


def test_a_void_says_so_in_one_header_and_only_that_word_makes_one() -> None:
    assert _EVENT.ordering is not None
    void = replace(_EVENT, ordering=replace(_EVENT.ordering, is_void=True))
    assert wire.encode(void).headers == {**wire.encode(_EVENT).headers, "ce-sequencevoid": "true"}
    assert wire.decode(wire.encode(void)).is_void
    assert not wire.decode(with_header("ce-sequencevoid", "yes")).is_void


def test_the_senders_name_is_cut_where_amqp_ends_it() -> None:
    assert wire.encode(replace(_EVENT, source="é" * 200)).app_id == "é" * 127


def test_times_of_other_zones_and_text_as_bytes_are_read() -> None:
    assert wire.decode(with_header("ce-time", "2026-05-01T14:30:00+02:00")).time == _TIME
    assert wire.decode(with_header("ce-tenantid", b"acme")) == _EVENT
    elsewhere = replace(_EVENT, time=_TIME.astimezone(timezone(timedelta(hours=-7))))
    assert wire.encode(elsewhere) == wire.encode(_EVENT)


@pytest.mark.parametrize(
    "name", ["ce-id", "ce-source", "ce-type", "ce-specversion", "ce-time", "ce-ledgertime", "ce-tenantid", "ce-tier"]
)
def test_a_missing_attribute_is_named(name: str) -> None:
    with pytest.raises(Unreadable, match=f"^{name}: want this header, got none$"):
        wire.decode(without_header(name))


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("ce-specversion", "0.3", "^ce-specversion: want 1.0"),
        ("ce-id", "7", "^ce-id: want a UUID"),
        ("ce-tier", "urgent", "^ce-tier: want one of interactive, standard, bulk"),
        ("ce-time", "yesterday", "^ce-time: want an RFC 3339 time"),
        ("ce-time", "2026-05-01T12:30:00", "^ce-time: want a time with an offset"),
        ("ce-time", "9999-12-31T23:00:00-05:00", "^ce-time: want an RFC 3339 time"),
        ("ce-dataversion", "-1", "^ce-dataversion: want a whole number"),
        ("ce-sequence", "9223372036854775808", "^ce-sequence: want a whole number below"),
        ("ce-sequence", "١٢", "^ce-sequence: want a whole number"),
        ("ce-tenantid", "a\0", "^ce-tenantid: want text without NUL"),
        ("ce-tenantid", "", "^tenant: want text of"),
        ("ce-tenantid", {"a": 1}, "^ce-tenantid: want text, got dict"),
        ("ce-type", "a b", "^event type: want"),
        ("ce-partitionkey", "k\0", "^ce-partitionkey: want text without NUL"),
    ],
)
def test_a_wrong_attribute_is_named(name: str, value: object, sentence: str) -> None:
    with pytest.raises(Unreadable, match=sentence):
        wire.decode(with_header(name, value))


def test_no_sentence_repeats_what_was_sent() -> None:
    """PostgreSQL's and many parsers' errors repeat values; ours may be logged."""
    for name in wire.encode(_EVENT).headers:
        try:
            wire.decode(with_header(name, "canary-1 \0"))
        except Unreadable as error:
            assert "canary" not in str(error)  # noqa: PT017 (some of them are read)
