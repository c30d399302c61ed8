"""Asking RabbitMQ over AMQP. Nothing is made: a queue is declared with our arguments only once it is there."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from aiormq.exceptions import ChannelNotFoundEntity, ChannelPreconditionFailed
from pamqp import commands

from consumer.rabbitmq.connection import Address, PlainConnection, close, close_channel, connect, open_channel, within
from outbox.errors import BrokerUnavailable
from outbox.naming import Lane
from outbox.shell.secrets import masked
from outbox.topology import QueueKind, group_queues, lane_arguments
from outbox_admin.doctor.facts import Broker, Queue

_INEQUIVALENT: Final = re.compile(r"inequivalent arg '([^']+)' for .*: received (.+?) but current is (.+)", re.DOTALL)
_VALUE: Final = re.compile(r"(?:the value )?'(.*?)'(?: of type '\w+')?", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A queue that there should be, with what it is declared with."""

    name: str
    group: str
    is_lane: bool
    arguments: dict[str, str | int]

    @property
    def refuses_when_full(self) -> bool:
        """Whether it drops nothing that it holds; no policy overrules an argument."""
        return self.arguments.get("x-overflow") == "reject-publish"


def known(groups: Sequence[str], lanes: Sequence[Lane], kind: QueueKind) -> list[Known]:
    """The queues of *groups* and *lanes*."""
    own = [
        Known(name=queue.name, group=group, is_lane=False, arguments=dict(queue.arguments))
        for group in groups
        for queue in group_queues(group, kind)
    ]
    return own + [
        Known(name=lane.queue, group=lane.group, is_lane=True, arguments=lane_arguments(kind)) for lane in lanes
    ]


async def broker(address: Address, wanted: Sequence[Known], *, most: int) -> Broker:
    """The broker, and at most *most* of the queues that are *wanted*.

    Raises:
        BrokerUnavailable: it cannot be reached, refuses this user, or does not answer.
    """
    connection = await connect(address)
    try:
        version = str(connection.server_properties.get("version", ""))
        found = [await _queue(connection, address, one) for one in wanted[:most]]
    finally:
        await close(connection)
    return Broker(
        address=masked(str(address)), version=version, queues=tuple(found), left_out=max(0, len(wanted) - most)
    )


async def _queue(connection: PlainConnection, address: Address, wanted: Known) -> Queue:
    channel = await open_channel(connection, address)
    try:
        asking = channel.rpc(commands.Queue.Declare(queue=wanted.name, passive=True))
        answer = await within(asking, address.rpc_timeout_s, f"queue {wanted.name}")
    except BrokerUnavailable as error:
        if not isinstance(error.__cause__, ChannelNotFoundEntity):
            raise
        return Queue(
            name=wanted.name,
            group=wanted.group,
            is_lane=wanted.is_lane,
            messages=None,
            refuses_when_full=wanted.refuses_when_full,
        )
    assert isinstance(answer, commands.Queue.DeclareOk)  # noqa: S101 - the one answer there is
    drift = ""
    try:
        asking = channel.rpc(commands.Queue.Declare(queue=wanted.name, durable=True, arguments=dict(wanted.arguments)))
        await within(asking, address.rpc_timeout_s, f"queue {wanted.name}")
    except BrokerUnavailable as error:
        if not isinstance(error.__cause__, ChannelPreconditionFailed):
            raise
        drift = _drift(str(error.__cause__))
    else:
        await close_channel(channel)
    return Queue(
        name=wanted.name,
        group=wanted.group,
        is_lane=wanted.is_lane,
        messages=answer.message_count or 0,
        consumers=answer.consumer_count or 0,
        drift=drift,
        refuses_when_full=wanted.refuses_when_full and not drift,
    )


def _drift(said: str) -> str:
    found = _INEQUIVALENT.search(said)
    if found is None:
        return said
    name, wanted, there = (_VALUE.sub(r"\1", part) for part in found.groups())
    return f"{name} is {there}, the settings want {wanted}"
