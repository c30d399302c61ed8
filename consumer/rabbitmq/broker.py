"""The broker port on RabbitMQ: one plain AMQP 0-9-1 connection in a thread of its own, opened again whenever lost."""

from consumer.rabbitmq.connection import Address
from consumer.rabbitmq.wire import Wire
from consumer.threaded.broker import ThreadedBroker


def rabbitmq_broker(address: Address, *, shared_channels: int = 4) -> ThreadedBroker:
    """``consumer.ports.Broker`` at *address*.

    Args:
        shared_channels: carry all queues' base consumers; another carries the extra ones.
    """
    return ThreadedBroker(address.name, lambda tell: Wire(address, shared_channels=shared_channels, tell=tell))
