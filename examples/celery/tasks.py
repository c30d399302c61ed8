"""The Celery app, as it was: two tasks, each of which may run twice, as any task may.

celery -A tasks worker --concurrency 1 --loglevel info
"""

import os

from celery import Celery
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from shop_tables import Booking, Receipt, engine

app = Celery("shop", broker=os.environ["CELERY_BROKER_URL"])
# Without it, `delay` returns before the broker has the task, and nobody hears of one that is lost on the way.
app.conf.broker_transport_options = {"confirm_publish": True}
app.conf.task_acks_late = True


@app.task
def send_receipt(order_id: int) -> None:
    """Give the customer a receipt; a second run changes nothing."""
    with Session(engine) as session, session.begin():
        session.execute(insert(Receipt).values(order_id=order_id).on_conflict_do_nothing())


@app.task
def book(order_id: int) -> None:
    """Enter the order in the accounts; a second run changes nothing."""
    with Session(engine) as session, session.begin():
        session.execute(insert(Booking).values(order_id=order_id).on_conflict_do_nothing())
