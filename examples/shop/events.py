"""What the shop tells the world: the payloads, and where they go."""

from outbox import EventModel, Outbox, Tier

outbox = Outbox(source="/svc/shop")


class OrderPlaced(EventModel, type="orders.order.placed", version=1):
    """A customer has placed an order."""

    order_id: int
    customer: str
    total_cents: int


class InvoiceIssued(EventModel, type="billing.invoice.issued", version=1, tier=Tier.INTERACTIVE):
    """An order was billed."""

    order_id: int
    customer: str
    total_cents: int
