"""Payloads of other versions: raised step by step to what a handler takes, or left for code that can read them."""

from typing import Any

import pytest

from consumer import Consumer, DeadCategory
from consumer.decide.delivery import Body, Refused, read_body, read_payload
from outbox.errors import ConfigError
from outbox.event import Event, EventModel
from tests.unit.consumer.events import an_event

TYPE = "orders.order.placed"


class OrderPlaced(EventModel, type=TYPE, version=3):
    order_id: int
    currency: str
    lines: int = 0


class Second(EventModel, type=TYPE, version=2):
    order_id: int
    currency: str


@pytest.fixture
def consumer() -> Consumer:
    consumer = Consumer("billing")

    @consumer.on(OrderPlaced)
    def bill(event: OrderPlaced) -> None: ...

    @consumer.upcast(OrderPlaced, from_version=2)
    def with_lines(payload: dict[str, Any]) -> dict[str, Any]:
        payload["lines"] = payload.pop("rows", 0)
        return payload

    @consumer.upcast(TYPE, from_version=1)
    def with_currency(payload: dict[str, Any]) -> dict[str, Any]:
        return {**payload, "currency": "EUR"}

    return consumer


def read(consumer: Consumer, event: Event, *, handler: int = 0) -> object:
    consumer.registry.check()
    body = read_body(event)
    assert isinstance(body, Body)
    return read_payload(consumer.registry.handlers_of(TYPE)[handler], event, body)


def test_an_older_payload_passes_through_every_version_up_to_the_models(consumer: Consumer) -> None:
    first = an_event(data_version=1, payload=b'{"order_id":7,"rows":2}')
    assert read(consumer, first) == OrderPlaced(order_id=7, currency="EUR", lines=2)
    second = an_event(data_version=2, payload=b'{"order_id":7,"currency":"USD","rows":1}')
    assert read(consumer, second) == OrderPlaced(order_id=7, currency="USD", lines=1)
    third = an_event(data_version=3, payload=b'{"order_id":7,"currency":"USD","lines":5}')
    assert read(consumer, third) == OrderPlaced(order_id=7, currency="USD", lines=5)


def test_handlers_of_one_event_each_get_their_own_version_and_none_sees_anothers_changes(consumer: Consumer) -> None:
    @consumer.on(Second)
    def ship(event: Second) -> None: ...

    @consumer.on(TYPE)
    def count(payload: dict[str, Any]) -> None: ...

    @consumer.on(TYPE)
    def keep(event: Event) -> None: ...

    event = an_event(data_version=1, payload=b'{"order_id":7,"rows":2}')
    assert read(consumer, event) == OrderPlaced(order_id=7, currency="EUR", lines=2)
    assert read(consumer, event, handler=1) == Second(order_id=7, currency="EUR")
    assert read(consumer, event, handler=2) == {"order_id": 7, "currency": "EUR", "lines": 2}
    assert read(consumer, event, handler=3) is event


@pytest.mark.parametrize(("version", "handler"), [(4, 0), (3, 1), (4, 2)])
def test_a_version_that_a_handlers_code_does_not_know_is_left_for_code_that_does(
    consumer: Consumer, version: int, handler: int
) -> None:
    @consumer.on(Second)
    def ship(event: Second) -> None: ...

    @consumer.on(TYPE)
    def count(payload: dict[str, Any]) -> None: ...

    refused = read(consumer, an_event(data_version=version), handler=handler)
    assert isinstance(refused, Refused)
    assert refused.category is DeadCategory.UNKNOWN_VERSION
    assert refused.reason.endswith(f", got {version}")


def test_what_is_older_than_the_first_upcaster_is_an_unknown_version_too() -> None:
    consumer = Consumer("billing")

    @consumer.on(OrderPlaced)
    def bill(event: OrderPlaced) -> None: ...

    @consumer.upcast(OrderPlaced, from_version=2)
    def with_lines(payload: dict[str, Any]) -> dict[str, Any]:
        return payload

    refused = read(consumer, an_event(data_version=1))
    assert isinstance(refused, Refused)
    assert refused.reason == "data version: want 2 to 3, got 1"


