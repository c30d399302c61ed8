"""Any event survives the wire, and any message is read or refused."""

from typing import Any

from cloudevents.core.bindings.rabbitmq import RabbitMQMessage, from_binary, to_binary
from cloudevents.core.formats.json import JSONFormat
from hypothesis import given
from hypothesis import strategies as st

from outbox import wire
from outbox.errors import Unreadable
from outbox.event import Event
from tests.support.events import events

_SHORT_BYTES_MAX = 255
_OURS = [
    f"ce-{name}"
    for name in (
        "id",
        "time",
        "ledgertime",
        "tenantid",
        "tier",
        "dataversion",
        "sequence",
        "partitionkey",
        "previoustime",
        "specversion",
        "type",
        "source",
    )
]


@given(events())
def test_an_event_is_read_back_as_it_was(event: Event) -> None:
    assert wire.decode(wire.encode(event)) == event


@given(events())
def test_a_message_holds_only_what_amqp_can_carry(event: Event) -> None:
    """RabbitMQ's ``CC`` and ``BCC`` headers add routing keys; headers in ``x-`` are the broker's."""
    message = wire.encode(event)

    assert all(name.startswith("ce-") or name in {"traceparent", "tracestate"} for name in message.headers)
    assert all(isinstance(value, str) for value in message.headers.values())
    for short in (message.message_id, message.type, message.app_id, message.content_type, *message.headers):
        assert len(short.encode()) <= _SHORT_BYTES_MAX
    assert message.body == event.payload


@given(events())
def test_the_cloudevents_package_reads_and_rewrites_every_attribute(event: Event) -> None:
    message = wire.encode(event)
    headers = {name: str(value) for name, value in message.headers.items()}

    read = from_binary(
        RabbitMQMessage(headers=headers, content_type=message.content_type, body=message.body), JSONFormat()
    )
    attributes = read.get_attributes()
    assert (attributes["id"], attributes["type"], attributes["source"]) == (str(event.id), event.type, event.source)
    assert (attributes["time"], attributes["datacontenttype"]) == (event.time, event.content_type)
    assert attributes["tenantid"] == event.tenant

    rewritten = to_binary(read, JSONFormat())
    again = wire.Message(
        message_id=message.message_id,
        type=message.type,
        app_id=message.app_id,
        content_type=str(rewritten.content_type),
        headers=rewritten.headers,
        body=message.body,
    )
    assert wire.decode(again) == event


values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.binary(max_size=30),
    st.text(max_size=30),
    st.lists(st.integers(), max_size=2),
    st.sampled_from(["9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00+14:00", "1" * 20, "-1", "٣", "2026-01-01"]),
)


@given(events(), st.dictionaries(st.sampled_from(_OURS), values, max_size=3), st.sets(st.sampled_from(_OURS)))
def test_a_damaged_message_is_refused_or_read(event: Event, changed: dict[str, Any], dropped: set[str]) -> None:
    message = wire.encode(event)
    headers = {name: value for name, value in message.headers.items() if name not in dropped} | changed
    damaged = wire.Message(
        message_id=message.message_id,
        type=message.type,
        app_id=message.app_id,
        content_type=message.content_type,
        headers=headers,
        body=message.body,
    )
    try:
        read = wire.decode(damaged)
    except Unreadable:
        return
    assert "\0" not in read.tenant
    assert read.ordering is None or read.ordering.number < 2**63
