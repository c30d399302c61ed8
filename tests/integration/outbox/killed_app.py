"""An app that commits orders with their events as fast as it can, until it is killed; see test_killed_app."""

import sys
from functools import partial

import sqlalchemy as sa
from sqlalchemy.orm import Session

from tests.integration.outbox.shop import Order, OrderPlaced, new_outbox

EVENTS_PER_ORDER = 5


def placed(order: Order) -> OrderPlaced:
    return OrderPlaced(order_id=order.id)


def run(url: str) -> None:
    engine = sa.create_engine(url)
    outbox = new_outbox()
    number = 0
    while True:
        number += 1
        with Session(engine) as session, session.begin():
            order = Order(item=f"item {number}")
            session.add(order)
            for _ in range(EVENTS_PER_ORDER):
                outbox.emit(session, partial(placed, order), tenant="acme", ordering_key="k")
        print(order_id_of(engine, number), flush=True)


def order_id_of(engine: sa.Engine, number: int) -> int:
    with Session(engine) as session:
        return session.scalars(sa.select(Order.id).where(Order.item == f"item {number}")).one()


if __name__ == "__main__":
    run(sys.argv[1])