def test_without_upcasters_an_older_payload_is_given_as_it_is() -> None:
    consumer = Consumer("billing")

    @consumer.on(OrderPlaced)
    def bill(event: OrderPlaced) -> None: ...

    event = an_event(data_version=1, payload=b'{"order_id":7,"currency":"EUR"}')
    assert read(consumer, event) == OrderPlaced(order_id=7, currency="EUR")


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        (None, "with_nothing, from version 2: returned a NoneType"),
        ({"order_id": float("nan")}, "payload, after its upcasters: "),
        ({"order_id": 7}, "want a OrderPlaced, got currency: missing"),
        (KeyError("canary"), "with_nothing, from version 2: raised KeyError"),
    ],
)
def test_an_upcaster_that_fails_makes_the_payload_invalid_and_tells_nothing_of_it(returned: Any, says: str) -> None:
    consumer = Consumer("billing")

    @consumer.on(OrderPlaced)
    def bill(event: OrderPlaced) -> None: ...

    @consumer.upcast(OrderPlaced, from_version=2)
    def with_nothing(payload: dict[str, Any]) -> dict[str, Any]:
        if isinstance(returned, Exception):
            raise returned
        return returned  # type: ignore[no-any-return]

    refused = read(consumer, an_event(data_version=2, payload=b'{"order_id":"canary"}'))
    assert isinstance(refused, Refused)
    assert refused.category is DeadCategory.INVALID
    assert says in refused.reason
    assert "canary" not in refused.reason


def upcast(payload: dict[str, Any]) -> dict[str, Any]:
    return payload


async def slow(payload: dict[str, Any]) -> dict[str, Any]:
    return payload


@pytest.mark.parametrize(
    ("versions", "says"),
    [
        ((1,), "want one from each version from 1 to 2, got none from 2"),
        ((2, 2), "want one from version 2, got a second, upcast"),
        ((2, 3), "want them to lead up to version 3, which handlers take, got upcast from version 3 to 4"),
        ((1, 4), "got upcast from version 4 to 5"),
        ((0,), "want a from_version of 1 or more, got 0"),
        ((True,), "want a from_version of 1 or more, got True"),
    ],
)
def test_upcasters_that_lead_nowhere_are_one_sentence_before_anything_starts(
    versions: tuple[int, ...], says: str
) -> None:
    consumer = Consumer("billing")

    @consumer.on(OrderPlaced)
    def bill(event: OrderPlaced) -> None: ...

    with pytest.raises(ConfigError) as raised:  # noqa: PT012 - some are refused at once, some when it starts
        for version in versions:
            consumer.upcast(OrderPlaced, from_version=version)(upcast)
        consumer.registry.check()
    assert says in str(raised.value)
    assert len(str(raised.value).splitlines()) == 1


def test_upcasters_of_what_nobody_handles_and_functions_that_cannot_be_one_are_refused() -> None:
    consumer = Consumer("billing")
    with pytest.raises(ConfigError, match="want a function that is not async"):
        consumer.upcast(OrderPlaced, from_version=1)(slow)  # type: ignore[type-var]
    with pytest.raises(ConfigError, match="want one parameter, the payload, got 0"):
        consumer.upcast(OrderPlaced, from_version=1)(_nothing)  # type: ignore[type-var]
    with pytest.raises(ConfigError, match="want an EventModel or a type's name, got 7"):
        consumer.upcast(7, from_version=1)(upcast)  # type: ignore[arg-type]
    consumer.upcast(OrderPlaced, from_version=1)(upcast)
    with pytest.raises(ConfigError, match="want a type that has a handler here"):
        consumer.registry.check()


def _nothing() -> dict[str, Any]:
    return {}
