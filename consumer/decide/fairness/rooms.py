"""What bounds a scope: how much of it runs at once, or starts in a time, and who waits for room in it.

A cap's room comes back when what runs ends. A fleet's cap has as much room as this process holds permits, which
somebody else sees to. A rate's room, its tokens, comes back by time: one unit after each *refill_s*. Source: the token
bucket, as in RFC 2697; ours counts what was used, in whole units, and so rounds nothing.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from enum import IntEnum

from consumer.decide.fairness.values import Line, Scope
from outbox.event import Tier


class Kind(IntEnum):
    """Of the rooms of one scope, the lower is taken first."""

    CAP = 0
    FLEET = 1
    RATE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """What makes rooms: one for all tenants, or one for each, of one type or of all.

    *most* is how many run at once or, of a rate, its burst, of which one comes back every *refill_s*.
    """

    is_per_tenant: bool
    type: str | None
    kind: Kind
    most: int
    refill_s: float = 0.0

    def scope_of(self, line: Line) -> Scope | None:
        """Where it binds *line*, if it does. Interactive work is outside what is a tenant's alone."""
        if self.type not in {None, line.type}:
            return None
        if self.is_per_tenant and self.type is None and line.flow.tier is Tier.INTERACTIVE:
            return None
        return (line.flow.tenant if self.is_per_tenant else None), self.type

    def makes(self, scope: Scope) -> bool:
        """Whether it is what makes the room of *scope*."""
        tenant, type_ = scope
        return self.is_per_tenant == (tenant is not None) and self.type == type_


@dataclass(slots=True, eq=False, kw_only=True)
class Room:
    """At most *most* of a scope; *used* of it is. Room is taken in those with the lowest *rank* first.

    *bound* is what makes it, if something does, and *is_set* says that it was set for this scope. *lines* is how many
    it binds; without any, unused and not set, it is forgotten.
    """

    scope: Scope
    kind: Kind
    most: int
    bound: Bound | None
    is_set: bool = False
    used: int = 0
    lines: int = 0
    refilled_at: float = 0.0
    is_timed: bool = False  # it stands in the queue of those that time refills
    # Indexed by tier: how many lines room is kept for, and which lines are parked.
    kept: list[int] = field(default_factory=lambda: [0 for _ in Tier])
    queues: list[OrderedDict[Line, None]] = field(default_factory=lambda: [OrderedDict() for _ in Tier])

    @property
    def rank(self) -> int:
        """Its place in the order: tenant, type within tenant, type, everything."""
        tenant, type_ = self.scope
        place = (0 if type_ is None else 1) if tenant is not None else (2 if type_ is not None else 3)
        return place * len(Kind) + self.kind

    def free(self, tier: Tier) -> int:
        """Return how much room there is for *tier*: what is kept for it and for more urgent tiers is gone."""
        return self.most - self.used - sum(self.kept[: tier + 1])

    def waiting(self) -> int:
        """Return how many items are parked."""
        return sum(len(line.queue) for queue in self.queues for line in queue)

    def use(self, now: float) -> None:
        """One more runs, or started."""
        if self.used == 0:
            self.refilled_at = now
        self.used += 1

    def refill(self, now: float) -> None:
        """Give back what time has refilled."""
        if self.bound is not None and self.bound.refill_s and self.used:
            units = min(self.used, int((now - self.refilled_at) / self.bound.refill_s))
            self.used -= max(0, units)
            self.refilled_at += units * self.bound.refill_s

    def refills_at(self) -> float:
        """When the next unit comes back; of a rate alone."""
        return self.refilled_at + (self.bound.refill_s if self.bound is not None else 0.0)
