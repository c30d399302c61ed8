"""Events and stored messages for tests of what waits in the consumer's hands."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

from consumer.store import stored
from consumer.store.stored import Stored
from consumer.store.work import NewWork, Reason
from outbox import wire
from outbox.event import Event, Ordering, Tier, new_event_id

GROUP = "billing"
HORIZON = timedelta(days=14)


def an_event(*, tenant: str = "acme", tier: Tier = Tier.STANDARD, payload: bytes = b'{"order_id":1}') -> Event:
    """An event without an ordering key, of this moment."""
    now = datetime.now(UTC)
    return Event(
        id=new_event_id(),
        tenant=tenant,
        tier=tier,
        type="orders.order.placed",
        data_version=1,
        source="shop",
        content_type="application/json",
        payload=payload,
        time=now,
        ledger_time=now,
    )


def keyed(
    number: int, *, key: str = "order-1", first: int = 1, previous_time: datetime | None = None, tenant: str = "acme"
) -> Event:
    """The event *number* of *key*, whose first is *first*; its predecessor is of a minute ago unless given."""
    event = an_event(tenant=tenant)
    is_first = number == first
    before = previous_time or event.ledger_time - timedelta(minutes=1)
    return replace(
        event,
        ordering=Ordering(key=key, number=number, is_first=is_first, previous_time=None if is_first else before),
    )


def stored_of(event: Event) -> Stored:
    """*event* as it came by its lane."""
    return stored.of_event(event, wire.encode(event))


def new_work(
    event: Event,
    *,
    reason: Reason = Reason.RETRY,
    delay_s: float = 0.0,
    attempts: int = 1,
    handlers: tuple[str, ...] | None = None,
    group: str = GROUP,
    event_id: UUID | None = None,
) -> NewWork:
    """A work row to write for *event*."""
    return NewWork(
        group=group,
        event_id=event_id or event.id,
        stored=stored_of(event),
        reason=reason,
        delay_s=delay_s,
        attempts=attempts,
        handlers=handlers,
    )
