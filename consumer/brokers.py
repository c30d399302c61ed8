"""Which broker a process of this group talks to, as its settings say."""

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from pydantic import SecretStr

from consumer.ports import Broker, Exchange
from consumer.postgres.broker import postgres_broker
from consumer.postgres.exchange import PostgresExchange
from consumer.postgres.wire import Address as QueuesAddress
from consumer.rabbitmq import depths
from consumer.rabbitmq.broker import rabbitmq_broker
from consumer.rabbitmq.connection import Address
from consumer.rabbitmq.exchange import RabbitMQExchange
from outbox.queues import standing
from outbox.queues.session import connect, deadline
from outbox.shell import severed
from outbox.shell.setting_types import BrokerName

_ASK_S: Final = 30.0


class Places(Protocol):
    """The settings that say where queues are."""

    database_url: SecretStr
    broker: BrokerName
    rabbitmq_url: SecretStr | None
    broker_database_url: SecretStr | None


def broker_at(places: Places, *, name: str, lease_s: float) -> Broker:
    """The broker, not started. *lease_s*: how long what a dead process had in hand stays with it, in PostgreSQL."""
    if places.broker == "postgres" or places.rabbitmq_url is None:
        return postgres_broker(QueuesAddress(url=queues_url(places), name=name, lease_s=lease_s))
    return rabbitmq_broker(Address(url=places.rabbitmq_url.get_secret_value(), name=name))


def exchange_at(places: Places, *, name: str) -> Exchange:
    """The exchange, not connected."""
    if places.broker == "postgres" or places.rabbitmq_url is None:
        return PostgresExchange(QueuesAddress(url=queues_url(places), name=name))
    return RabbitMQExchange(Address(url=places.rabbitmq_url.get_secret_value(), name=name))


async def ready_at(places: Places, queues: Sequence[str], *, name: str) -> Mapping[str, int] | None:
    """How many messages of each of *queues* nobody has in hand; None where no broker is named.

    Raises:
        BrokerUnavailable: it cannot be reached, or does not answer.
    """
    if places.broker == "rabbitmq":
        if places.rabbitmq_url is None:
            return None
        return await depths.ready(Address(url=places.rabbitmq_url.get_secret_value(), name=name), queues)
    connection = await connect(queues_url(places), name=name, within_s=_ASK_S)
    try:
        async with deadline(connection, _ASK_S):
            return {queue: count.ready for queue, count in (await standing.counts(connection, queues)).items()}
    finally:
        await severed.close(connection)


def queues_url(places: Places) -> str:
    """The database that queues in PostgreSQL are in: the process's own unless another is named."""
    return (places.broker_database_url or places.database_url).get_secret_value()
