"""What follows from an order, while Celery's workers run side by side.

    outbox-consumer run handlers:consumer

Both handlers are leased: what a task does is outside of the ledger's transaction. So it runs at least once, as it
always did with Celery: a crash after the effect and before its completion is written runs it again.
"""

from consumer import Consumer, Context
from order_events import OrderPlaced
from tasks import book, send_receipt

consumer = Consumer("default")


@consumer.on(OrderPlaced, ledger="leased")
def hand_over(event: OrderPlaced, ctx: Context) -> None:
    """First step: the task runs where it always ran, and is certain to be sent.

    A hand-over that is repeated has the same id, for whoever reads logs; Celery itself runs both.
    """
    send_receipt.apply_async((event.order_id,), task_id=ctx.idempotency_key)


@consumer.on(OrderPlaced, ledger="leased")
def call(event: OrderPlaced) -> None:
    """Second step, task by task: the function itself runs here, and needs no worker. What it raises is retried."""
    book(event.order_id)
