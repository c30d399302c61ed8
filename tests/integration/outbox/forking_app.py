"""An app that commits with a waker, forks, and commits in both; see test_waker."""

import os
import sys
import time

import sqlalchemy as sa
from sqlalchemy.orm import Session

from outbox import Outbox
from tests.integration.outbox.shop import OrderPlaced, new_outbox

# The word is sent by a daemon thread that ends with the process; nothing tells the app that it was.
_TELL_S = 1.0


def place(engine: sa.Engine, outbox: Outbox, order: int) -> None:
    with Session(engine) as session, session.begin():
        outbox.emit(session, OrderPlaced(order_id=order), tenant="acme")
    time.sleep(_TELL_S)


def run(url: str) -> None:
    engine = sa.create_engine(url)
    outbox = new_outbox(wake=True)
    place(engine, outbox, 1)
    child = os.fork()
    if not child:
        engine.dispose(close=False)
        place(engine, outbox, 2)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    place(engine, outbox, 3)
    sys.exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    run(sys.argv[1])
