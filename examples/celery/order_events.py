"""What the app tells of orders."""

from outbox import EventModel, Outbox

outbox = Outbox(source="/svc/shop")


class OrderPlaced(EventModel, type="orders.order.placed", version=1):
    """A customer has placed an order."""

    order_id: int
