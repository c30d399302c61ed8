"""Events to lanes that may take nothing: each goes by a channel on which nothing else waits behind it.

The first publish of a channel to a quorum queue waits for the queue's leader, for more than a minute if there is
none, though such a queue may answer a declaration. A channel whose event was settled serves another lane's.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from aiormq import Connection
from aiormq.abc import AbstractChannel
from aiormq.exceptions import ChannelClosed, ChannelPreconditionFailed, DeliveryError
from pamqp.commands import Basic

from outbox.shell.amqp import words
from outbox.topology import EVENTS_EXCHANGE
from outbox.wire import encode
from relay.ports import Category, Confirmed, Failed, Nacked, Outgoing, Settlement
from relay.rabbitmq.caution import Refusal, refusal
from relay.rabbitmq.client import properties_of, translated

_CONTENT_TOO_LARGE: Final = 311
_PRECONDITION_FAILED: Final = 406
_AT_ONCE: Final = 32
# A queue that is well answers in milliseconds: who has waited so long waits in nobody's way from then on.
_PROMPT_S: Final = 1.0
# RabbitMQ gives a connection 2,047 channels.
_CHANNELS_MAX: Final = 1_000


class Apart:
    """Publishes on channels of *connection* beside the publishing channel.

    What becomes of each event is told to *settled*, once; when *lost* was told why, what is unsettled is unknown.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        settled: Callable[[Outgoing, Settlement | Refusal], None],
        lost: Callable[[str], None],
    ) -> None:
        self._connection = connection
        self._settled = settled
        self._lost = lost
        self._idle: list[AbstractChannel] = []
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._room = asyncio.Semaphore(_CHANNELS_MAX)
        self._sending: dict[asyncio.Task[None], Outgoing] = {}

    def unsettled(self) -> Sequence[Outgoing]:
        """What the broker has not answered."""
        return tuple(self._sending.values())

    def send(self, outgoing: Outgoing) -> None:
        """Publish *outgoing*, soon."""
        task = asyncio.get_running_loop().create_task(self._send(outgoing))
        self._sending[task] = outgoing
        task.add_done_callback(self._ended)

    async def close(self) -> None:
        """Forget what is unsettled. The channels go with the connection."""
        sending = list(self._sending)
        for task in sending:
            task.cancel()
        await asyncio.gather(*sending, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._sending.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._lost(words(error))

    async def _send(self, outgoing: Outgoing) -> None:
        with translated("publishing apart"):
            async with self._room:
                async with self._turns:
                    channel = self._idle.pop() if self._idle else await self._connection.channel()
                    publishing = asyncio.ensure_future(_publish(channel, outgoing))
                    try:
                        await asyncio.wait((publishing,), timeout=_PROMPT_S)
                    except asyncio.CancelledError:
                        publishing.cancel()
                        raise
                self._settled(outgoing, await publishing)
                if len(self._idle) < _AT_ONCE and not channel.is_closed:
                    self._idle.append(channel)
                else:
                    await channel.close()


async def _publish(channel: AbstractChannel, outgoing: Outgoing) -> Settlement | Refusal:
    """What the broker says of *outgoing*. Raises what aiormq raises where that concerns all events."""
    message, key = encode(outgoing.event), outgoing.lane.routing_key
    try:
        await channel.basic_publish(
            message.body,
            exchange=EVENTS_EXCHANGE,
            routing_key=key,
            properties=properties_of(message),
            mandatory=True,
        )
    except DeliveryError as error:
        came_back = error.frame
        if not isinstance(came_back, Basic.Return):
            return Nacked(tag=outgoing.tag)
        reason = f"routing key {key}: want a queue bound to it, got {came_back.reply_code} {came_back.reply_text}"
        return Failed(tag=outgoing.tag, category=Category.UNROUTABLE, reason=reason)
    except ChannelClosed as error:
        return _refusal(error)
    return Confirmed(tag=outgoing.tag)


def _refusal(error: ChannelClosed) -> Refusal:
    """The broker closed the channel over the only event on it. Raises *error* if that is about every event."""
    said = words(error)
    if isinstance(error, ChannelPreconditionFailed):
        code = _PRECONDITION_FAILED
    elif _CONTENT_TOO_LARGE in error.args:
        code = _CONTENT_TOO_LARGE
    else:
        raise error
    return refusal(code, said, reason=f"the broker closed the channel: {code} {said}")
