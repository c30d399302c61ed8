"""Off-boarding on RabbitMQ: what is asked of it, on a connection that nobody else uses: some refusals close it."""

import contextlib
import time
from collections.abc import AsyncIterator
from typing import Final

from aiormq.channel import Channel
from aiormq.exceptions import ChannelNotFoundEntity
from pamqp import commands

from consumer.rabbitmq.connection import Address, PlainConnection, close, connect, open_channel, within
from outbox.errors import BrokerUnavailable
from outbox.naming import Lane
from outbox.topology import DIRECTORY_EXCHANGE, EVENTS_EXCHANGE
from outbox_admin.offboarding import State
from relay.announcement import announcement_message
from relay.ports import Announcement

# A quorum queue without a leader is said to be empty, after a quarter of a second. For the number of its consumers
# RabbitMQ 3.10 gives that of consumers which hold something or are attached, 4.0 to 4.2 that of messages held: with
# either, none means that nothing is in hand.
_PROMPT_S: Final = 0.2


class RabbitDesk:
    """``outbox_admin.offboarding.Desk`` on RabbitMQ."""

    def __init__(self, connection: PlainConnection, address: Address) -> None:
        """*connection* is that of ``opened``."""
        self._connection = connection
        self._address = address

    @staticmethod
    @contextlib.asynccontextmanager
    async def opened(address: Address) -> "AsyncIterator[RabbitDesk]":
        """One on a connection of its own to *address*."""
        connection = await connect(address)
        try:
            yield RabbitDesk(connection, address)
        finally:
            await close(connection)

    async def unbind(self, lane: Lane) -> None:
        """As the port says."""
        frame = commands.Queue.Unbind(queue=lane.queue, exchange=EVENTS_EXCHANGE, routing_key=lane.routing_key)
        await self._ask(frame, f"unbind queue {lane.queue}")

    async def state(self, queue: str) -> State | None:
        """As the port says."""
        channel = await open_channel(self._connection, self._address)
        began = time.monotonic()
        asking = channel.rpc(commands.Queue.Declare(queue=queue, passive=True))
        try:
            answer = await within(asking, self._address.rpc_timeout_s, f"queue {queue}")
        except BrokerUnavailable as error:
            if isinstance(error.__cause__, ChannelNotFoundEntity):
                return None
            raise
        took_s = time.monotonic() - began
        await self._close(channel)
        assert isinstance(answer, commands.Queue.DeclareOk)  # noqa: S101 - the one answer there is
        return State(
            ready=answer.message_count or 0,
            holders=answer.consumer_count or 0,
            what="consumers",
            is_sure=took_s < _PROMPT_S,
        )

    async def announce(self, announcement: Announcement, *, is_gone: bool) -> None:
        """As the port says."""
        message = announcement_message(announcement, is_gone=is_gone)
        channel = await open_channel(self._connection, self._address, has_confirms=True)
        publishing = channel.basic_publish(
            message.body,
            exchange=DIRECTORY_EXCHANGE,
            routing_key=announcement.lane.group,
            properties=commands.Basic.Properties(
                content_type=message.content_type,
                delivery_mode=2,
                message_id=message.message_id,
                message_type=message.type,
                app_id=message.app_id,
            ),
        )
        await within(publishing, self._address.rpc_timeout_s, f"tell group {announcement.lane.group}")
        await self._close(channel)

    async def delete(self, queue: str) -> None:
        """As the port says.

        Without conditions: a quorum queue knows none and the connection is closed for asking, and a classic one that
        is to be empty for it counts no message that is in hand.
        """
        await self._ask(commands.Queue.Delete(queue=queue), f"delete queue {queue}")

    async def _ask(self, frame: commands.Queue.Unbind | commands.Queue.Delete, what: str) -> None:
        channel = await open_channel(self._connection, self._address)
        try:
            await within(channel.rpc(frame), self._address.rpc_timeout_s, what)
        except BrokerUnavailable as error:
            if not isinstance(error.__cause__, ChannelNotFoundEntity):
                raise
        else:
            await self._close(channel)

    async def _close(self, channel: Channel) -> None:
        await within(channel.close(), self._address.rpc_timeout_s, "close channel")
