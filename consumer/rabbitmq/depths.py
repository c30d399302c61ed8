"""How much is ready in queues: asked once, for people, on a connection that ends with the answer."""

from collections.abc import Mapping, Sequence

from aiormq.exceptions import ChannelNotFoundEntity
from pamqp import commands

from consumer.rabbitmq.connection import Address, close, connect, open_channel, within
from outbox.errors import BrokerUnavailable


async def ready(address: Address, queues: Sequence[str]) -> Mapping[str, int]:
    """How many messages of each queue nobody has in hand. A queue that is not there is left out.

    Raises:
        BrokerUnavailable: the broker cannot be reached, or one of the queues does not answer within the deadline.
    """
    found: dict[str, int] = {}
    connection = await connect(address)
    try:
        channel = await open_channel(connection, address)
        for queue in queues:
            asking = channel.rpc(commands.Queue.Declare(queue=queue, passive=True))
            try:
                answer = await within(asking, address.rpc_timeout_s, f"queue {queue}")
            except BrokerUnavailable as error:
                if not isinstance(error.__cause__, ChannelNotFoundEntity):
                    raise
                channel = await open_channel(connection, address)  # the broker closed the one that asked
                continue
            assert isinstance(answer, commands.Queue.DeclareOk)  # noqa: S101 - the one answer there is
            found[queue] = answer.message_count or 0
    finally:
        await close(connection)
    return found
