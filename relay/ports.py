"""What the relay's engine needs of a broker: send events, hear what became of them, and know the lanes.

The engine owns what is in flight, how old it is, and what is sent again; an adapter owns a
connection and nothing that outlives it. Both ports are served by one adapter, on a connection that
only publishes. One contract suite runs on every adapter.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Protocol

from outbox.event import Event
from outbox.naming import Lane


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """One event on its way to one lane. *tag* is the engine's own; it is never reused on one connection."""

    tag: int
    lane: Lane
    event: Event
    is_apart: bool = False
    """The lane's queue may take nothing and answer nothing: what is sent behind it must not wait for it.

    Its place among the lane's other events is the engine's care, who sends no other until it is settled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmed:
    """The broker has taken responsibility: the event is in its lane's queue."""

    tag: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Nacked:
    """The broker did not take it now (a full or leaderless queue); the same publish may succeed later."""

    tag: int


class Category(Enum):
    """Why one event cannot be published, though its neighbours can."""

    UNROUTABLE = "unroutable"
    TOO_LARGE = "too_large"
    MISMATCH = "queue_mismatch"
    FORBIDDEN = "forbidden"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A failure of this one event. *reason* is a sentence for people that repeats no payload."""

    tag: int
    category: Category
    reason: str


Settlement = Confirmed | Nacked | Failed


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneFault:
    """A lane that could not be declared; the others were."""

    lane: Lane
    category: Category
    reason: str
    is_silent: bool = False
    """It gave no answer in time: an outage of this lane alone, which is no verdict on any of its events."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """What a group's directory says of one lane; *group_started_at* is when the group began to read the log."""

    lane: Lane
    group_started_at: datetime


class Publisher(Protocol):
    """A connection that publishes, with confirms and returns."""

    @property
    def is_blocked(self) -> bool:
        """Whether the broker has asked for silence (an alarm): send nothing, keep everything."""

    async def open(self) -> None:
        """Connect, or connect anew. What was unsettled is forgotten here; the engine sends it again.

        Raises BrokerUnavailable within the connect timeout.
        """

    async def send(self, batch: Sequence[Outgoing]) -> None:
        """Hand *batch* to the connection in this order; returns once it is written, not once it is settled.

        Every item of it is settled exactly once by ``settlements``, or the connection is lost.
        Raises BrokerUnavailable when the connection is lost; the whole batch is then unknown.
        """

    async def settlements(self, *, timeout_s: float) -> Sequence[Settlement]:
        """What was settled since the last call, in the order it was heard; waits up to *timeout_s* for one.

        Raises BrokerUnavailable when the connection is lost and everything heard has been handed out.
        """

    def unread(self) -> AbstractContextManager[None]:
        """Answers need not be read within it: what comes in crumbs is taken in one go after it. For moments only."""

    async def close(self) -> None:
        """Close at once, whatever is unsettled. Safe to repeat."""


class LaneTopology(Protocol):
    """Declares lanes and tells their groups of them."""

    async def declare(self, lanes: Sequence[Lane], *, patience_s: float = 10.0) -> Sequence[LaneFault]:
        """Make sure that each lane's queue stands, is bound and answers; returns those of which that is not so.

        A lane that takes longer than *patience_s* is silent. Raises BrokerUnavailable when the connection is lost.
        """

    async def announce(self, announcements: Sequence[Announcement]) -> Sequence[LaneFault]:
        """Put each into its group's directory queue, confirmed; returns those whose directory did not take it.

        Raises BrokerUnavailable when the connection is lost.
        """

    def roll_calls(self) -> frozenset[str]:
        """The groups that have asked for their lanes since the last call."""
