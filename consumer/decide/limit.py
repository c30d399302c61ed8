"""What an app and its operators may limit: how many handlers run at once, and how often they start."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from consumer.decide.fairness import Bound, Kind
from outbox.errors import ConfigError

Per: TypeAlias = Literal["tenant"]
CapScope: TypeAlias = Literal["process", "fleet"]


@dataclass(frozen=True, slots=True)
class Cap:
    """At most *most* run at once: of the consumer's events or the handler's type, altogether or of each tenant.

    Args:
        most: 1 or more.
        per: ``"tenant"``: of each tenant by itself. A tenant's interactive events are outside a cap on all its types.
        scope: ``"process"``, or ``"fleet"``: in all processes of the group together, at every instant.

    Raises:
        ConfigError: one of them is something else.
    """

    most: int
    per: Per | None = field(default=None, kw_only=True)
    scope: CapScope = field(default="process", kw_only=True)

    def __post_init__(self) -> None:
        if not (isinstance(self.most, int) and self.most >= 1):
            raise ConfigError(f"Cap: want 1 or more (to stop something, pause it), got {self.most!r}")
        _check_per("Cap", self.per)
        if self.scope not in {"process", "fleet"}:
            raise ConfigError(f"Cap: want scope 'process' or 'fleet', got {self.scope!r}")


@dataclass(frozen=True, slots=True)
class Rate:
    """At most *per_s* start per second in this process, and *burst* at once after a quiet time: a token bucket.

    What is refused waits without a slot, uncharged, and starts when its token comes.

    Args:
        per_s: above 0; 0.1 is one in ten seconds.
        burst: how many may start at once; as many as come in a second, at least one, if not given.
        per: ``"tenant"``: of each tenant by itself. A tenant's interactive events are outside a rate for all its types.

    Raises:
        ConfigError: one of them is something else.
    """

    per_s: float
    burst: int | None = field(default=None, kw_only=True)
    per: Per | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if not (isinstance(self.per_s, int | float) and 0 < self.per_s < math.inf):
            raise ConfigError(f"Rate: want starts per second above 0, got {self.per_s!r}")
        if self.burst is not None and not (isinstance(self.burst, int) and self.burst >= 1):
            raise ConfigError(f"Rate: want a burst of 1 or more, got {self.burst!r}")
        _check_per("Rate", self.per)


Limit: TypeAlias = Cap | Rate


def check_limits(limits: Sequence[Limit], *, of: str) -> tuple[Limit, ...]:
    """Return *limits*. Raises ConfigError, which names *of*, where one of them is none."""
    for limit in limits:
        if not isinstance(limit, Cap | Rate):
            raise ConfigError(f"{of}: want limits that are a Cap or a Rate, got {type(limit).__name__}")
    return tuple(limits)


def bounds_of(limits: Iterable[tuple[str | None, Limit]]) -> list[Bound]:
    """Return *limits*, each on a type or on all, as the scheduler keeps them; of two on the same, the stricter."""
    found: dict[object, Bound] = {}
    for event_type, limit in limits:
        bound = _bound(limit, event_type)
        key = (bound.is_per_tenant, bound.type, bound.kind)
        found[key] = min(found.get(key, bound), bound, key=lambda one: (-one.refill_s, one.most))
    return list(found.values())


def _bound(limit: Limit, event_type: str | None) -> Bound:
    is_per_tenant = limit.per == "tenant"
    if isinstance(limit, Rate):
        burst = max(1, round(limit.per_s)) if limit.burst is None else limit.burst
        return Bound(is_per_tenant=is_per_tenant, type=event_type, kind=Kind.RATE, most=burst, refill_s=1 / limit.per_s)
    kind = Kind.FLEET if limit.scope == "fleet" else Kind.CAP
    return Bound(is_per_tenant=is_per_tenant, type=event_type, kind=kind, most=limit.most)


def _check_per(name: str, per: object) -> None:
    if per not in {None, "tenant"}:
        raise ConfigError(f"{name}: want per='tenant' or none, got {per!r}")
