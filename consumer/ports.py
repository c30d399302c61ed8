"""What the consumer's engine needs of a broker: deliveries from queues it names, and a way to settle them.

A delivery belongs to the channel it came by, an *epoch*: once that channel is gone the delivery can
be settled no more, the broker hands it out again, and the ledger absorbs the second. An adapter
reconnects and attaches again by itself; the engine only hears of it. One contract suite runs on
every adapter.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from outbox.topology import QueueKind
from outbox.wire import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """Where a delivery came by. *epoch* is unique to one opened channel within the process."""

    epoch: int
    tag: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One message in this process's hands, unsettled. *routing_key* is the one it was published with."""

    queue: str
    receipt: Receipt
    message: Message
    routing_key: str
    is_redelivered: bool


class LostBecause(Enum):
    """Why a queue is attached no more."""

    MISSING = "missing"  # it does not exist
    REFUSED = "refused"  # permission, or another consumer holds it exclusively
    UNRESPONSIVE = "unresponsive"  # no answer within the deadline; the adapter goes on trying on a channel of its own


class Inbox(Protocol):
    """The engine's side. Every method is called on the engine's event loop, is quick and never raises."""

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        """These arrived, in this order per queue."""

    def channel_lost(self, epoch: int) -> None:
        """Every unsettled delivery of *epoch* is gone from this process's hands."""

    def queue_lost(self, queue: str, because: LostBecause) -> None:
        """*queue* delivers no more; attach again to try again (UNRESPONSIVE needs no new attach)."""

    def connected(self, *, is_connected: bool) -> None:
        """The connection came up, or went down. Nothing is delivered while it is down."""


class Broker(Protocol):
    """A connection that consumes. It publishes nothing, so an alarm of the broker never stalls its acks."""

    async def start(self, inbox: Inbox) -> None:
        """Begin to connect, and go on for ever; returns at once. Deliveries go to *inbox*."""

    async def attach(self, queue: str, *, prefetch: int, is_extra: bool = False) -> None:
        """Consume from *queue*, now and after every reconnect, with *prefetch* unsettled at most.

        A queue may have one base consumer and one extra; attaching what is attached changes nothing.
        Returns when the wish is recorded; failures come by ``queue_lost``.
        """

    async def detach(self, queue: str, *, is_extra: bool = False) -> None:
        """Consume no more by that consumer. Its unsettled deliveries stay valid and can be settled."""

    def settle(self, receipts: Sequence[Receipt], *, requeue: bool = False) -> None:
        """Acknowledge, or hand back with *requeue*. Never waits; receipts of a lost channel are ignored."""

    async def stop(self) -> None:
        """Write what was settled, then close: everything unsettled goes back to its queue. Safe to repeat."""


class Exchange(Protocol):
    """A connection that publishes: copies of dead letters, and the roll call. Apart from the one that consumes."""

    async def declare_group(self, group: str, kind: QueueKind) -> None:
        """Make the queues that *group* reads beside its lanes: whoever starts first makes them.

        Raises BrokerUnavailable, or QueueMismatch where one has other arguments.
        """

    async def publish(self, exchange: str, routing_key: str, message: Message) -> None:
        """Publish and return once the broker has confirmed. Raises BrokerUnavailable."""

    async def close(self) -> None:
        """Close. Safe to repeat."""
