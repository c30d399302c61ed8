"""Fairpost for apps: commit business rows and outbox events in one SQLAlchemy transaction.

outbox = Outbox(source="/svc/orders")

class OrderPlaced(EventModel, type="orders.order.placed", version=1):
    order_id: int

with tenant_scope("acme"), Session.begin() as session:
    session.add(order)
    outbox.emit(session, lambda: OrderPlaced(order_id=order.id))
"""

from typing import TYPE_CHECKING, Final

from outbox.lazy import lazily

# Each name is imported when it is first used: a command that prints its help needs neither SQLAlchemy nor pydantic.
if TYPE_CHECKING:
    from outbox.errors import (
        ConfigError,
        IdempotencyConflict,
        InvalidEvent,
        OutboxError,
        PayloadTooLarge,
        SchemaMissing,
        TenantRequired,
    )
    from outbox.event import Event, EventModel, Tier
    from outbox.pending import Handle
    from outbox.session import Outbox
    from outbox.tenancy import bind_tenant, current_tenant, tenant_scope
    from outbox.trail import Trail, current_trail, trail_scope

__all__ = [
    "ConfigError",
    "Event",
    "EventModel",
    "Handle",
    "IdempotencyConflict",
    "InvalidEvent",
    "Outbox",
    "OutboxError",
    "PayloadTooLarge",
    "SchemaMissing",
    "TenantRequired",
    "Tier",
    "Trail",
    "bind_tenant",
    "current_tenant",
    "current_trail",
    "tenant_scope",
    "trail_scope",
]

_HOMES: Final = {
    "ConfigError": "outbox.errors",
    "Event": "outbox.event",
    "EventModel": "outbox.event",
    "Handle": "outbox.pending",
    "IdempotencyConflict": "outbox.errors",
    "InvalidEvent": "outbox.errors",
    "Outbox": "outbox.session",
    "OutboxError": "outbox.errors",
    "PayloadTooLarge": "outbox.errors",
    "SchemaMissing": "outbox.errors",
    "TenantRequired": "outbox.errors",
    "Tier": "outbox.event",
    "Trail": "outbox.trail",
    "bind_tenant": "outbox.tenancy",
    "current_tenant": "outbox.tenancy",
    "current_trail": "outbox.trail",
    "tenant_scope": "outbox.tenancy",
    "trail_scope": "outbox.trail",
}
__getattr__, __dir__ = lazily(__name__, _HOMES)
