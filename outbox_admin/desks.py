"""What is asked of the broker that the environment names, when queues are to go."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from consumer.brokers import queues_url
from consumer.rabbitmq.connection import Address
from outbox_admin.offboarding import Desk
from outbox_admin.offboarding_postgres import PostgresDesk
from outbox_admin.offboarding_rabbitmq import RabbitDesk
from outbox_admin.settings import broker_url, settings


def desk(name: str) -> Callable[[], AbstractAsyncContextManager[Desk]]:
    """What opens one, by which *name* the broker knows it. Raises ConfigError if the environment names no broker."""
    found = settings()
    if found.broker == "postgres":
        return lambda: PostgresDesk.opened(queues_url(found))
    address = Address(url=broker_url(), name=name)
    return lambda: RabbitDesk.opened(address)
