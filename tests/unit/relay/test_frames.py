"""Frames are marshalled by hand; the bytes are those that pamqp makes of the wire's own message."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands, frame
from pamqp.base import Frame
from pamqp.body import ContentBody
from pamqp.header import ContentHeader

from outbox.event import Event, Ordering, Tier
from outbox.naming import Lane
from outbox.topology import EVENTS_EXCHANGE
from outbox.wire import Message, decode, encode
from relay.rabbitmq.frames import FRAME_OVERHEAD_BYTES, Marshaller, TooLarge

CHANNEL = 3
FRAME_BYTES_MAX = 4096

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40)
TIMES = st.datetimes(
    min_value=datetime(1970, 1, 1),  # noqa: DTZ001 Hypothesis wants it naive
    max_value=datetime(9000, 1, 1),  # noqa: DTZ001
    timezones=st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=30)), UTC]),
)
ORDERINGS = st.builds(
    Ordering,
    key=TEXT,
    number=st.integers(0, 2**62),
    is_first=st.booleans(),
    previous_time=st.none() | TIMES,
)
EVENTS = st.builds(
    Event,
    id=st.uuids(),
    tenant=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=200),
    tier=st.sampled_from(Tier),
    type=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,199}", fullmatch=True),
    data_version=st.integers(1, 2**31 - 1),
    source=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=300),
    content_type=st.sampled_from(["application/json", "application/cloudevents+json; charset=utf-8", ""]),
    payload=st.binary(max_size=200) | st.integers(FRAME_BYTES_MAX - 20, 3 * FRAME_BYTES_MAX).map(bytes),
    time=TIMES,
    ledger_time=TIMES,
    ordering=st.none() | ORDERINGS,
    idempotency_key=st.none() | TEXT,
    actor=st.none() | TEXT,
    causation_id=st.none() | TEXT,
    correlation_id=st.none() | TEXT,
    traceparent=st.none() | TEXT,
    tracestate=st.none() | TEXT,
)
LANES = st.builds(
    Lane,
    group=st.from_regex(r"[a-z0-9][a-z0-9_-]{0,62}", fullmatch=True),
    tier=st.sampled_from(Tier),
    tenant=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=200),
)

EVENT = Event(
    id=UUID("01937a5e-0000-7000-8000-000000000001"),
    tenant="acme",
    tier=Tier.STANDARD,
    type="order.placed",
    data_version=1,
    source="shop",
    content_type="application/json",
    payload=b"{}",
    time=datetime(2026, 11, 29, 12, tzinfo=UTC),
    ledger_time=datetime(2026, 11, 29, 12, tzinfo=UTC),
)
LANE = Lane(group="billing", tier=Tier.STANDARD, tenant="acme")


def marshaller(*, frame_bytes_max: int = FRAME_BYTES_MAX, body_bytes_max: int = 1_000_000) -> Marshaller:
    return Marshaller(channel=CHANNEL, frame_bytes_max=frame_bytes_max, body_bytes_max=body_bytes_max)


def as_pamqp_writes(lane: Lane, event: Event) -> bytes:
    message = encode(event)
    properties = commands.Basic.Properties(
        content_type=message.content_type,
        headers={name: str(value) for name, value in message.headers.items()},
        delivery_mode=2,
        message_id=message.message_id,
        message_type=message.type,
        app_id=message.app_id,
    )
    size = FRAME_BYTES_MAX - FRAME_OVERHEAD_BYTES
    parts: list[Frame | ContentHeader | ContentBody] = [
        commands.Basic.Publish(exchange=EVENTS_EXCHANGE, routing_key=lane.routing_key, mandatory=True),
        ContentHeader(body_size=len(message.body), properties=properties),
        *(ContentBody(message.body[start : start + size]) for start in range(0, len(message.body), size)),
    ]
    return b"".join(frame.marshal(part, CHANNEL) for part in parts)


def message_in(published: bytes) -> Message:
    """What a broker reads out of *published*."""
    body = b""
    properties = commands.Basic.Properties()
    while published:
        consumed, _, part = frame.unmarshal(published)
        published = published[consumed:]
        if isinstance(part, ContentHeader):
            properties = part.properties
        if isinstance(part, ContentBody):
            body += part.value
    return Message(
        message_id=properties.message_id or "",
        type=properties.message_type or "",
        app_id=properties.app_id or "",
        content_type=properties.content_type or "",
        headers=dict(properties.headers or {}),
        body=body,
    )


@given(lane=LANES, event=EVENTS)
def test_the_bytes_are_those_that_pamqp_makes_of_the_wires_message(lane: Lane, event: Event) -> None:
    published = marshaller().publish(lane, event)

    assert published == as_pamqp_writes(lane, event)


@given(lane=LANES, event=EVENTS)
def test_what_is_published_decodes_to_the_same_event(lane: Lane, event: Event) -> None:
    published = marshaller().publish(lane, event)

    assert isinstance(published, bytes)
    assert decode(message_in(published)) == event


@given(lane=LANES, events=st.lists(EVENTS, min_size=2, max_size=6))
def test_what_is_kept_between_events_never_leaks_into_another(lane: Lane, events: list[Event]) -> None:
    one = marshaller()

    assert [one.publish(lane, event) for event in events * 2] == [as_pamqp_writes(lane, event) for event in events * 2]


def test_an_app_can_name_no_header_and_so_route_nothing_elsewhere() -> None:
    # RabbitMQ reads the headers CC and BCC as more routing keys; text in every field an app gives stays a value.
    evil = replace(
        EVENT,
        source="CC",
        tenant="BCC",
        actor="CC",
        idempotency_key="CC",
        causation_id="BCC",
        tracestate="CC",
        ordering=Ordering(key="CC", number=1, is_first=True, previous_time=None),
    )
    published = marshaller().publish(LANE, evil)

    assert isinstance(published, bytes)
    names = set(message_in(published).headers)
    assert not {name for name in names if not name.startswith("ce-")} - {"traceparent", "tracestate"}


def test_a_payload_over_the_limit_is_refused_with_both_sizes() -> None:
    refused = marshaller(body_bytes_max=10).publish(LANE, replace(EVENT, payload=bytes(11)))

    assert refused == TooLarge(reason="payload: want at most 10 bytes, got 11")


def test_a_payload_at_the_limit_is_published() -> None:
    assert isinstance(marshaller(body_bytes_max=10).publish(LANE, replace(EVENT, payload=bytes(10))), bytes)


@pytest.mark.parametrize("excess", [0, 1])
def test_headers_go_up_to_exactly_one_frame(excess: int) -> None:
    # A header frame over the agreed size closes the whole connection (501 FRAME_ERROR).
    bare = marshaller().publish(LANE, replace(EVENT, actor=""))
    assert isinstance(bare, bytes)
    at = bare.index(b"\xce") + 1  # where the header frame begins
    used = int.from_bytes(bare[at + 3 : at + 7]) + FRAME_OVERHEAD_BYTES

    published = marshaller().publish(LANE, replace(EVENT, actor="a" * (FRAME_BYTES_MAX - used + excess)))

    assert isinstance(published, TooLarge) is bool(excess)


def test_a_content_type_that_no_property_holds_is_refused() -> None:
    refused = marshaller().publish(LANE, replace(EVENT, content_type="x" * 256))

    assert refused == TooLarge(reason="content type: want at most 255 bytes, got 256")


def test_a_connection_without_a_frame_limit_still_splits_bodies() -> None:
    published = marshaller(frame_bytes_max=0).publish(LANE, replace(EVENT, payload=bytes(300_000)))

    assert isinstance(published, bytes)
    assert message_in(published).body == bytes(300_000)


def test_an_empty_body_has_no_body_frame() -> None:
    published = marshaller().publish(LANE, replace(EVENT, payload=b""))

    assert published == as_pamqp_writes(LANE, replace(EVENT, payload=b""))
