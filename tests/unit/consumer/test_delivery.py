"""What is checked before any handler sees a delivery, and what the refusals say."""

import pickle
from dataclasses import replace
from typing import Any

import pytest
from pydantic import field_validator

from consumer import Consumer, DeadCategory
from consumer.decide.delivery import Body, Refused, open_envelope, read_body, read_payload
from consumer.registry import Handler
from outbox.event import Event, EventModel, Ordering, Tier
from outbox.naming import Lane
from outbox.wire import Message, encode
from tests.unit.consumer.events import an_event

LANE = Lane(group="billing", tier=Tier.STANDARD, tenant="acme")


class OrderPlaced(EventModel, type="orders.order.placed", version=2):
    order_id: int
    lines: dict[str, int] | None = None


consumer = Consumer("billing")


@consumer.on(OrderPlaced)
def typed(event: OrderPlaced) -> None: ...


@consumer.on("orders.order.placed")
def plain(event: dict[str, Any]) -> None: ...


@consumer.on("orders.order.placed")
def raw(event: Event) -> None: ...


TYPED, PLAIN, RAW = consumer.registry.handlers_of("orders.order.placed")


def opened(message: Message) -> Event | Refused:
    return open_envelope(message, LANE, payload_bytes_max=1024)


def read(handler: Handler, event: Event) -> object:
    body = read_body(event)
    return body if isinstance(body, Refused) else read_payload(handler, event, body)


def test_an_envelope_of_ours_opens_as_it_was_written() -> None:
    event = an_event()
    assert opened(encode(event)) == event


def test_a_body_over_the_limit_is_refused_before_it_is_looked_at() -> None:
    message = replace(encode(an_event()), body=b"x" * 1025, headers={})
    refused = opened(message)
    assert isinstance(refused, Refused)
    assert refused.category is DeadCategory.OVERSIZED


@pytest.mark.parametrize(
    "headers",
    [{}, {"ce-id": "no uuid"}, {"ce-specversion": "0.3"}, {"ce-tier": "urgent"}, {"ce-time": "today"}, {"ce-id": 7}],
    ids=str,
)
def test_an_envelope_that_is_damaged_is_unreadable(headers: dict[str, object]) -> None:
    message = encode(an_event())
    damaged = {**message.headers, **headers} if headers else {}
    refused = opened(replace(message, headers=damaged))
    assert isinstance(refused, Refused)
    assert refused.category is DeadCategory.UNREADABLE


@pytest.mark.parametrize(
    "changes",
    [
        {"ordering": Ordering(key="k", number=2**63, is_first=False, previous_time=None)},
        {"actor": "x" * 256},
        {"traceparent": "not one"},
    ],
    ids=["number", "actor", "traceparent"],
)
def test_what_no_table_can_hold_is_unreadable_and_stops_nobody_else(changes: dict[str, Any]) -> None:
    refused = opened(encode(an_event(**changes)))
    assert isinstance(refused, Refused)
    assert refused.category is DeadCategory.UNREADABLE


@pytest.mark.parametrize("changes", [{"tenant": "mallory"}, {"tier": Tier.INTERACTIVE}], ids=str)
def test_a_tenant_or_tier_that_is_not_the_lanes_is_a_security_failure(changes: dict[str, Any]) -> None:
    refused = opened(encode(an_event(**changes)))
    assert isinstance(refused, Refused)
    assert refused.category is DeadCategory.SECURITY
    assert "mallory" not in refused.reason


def test_each_handler_is_given_the_payload_it_asks_for() -> None:
    event = an_event()
    assert read(TYPED, event) == OrderPlaced(order_id=7)
    assert read(PLAIN, event) == {"order_id": 7}
    assert read(RAW, event) is event


@pytest.mark.parametrize(
    "payload",
    [
        b'{"order_id":NaN}',
        b'{"order_id":1,"order_id":2}',
        b"[" * 10_000 + b"]" * 10_000,
        b'{"order_id":"\\u0000"}',
        b'{"order_id":"\\ud800"}',
        b"\xff",
        b"",
        pickle.dumps({"order_id": 7}),
    ],
    ids=["nan", "duplicate key", "too deep", "nul", "half a character", "no utf-8", "empty", "pickle"],
)
def test_json_that_readers_disagree_on_reaches_no_handler(payload: bytes) -> None:
    for handler in (TYPED, PLAIN, RAW):
        refused = read(handler, an_event(payload=payload))
        assert isinstance(refused, Refused)
        assert refused.category is DeadCategory.INVALID


class _Exploding:
    def __reduce__(self) -> tuple[Any, ...]:
        return pytest.fail, ("it was unpickled",)


def test_a_pickle_is_handed_over_as_bytes_and_never_opened() -> None:
    """Celery CVE-2021-23727."""
    event = an_event(payload=pickle.dumps(_Exploding()), content_type="application/x-python-serialize")
    assert read(RAW, event) is event
    for handler in (TYPED, PLAIN):
        assert isinstance(read(handler, event), Refused)


@pytest.mark.parametrize("event_type", ["os.system", "consumer.api:Consumer", "builtins.eval"])
def test_a_type_that_names_code_is_a_name_and_nothing_else(event_type: str) -> None:
    """Celery CVE-2021-23727."""
    event = opened(encode(an_event(type=event_type)))
    assert isinstance(event, Event)
    assert consumer.registry.handlers_of(event.type) == ()


def test_a_payload_that_does_not_fit_is_told_by_field_and_kind_alone() -> None:
    payload = b'{"order_id":"canary-1","lines":{"canary-2":"canary-3"},"canary-4":1}'
    refused = read(TYPED, an_event(payload=payload))
    assert isinstance(refused, Refused)
    assert refused.reason == "payload: want a OrderPlaced, got order_id: int_parsing; lines: int_parsing"
    assert "canary" not in refused.reason


def test_a_newer_version_than_the_models_is_kept_for_a_newer_consumer() -> None:
    refused = read(TYPED, an_event(data_version=3))
    assert isinstance(refused, Refused)
    assert refused.category is DeadCategory.UNKNOWN_VERSION
    assert read(PLAIN, an_event(data_version=3)) == {"order_id": 7}


@pytest.mark.parametrize("payload", [b"[]", b"null", b"7"])
def test_json_that_is_no_object_is_refused_where_one_is_wanted(payload: bytes) -> None:
    assert isinstance(read(PLAIN, an_event(payload=payload)), Refused)


@pytest.mark.parametrize(
    "content_type", ["application/json; charset=utf-8", "application/vnd.shop+json", "Application/JSON"]
)
def test_json_goes_by_more_names_than_one(content_type: str) -> None:
    body = read_body(an_event(content_type=content_type))
    assert body == Body(is_json=True, value={"order_id": 7})


class Touchy(EventModel, type="orders.order.touchy"):
    order_id: int

    @field_validator("order_id")
    @classmethod
    def _look_up(cls, order_id: int) -> int:
        return {1: 1}[order_id]


@consumer.on(Touchy)
def touchy(event: Touchy) -> None: ...


def test_a_payload_that_makes_a_validator_raise_whatever_it_likes_is_parked_unparsed() -> None:
    """sidekiq/sidekiq#4859"""
    (handler,) = consumer.registry.handlers_of("orders.order.touchy")
    event = replace(an_event(), type="orders.order.touchy", payload=b'{"order_id":77}', data_version=1)
    assert read(handler, event) == Refused(
        category=DeadCategory.INVALID, reason="payload: want a Touchy, got KeyError from a validator of it"
    )
