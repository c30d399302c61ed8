"""How an event is read from a table: its columns, in one order, and the event that a row of them is."""

from typing import Any, Final, LiteralString

from outbox.event import Event, Ordering, Tier

TIERS: Final = tuple(Tier)

#: What ``event_of`` unpacks, of a table called ``e``.
EVENT_COLUMNS: Final[LiteralString] = """
    e.id, e.tenant, e.tier, e.type, e.data_version, e.source, e.content_type, e.payload, e.emitted_at, e.ledger_at,
    e.ordering_key, e.key_number, e.key_first, e.key_previous_at,
    e.idempotency_key, e.actor, e.causation_id, e.correlation_id, e.traceparent, e.tracestate"""


def event_of(row: tuple[Any, ...]) -> Event:
    """The event in a row of ``EVENT_COLUMNS``; times are in UTC because the session is."""
    (
        event_id,
        tenant,
        tier,
        event_type,
        data_version,
        source,
        content_type,
        payload,
        emitted_at,
        ledger_at,
        ordering_key,
        key_number,
        key_first,
        key_previous_at,
        idempotency_key,
        actor,
        causation_id,
        correlation_id,
        traceparent,
        tracestate,
    ) = row
    return Event(
        id=event_id,
        tenant=tenant,
        tier=TIERS[tier],
        type=event_type,
        data_version=data_version,
        source=source,
        content_type=content_type,
        payload=payload,
        time=emitted_at,
        ledger_time=ledger_at,
        ordering=None
        if ordering_key is None
        else Ordering(key=ordering_key, number=key_number, is_first=bool(key_first), previous_time=key_previous_at),
        idempotency_key=idempotency_key,
        actor=actor,
        causation_id=causation_id,
        correlation_id=correlation_id,
        traceparent=traceparent,
        tracestate=tracestate,
    )
