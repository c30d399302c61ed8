"""How the client's errors and properties are written here."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from aiormq import AMQPError, ChannelInvalidStateError
from pamqp.commands import Basic

from outbox.errors import BrokerUnavailable
from outbox.shell.amqp import broker_error
from outbox.wire import Message


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Turn what the client and the system raise into BrokerUnavailable, beginning with *what*."""
    try:
        yield
    except asyncio.CancelledError:
        # The client cancels those who wait for it when its connection dies; nobody has cancelled them.
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise BrokerUnavailable(f"{what}: the connection was lost") from None
    except TimeoutError as error:
        raise BrokerUnavailable(f"{what}: no answer in time") from error
    except (AMQPError, ChannelInvalidStateError, OSError) as error:
        raise broker_error(what, error) from error


def properties_of(message: Message) -> Basic.Properties:
    """The properties that *message* is published with."""
    return Basic.Properties(
        content_type=message.content_type,
        headers={name: str(value) for name, value in message.headers.items()},
        delivery_mode=2,
        message_id=message.message_id,
        message_type=message.type,
        app_id=message.app_id,
    )
