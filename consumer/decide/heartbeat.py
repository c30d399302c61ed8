"""What a process says of itself each time it renews its lease, for people and for ``outbox-consumer verify``."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self, TypeAlias

from outbox.event import Tier

_TIERS: Final = frozenset(map(int, Tier))
Json: TypeAlias = "bool | int | str | list[Json] | dict[str, Json] | None"


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """How many *events* of one tenant, tier and type run."""

    tenant: str
    tier: Tier
    type: str
    events: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenBreaker:
    """The breaker of a handler is not closed: of everybody, or of one *tenant*."""

    type: str
    handler: str
    tenant: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """As of the renewal. *lanes* are known here, *attached* consumed from; *outcomes* are counted since the start.

    *is_suspended*: its group is paused as a whole, or it drains. *tiers* are those it serves; none from code too old to
    say, which serves all.
    """

    is_connected: bool = False
    is_suspended: bool = False
    lanes: int = 0
    attached: int = 0
    in_hand: int = 0
    outcomes: Mapping[str, int] = field(default_factory=dict)
    running: tuple[Running, ...] = ()
    tiers: tuple[Tier, ...] = ()
    breakers: tuple[OpenBreaker, ...] = ()

    @property
    def settled(self) -> int:
        """How many deliveries were settled since the start, whatever became of them."""
        return sum(self.outcomes.values())

    def to_json(self) -> dict[str, Json]:
        """It, as the database keeps it."""
        return {
            "is_connected": self.is_connected,
            "is_suspended": self.is_suspended,
            "lanes": self.lanes,
            "attached": self.attached,
            "in_hand": self.in_hand,
            "outcomes": dict(self.outcomes),
            "running": [[one.tenant, int(one.tier), one.type, one.events] for one in self.running],
            "tiers": [int(tier) for tier in self.tiers],
            "breakers": [[one.type, one.handler, one.tenant] for one in self.breakers],
        }

    @classmethod
    def from_json(cls, content: Mapping[str, object]) -> Self:
        """What ``to_json`` of this code or of older or newer code wrote: a field or tier not known here is left out."""
        known: dict[str, Any] = {name: content[name] for name in cls.__slots__ if name in content}
        running, tiers, breakers = (known.pop(name, []) for name in ("running", "tiers", "breakers"))
        return cls(
            running=tuple(
                Running(tenant=tenant, tier=Tier(tier), type=event_type, events=events)
                for tenant, tier, event_type, events, *_ in running
                if tier in _TIERS
            ),
            tiers=tuple(Tier(tier) for tier in tiers if tier in _TIERS),
            breakers=tuple(
                OpenBreaker(type=event_type, handler=handler, tenant=tenant)
                for event_type, handler, tenant, *_ in breakers
            ),
            **known,
        )
