"""The exchange port on RabbitMQ: a publishing connection with confirms, opened when it is first needed.

It is apart from the consuming one: under an alarm the broker stops reading a connection that publishes, and
acks on it would wait as long.
"""

import asyncio
from dataclasses import dataclass, field

from aiormq.channel import Channel
from aiormq.exceptions import ChannelPreconditionFailed, DeliveryError
from pamqp import commands

from consumer.rabbitmq.connection import Address, PlainConnection, close, close_channel, connect, open_channel, within
from outbox import topology
from outbox.errors import BrokerUnavailable, QueueMismatch
from outbox.wire import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class _Open:
    """One connection, its publishing channel, and the exchanges that are known to stand."""

    connection: PlainConnection
    channel: Channel
    declared: set[str] = field(default_factory=set)

    @property
    def is_usable(self) -> bool:
        return not self.connection.is_closed and not self.channel.is_closed


class RabbitMQExchange:
    """``consumer.ports.Exchange`` with what a group's start needs beside it. It lives on one event loop."""

    def __init__(self, address: Address, *, confirm_timeout_s: float = 10.0) -> None:
        self._address = address
        self._confirm_timeout_s = confirm_timeout_s
        self._open: _Open | None = None
        self._opening = asyncio.Lock()

    async def declare_group(self, group: str, kind: topology.QueueKind) -> None:
        """Make the exchanges, and the queues that *group* reads beside its lanes: whoever starts first makes them.

        Raises:
            QueueMismatch: one of them exists with other arguments, or as another kind.
            BrokerUnavailable: the broker cannot be reached, or refuses.
        """
        opened = await self._ready()
        channel = await open_channel(opened.connection, self._address)
        for exchange in topology.EXCHANGES:
            await self._ask(channel, _declare_exchange(exchange), f"declare exchange {exchange}")
        for queue in topology.group_queues(group, kind):
            declare = commands.Queue.Declare(queue=queue.name, durable=True, arguments=dict(queue.arguments))
            await self._ask(channel, declare, f"declare queue {queue.name} as {kind}")
            bind = commands.Queue.Bind(queue=queue.name, exchange=queue.exchange, routing_key=queue.routing_key)
            await self._ask(channel, bind, f"bind queue {queue.name}")
        await close_channel(channel)

    async def publish(self, exchange: str, routing_key: str, message: Message) -> None:
        """As the port says; a message that no queue is bound for is confirmed too."""
        opened = await self._ready()
        try:
            async with self._opening:
                if exchange not in opened.declared:
                    declaring = opened.channel.rpc(_declare_exchange(exchange))
                    await within(declaring, self._address.rpc_timeout_s, f"declare exchange {exchange}")
                    opened.declared.add(exchange)
            publishing = opened.channel.basic_publish(
                message.body, exchange=exchange, routing_key=routing_key, properties=_properties(message), wait=False
            )
            await within(publishing, self._confirm_timeout_s, f"publish to {exchange}")
        except BrokerUnavailable as error:
            # What was not confirmed is unknown, and under an alarm it would be published later after all: a
            # connection that left one unconfirmed is given up, so that a retry makes a second copy at most.
            if not isinstance(error.__cause__, DeliveryError):
                await self._give_up(opened)
            raise

    async def close(self) -> None:
        """As the port says."""
        if self._open is not None:
            await self._give_up(self._open)

    async def _ready(self) -> _Open:
        async with self._opening:
            if self._open is None or not self._open.is_usable:
                if self._open is not None:
                    await close(self._open.connection)
                connection = await connect(self._address)
                channel = await open_channel(connection, self._address, has_confirms=True)
                self._open = _Open(connection=connection, channel=channel)
            return self._open

    async def _give_up(self, opened: _Open) -> None:
        if self._open is opened:
            self._open = None
        await close(opened.connection)

    async def _ask(
        self,
        channel: Channel,
        frame: commands.Exchange.Declare | commands.Queue.Declare | commands.Queue.Bind,
        what: str,
    ) -> None:
        try:
            await within(channel.rpc(frame), self._address.rpc_timeout_s, what)
        except BrokerUnavailable as error:
            if isinstance(error.__cause__, ChannelPreconditionFailed):
                raise QueueMismatch(str(error)) from error
            raise


def _declare_exchange(exchange: str) -> commands.Exchange.Declare:
    return commands.Exchange.Declare(exchange=exchange, exchange_type=topology.EXCHANGES[exchange], durable=True)


def _properties(message: Message) -> commands.Basic.Properties:
    return commands.Basic.Properties(
        message_id=message.message_id,
        message_type=message.type,
        app_id=message.app_id,
        content_type=message.content_type,
        delivery_mode=2,
        headers={name: _header(value) for name, value in message.headers.items()},
    )


def _header(value: object) -> bool | int | float | str | bytearray | None:
    """Ours are texts; a stranger's message may hold what AMQP's tables can and the client cannot write again."""
    if value is None or isinstance(value, bool | int | float | str | bytearray):
        return value
    return bytearray(value) if isinstance(value, bytes) else str(value)
