"""What the engine's side tells the thread, and what it hears back."""

from collections.abc import Sequence
from dataclasses import dataclass

from consumer.ports import Delivery, LostBecause, Receipt


@dataclass(frozen=True, slots=True, kw_only=True)
class Attach:
    """Consume from *queue*, now and after every reconnect."""

    queue: str
    prefetch: int
    is_extra: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Detach:
    """Consume from *queue* no more."""

    queue: str
    is_extra: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Settle:
    """Acknowledge, or hand back with *requeue*."""

    receipts: Sequence[Receipt]
    requeue: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Write what was settled, and end."""


Command = Attach | Detach | Settle | Stop


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelLost:
    """As the inbox's method of this name."""

    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLost:
    """As the inbox's method of this name."""

    queue: str
    because: LostBecause


@dataclass(frozen=True, slots=True, kw_only=True)
class Connected:
    """As the inbox's method of this name."""

    is_connected: bool


Event = Delivery | ChannelLost | QueueLost | Connected
