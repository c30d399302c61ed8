"""The broker port on queues in PostgreSQL: one connection in a thread of its own, opened again whenever lost.

A handler that burns CPU on the engine's loop takes turns with that thread, and so never starves its lease.
"""

from consumer.postgres.wire import Address, Wire
from consumer.threaded.broker import ThreadedBroker


def postgres_broker(address: Address) -> ThreadedBroker:
    """``consumer.ports.Broker`` at *address*."""
    return ThreadedBroker(address.name, lambda tell: Wire(address, tell=tell))
