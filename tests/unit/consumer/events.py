"""An event that a test needs and says little about."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final
from uuid import uuid4

from outbox.event import Event, Tier

NOW: Final = datetime(2026, 11, 29, tzinfo=UTC)


def an_event(**changes: Any) -> Event:
    """An order placed by the tenant *acme*, with *changes* to its fields."""
    event = Event(
        id=uuid4(),
        tenant="acme",
        tier=Tier.STANDARD,
        type="orders.order.placed",
        data_version=1,
        source="shop",
        content_type="application/json",
        payload=b'{"order_id":7}',
        time=NOW,
        ledger_time=NOW,
    )
    return replace(event, **changes)
