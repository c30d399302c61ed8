"""RabbitMQ's client as relay and consumer use it: what the broker says where it lets us do nothing, in our words."""

import asyncio
from typing import ClassVar, Final

from aiormq import connection as client
from aiormq.exceptions import (
    AMQPConnectionError,
    AuthenticationError,
    ChannelAccessRefused,
    ConnectionClosed,
    ProbableAuthenticationError,
)
from pamqp import commands
from pamqp.base import Frame
from pamqp.common import FieldTable
from pamqp.frame import FrameTypes

from outbox.errors import BrokerRefused, BrokerUnavailable

_NOT_ALLOWED: Final = 530
# A vhost or user that has as many connections as it may is refused likewise, and will not be for ever.
_FULL: Final = "limit"


class _Open(commands.Connection.Open):
    # Of an answer that is not named here aiormq says that it is a broken frame, and forgets its words.
    valid_responses: ClassVar[list[str]] = [*commands.Connection.Open.valid_responses, commands.Connection.Close.name]


class Connection(client.Connection):
    """aiormq's connection; of a vhost that is not opened it also knows why, and of a stream that ends that it has."""

    async def connect(self, client_properties: FieldTable | None = None) -> bool:
        """As aiormq does. Raises AMQPConnectionError too where the other side leaves between two frames."""
        try:
            return bool(await super().connect(client_properties))
        except StopAsyncIteration:
            raise AMQPConnectionError("want another frame, got the connection closed") from None

    @staticmethod
    async def _rpc(
        request: Frame, writer: asyncio.StreamWriter, frame_receiver: client.FrameReceiver, wait_response: bool = True
    ) -> FrameTypes | None:
        if isinstance(request, commands.Connection.Open):
            request = _Open(virtual_host=request.virtual_host)
        return await client.Connection._rpc(request, writer, frame_receiver, wait_response)


def broker_error(what: str, error: BaseException) -> BrokerUnavailable:
    """What the client or the system raised as *error* while *what*, as ours."""
    kind = BrokerRefused if _is_refusal(error) else BrokerUnavailable
    return kind(f"{what}: {words(error)}")


def words(error: BaseException) -> str:
    """What *error* says, in one line."""
    said = " ".join(str(part) for part in error.args if part is not None)
    return " ".join(said.split()) or type(error).__name__


def _is_refusal(error: BaseException) -> bool:
    match error:
        case AuthenticationError() | ProbableAuthenticationError() | ChannelAccessRefused():
            return True
        case ConnectionClosed(args=(int(code), str(text))):
            return code == _NOT_ALLOWED and _FULL not in text
        case _:
            return False
