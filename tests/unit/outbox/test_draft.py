import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from pydantic import Field, computed_field

from outbox.draft import Body, Envelope, body_of_model, body_of_plain, check_source, due_of, is_json
from outbox.errors import ConfigError, InvalidEvent, PayloadTooLarge
from outbox.event import EventModel, Tier
from outbox.trail import Trail

_LIMIT = 1_000


class Priced(EventModel, type="shop.priced", version=4, tier=Tier.BULK):
    price: Decimal
    at: datetime
    named: str = Field(default="x", alias="Name")

    @computed_field  # type: ignore[prop-decorator]  # pydantic documents this order
    @property
    def rounded(self) -> int:
        return 1


class Loose(EventModel, type="shop.loose"):
    anything: Any = None


class Untyped(EventModel):
    order_id: int


class OneWay(EventModel, type="shop.one_way"):
    order_id: int = Field(serialization_alias="id")


def unchecked(cls: type[EventModel], **values: Any) -> EventModel:
    return cls.model_construct(**values)


def body(payload: object, *, content_type: str = "application/json", version: int = 1) -> Body:
    return body_of_plain("shop.note", payload, version=version, content_type=content_type, payload_bytes_max=_LIMIT)


def typed(model: object) -> Body:
    return body_of_model(model, payload_bytes_max=_LIMIT)


def test_a_typed_event_becomes_json_that_its_model_reads_back() -> None:
    event = Priced(price=Decimal("1.10"), at=datetime(2026, 5, 1, tzinfo=UTC), Name="ü")
    made = typed(event)

    assert (made.type, made.data_version, made.content_type, made.tier) == (
        "shop.priced",
        4,
        "application/json",
        Tier.BULK,
    )
    assert json.loads(made.payload) == {"price": "1.10", "at": "2026-05-01T00:00:00Z", "Name": "ü"}
    assert Priced.model_validate_json(made.payload) == event


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        ("shop.note", r"^event: want an EventModel or a type's name, got str$"),
        (Untyped(order_id=1), r"^Untyped: want a type, as in class Untyped\(EventModel, type=\.\.\.\), got none$"),
        (Loose(anything=float("nan")), r"^payload of shop\.loose: want finite numbers"),
        (Loose(anything=float("inf")), r"^payload of shop\.loose: want finite numbers"),
        (Loose(anything="a\0"), r"^payload of shop\.loose: want text without NUL"),
        (Loose(anything=object()), r"^payload of shop\.loose: want what JSON can hold"),
        (
            OneWay(order_id=1),
            r"^payload of shop\.one_way: want what its own model reads back, got order_id \(missing\)$",
        ),
        (
            unchecked(Priced, price="canary"),
            r"^payload of shop\.priced: want what its own model reads back, got",
        ),
    ],
)
def test_a_typed_event_that_no_consumer_could_read_is_refused(model: object, sentence: str) -> None:
    with pytest.raises(InvalidEvent, match=sentence) as caught:
        typed(model)
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize(
    ("payload", "sentence"),
    [
        (None, "want a JSON value or bytes, got None"),
        (float("nan"), "want finite numbers"),
        (b'{"a":1,"a":2}', "want every key once"),
        (b"\xff", "want UTF-8"),
        ({"at": datetime(2026, 5, 1, tzinfo=UTC)}, "want values that JSON has, got another kind"),
        (bytearray(b"x"), "want values that JSON has, got another kind"),
    ],
)
def test_a_plain_payload_that_is_not_strict_json_is_refused(payload: object, sentence: str) -> None:
    with pytest.raises(InvalidEvent, match=rf"^payload of shop\.note: {sentence}"):
        body(payload)


def test_bytes_of_another_content_type_are_taken_as_they_are() -> None:
    assert body(b"\xff\x00", content_type="image/png").payload == b"\xff\x00"
    assert body(b"", content_type="text/plain").payload == b""
    with pytest.raises(InvalidEvent, match=r"^payload of shop\.note: want bytes with image/png, got dict$"):
        body({}, content_type="image/png")


@pytest.mark.parametrize("content_type", ["", "a\r\nCC: x", "ü", " text/plain", "x" * 256])
def test_a_content_type_is_plain_text_of_one_line(content_type: str) -> None:
    with pytest.raises(InvalidEvent, match=r"^content_type: want"):
        body(b"x", content_type=content_type)


@pytest.mark.parametrize(
    "content_type", ["application/json; charset=utf-8", "application/cloudevents+json", "Application/JSON"]
)
def test_every_kind_of_json_is_held_to_be_json(content_type: str) -> None:
    assert is_json(content_type)
    with pytest.raises(InvalidEvent):
        body(b"NaN", content_type=content_type)


def test_a_body_of_100_megabytes_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(PayloadTooLarge, match=r"^payload of shop\.note: want at most 1000 bytes, got 104857600$"):
        body(b"[" * (100 * 1024 * 1024))


@pytest.mark.parametrize("version", [-1, 2**31, "1", 1.5])
def test_a_version_is_a_whole_number_that_the_table_holds(version: Any) -> None:
    with pytest.raises(InvalidEvent, match=r"^version: want a whole number"):
        body({}, version=version)


@pytest.mark.parametrize("name", ["ordering_key", "idempotency_key"])
@pytest.mark.parametrize("text", ["", "x" * 256, "a\0", "\ud800", 7])
def test_a_key_is_text_that_can_be_stored(name: str, text: Any) -> None:
    with pytest.raises(InvalidEvent, match=f"^{name}: want"):
        Envelope(tenant="acme", trail=Trail(), **{name: text})


def test_a_tier_is_a_tier() -> None:
    with pytest.raises(InvalidEvent, match=r"^tier: want a Tier, got 'bulk'$"):
        Envelope(tenant="acme", trail=Trail(), tier="bulk")  # type: ignore[arg-type]  # the mistake is the test


def test_a_due_time_is_kept_in_utc_and_a_delay_as_it_is() -> None:
    assert due_of(due_at=None, delay=None) is None
    assert due_of(due_at=None, delay=timedelta(0)) == timedelta(0)
    assert due_of(due_at=datetime(2026, 5, 1, tzinfo=UTC), delay=None) == datetime(2026, 5, 1, tzinfo=UTC)


@pytest.mark.parametrize("source", ["", "a b", "ü", "a\n", "x" * 256])
def test_a_source_is_a_uri_reference(source: str) -> None:
    with pytest.raises(ConfigError, match=r"^source: want"):
        check_source(source)
