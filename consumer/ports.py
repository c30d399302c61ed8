"""What the consumer's engine needs of a broker: deliveries from queues it names, and a way to settle them.

And, at the end, of whatever tells people: where alerts go.

A delivery belongs to the channel it came by, an *epoch*: once that channel is gone the delivery can
be settled no more, the broker hands it out again, and the ledger absorbs the second. An adapter
reconnects and attaches again by itself; the engine only hears of it. One contract suite runs on
every adapter.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Final, Protocol

from outbox.records import record
from outbox.topology import QueueKind
from outbox.wire import Message


@record
class Receipt:
    """Where a delivery came by. *epoch* is unique to one opened channel within the process."""

    epoch: int
    tag: int


@record
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


class AlertKind(StrEnum):
    """What an alert is about. The value is logged and sent, and never changes its meaning."""

    BUDGET_EXHAUSTED = "budget_exhausted"  # more retries than a handler's budget allows for a tenant
    BREAKER_OPENED = "breaker_opened"  # most attempts of a handler failed: it is paused
    BREAKER_CLOSED = "breaker_closed"
    PAUSED = "paused"  # a rule paused a lane or a handler
    SECURITY = "security"  # a delivery was refused for a signature, a tenant or an authorisation
    POISON = "poison"  # an event ended the process that handled it, more than once
    UNKNOWN_TYPE = "unknown_type"  # events that no handler here knows are being buried
    DEAD_GROWTH = "dead_growth"  # many events become dead letters
    KEY_BLOCKED = "key_blocked"  # a dead letter holds its ordering key

    @property
    def is_error(self) -> bool:
        """Whether events are being lost from sight unless somebody acts; else it is a warning."""
        return self not in _WARNINGS


_WARNINGS: Final = frozenset({AlertKind.BREAKER_CLOSED, AlertKind.PAUSED, AlertKind.KEY_BLOCKED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """What a person should know of. *text* is one sentence of ours: nothing of a payload may stand in it.

    *count* is how many like it this one stands for: repeats are held back for a while and told together.
    """

    kind: AlertKind
    group: str
    text: str
    tenant: str | None = None
    event_type: str | None = None
    handler: str | None = None
    count: int = 1


class Alerts(Protocol):
    """Somewhere that alerts are sent to, beside the log.

    To raise an alert, call ``Alarm.sound`` (``consumer.engine.alarm``; the engine has one as ``engine.alarm``) on the
    engine's loop. It never waits and never raises, and repeats are held back there: raise it wherever it happens.
    """

    async def send(self, alert: Alert) -> None:
        """Tell whoever has to know, within 30 s. What it raises is logged, and changes nothing else."""
