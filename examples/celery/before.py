"""How the app places an order today.

python before.py ann@example.com
"""

import sys

from sqlalchemy.orm import Session

from shop_tables import Order, engine
from tasks import book, send_receipt


def place(customer: str) -> int:
    """Commit an order, then send its tasks: two writes to two systems."""
    with Session(engine) as session, session.begin():
        order = Order(customer=customer)
        session.add(order)
        session.flush()
        order_id = order.id
    # Whoever is stopped here (a crash, a deploy, a broker that is away) has an order without tasks, for ever. Sent
    # before the commit, they would run for orders that never were.
    send_receipt.delay(order_id)
    book.delay(order_id)
    return order_id


if __name__ == "__main__":
    print(place(sys.argv[1]))
