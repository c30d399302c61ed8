"""What goes into the scheduler, what comes out, and what it keeps in between."""

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, TypeAlias

from outbox.event import Tier
from outbox.records import record

if TYPE_CHECKING:
    from consumer.decide.fairness.rooms import Room

Scope: TypeAlias = tuple[str | None, str | None]
"""What a cap or a rate is about: tenant, type; None where it does not matter."""

PauseScope: TypeAlias = tuple[Tier | None, str | None, str | None]
"""What a pause is about: tier, tenant, type; None where it does not matter, so three of them are everything."""


@record
class Item:
    """One piece of work. *cost* is what it is expected to take, a positive integer in the unit of the quantum."""

    ident: Hashable
    tier: Tier
    tenant: str
    type: str
    lane: str
    cost: int = 1


@record
class Grant:
    """*item* may start now. *is_reserved*: in a slot kept for interactive work."""

    item: Item
    is_reserved: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetNeed:
    """Of a fleet's cap of *most* this process holds *held* permits; *used* are in use, *waiting* items want one."""

    scope: Scope
    most: int
    held: int
    used: int
    waiting: int


class State(Enum):
    """Where an item stands. It is unsettled in all three."""

    WAITING = auto()
    RUNNING = auto()
    HELD = auto()  # neither waits for a slot nor has one


@dataclass(slots=True, eq=False, kw_only=True)
class Entry:
    """An unsettled item. *charged* is what its tenant and, where *is_shared*, its tier have paid for it so far."""

    item: Item
    line: "Line"
    state: State = State.WAITING
    arrival: int = 0
    charged: int = 0
    is_shared: bool = False


@dataclass(slots=True, eq=False, kw_only=True)
class Line:
    """Items of a flow with the same lane and type, hence under the same limits, first in first out.

    It is in its flow's *ready*, parked in the queue of one limit (*parked_in*), or empty. Its items need room in all
    *rooms*, in that order; those in *holds* keep some for its first item, and *queued_at* are those it has waited at
    since something of it last started.
    """

    flow: "Flow"
    lane: str
    type: str
    queue: OrderedDict[Hashable, Entry] = field(default_factory=OrderedDict)
    parked_in: "OrderedDict[Line, None] | None" = None
    rooms: "tuple[Room, ...]" = ()
    holds: "list[Room]" = field(default_factory=list)
    queued_at: "set[Room]" = field(default_factory=set)

    def arrival(self) -> int:
        """When its first item came, for comparing; the line is not empty."""
        return next(iter(self.queue.values())).arrival


@dataclass(slots=True, eq=False, kw_only=True)
class Flow:
    """A tenant within a tier.

    *deficit* is what it may still take or, negative, owes, with the quanta of all rounds up to *credited*; *spare* is
    what it left of its turn in that round.
    """

    tier: Tier
    tenant: str
    lines: dict[tuple[str, str], Line] = field(default_factory=dict)
    ready: set[Line] = field(default_factory=set)
    unsettled: int = 0
    deficit: int = 0
    spare: int = 0
    credited: int = 0
    place: "OrderedDict[Flow, None] | None" = None  # the list it stands in
    has_turn: bool = False
    idle_since: int | None = -2  # a round; None while anything of it is unsettled
