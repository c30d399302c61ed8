"""What a group is told at run time: which of its work is paused, and which tenants get a larger share."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from consumer.decide.fairness import PauseScope
from outbox.errors import ConfigError
from outbox.event import Tier

WEIGHT_MAX: Final = 100


class Source(StrEnum):
    """Who paused, as a kind: each ends what is its own. The value is stored."""

    OPERATOR = "operator"  # a person
    POLICY = "policy"  # a failure rule
    BREAKER = "breaker"  # a circuit breaker


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What a pause is about: everything that fits all that is named; with nothing named, the whole group.

    A lane is a tenant and a tier. A *handler* stands for the types that it handles.
    """

    tenant: str | None = None
    tier: Tier | None = None
    type: str | None = None
    handler: str | None = None

    @property
    def is_group(self) -> bool:
        """Whether it is the whole group."""
        return self == Scope()

    def __str__(self) -> str:
        """It, in words for people."""
        named = {
            "tenant": self.tenant,
            "tier": None if self.tier is None else self.tier.label,
            "type": self.type,
            "handler": self.handler,
        }
        return ", ".join(f"{name} {value}" for name, value in named.items() if value is not None) or "the whole group"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """Nothing of *scope* starts; what runs goes on. It ends by itself at *until*, on the database's clock."""

    scope: Scope
    source: Source
    actor: str
    reason: str
    set_at: datetime
    until: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """*tenant* gets *weight* times the share of a tenant without one, until *until*."""

    tenant: str
    weight: int
    actor: str
    reason: str
    set_at: datetime
    until: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """All that holds for one group at *at*, the database's time."""

    at: datetime
    pauses: tuple[Pause, ...] = ()
    weights: tuple[Weight, ...] = ()

    @property
    def is_group_paused(self) -> bool:
        """Whether nothing of the group may start."""
        return any(pause.scope.is_group for pause in self.pauses)

    def seconds_to_change(self) -> float | None:
        """How long until the first of them ends by itself, if any does."""
        untils = [one.until for one in self.pauses] + [one.until for one in self.weights]
        ends = [until for until in untils if until is not None]
        return max(0.0, (min(ends) - self.at).total_seconds()) if ends else None


def check_weight(weight: int) -> int:
    """Return *weight*. Raises ConfigError if it is not 1..100."""
    if not 1 <= weight <= WEIGHT_MAX:
        raise ConfigError(f"weight: want 1..{WEIGHT_MAX}, got {weight}")
    return weight


def paused_scopes(
    pauses: Collection[Pause], *, types_of: Callable[[str], Collection[str]]
) -> Mapping[PauseScope, Pause]:
    """What the scheduler is to pause, and for each why. *types_of* a handler is what it handles here, maybe nothing."""
    found: dict[PauseScope, Pause] = {}
    for pause in pauses:
        scope = pause.scope
        types: Collection[str | None] = (scope.type,) if scope.handler is None else types_of(scope.handler)
        for event_type in types:
            if scope.type in {None, event_type}:
                found.setdefault((scope.tier, scope.tenant, event_type), pause)
    return found
