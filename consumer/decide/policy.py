"""How long a handler goes on trying, and when it stops to try at all. Values, checked when they are declared."""

import math
from dataclasses import dataclass

from outbox.backoff import Jitter
from outbox.errors import ConfigError


def _check(
    what: str, name: str, value: object, *, least: float, most: float = math.inf, is_whole: bool = False
) -> None:
    is_number = isinstance(value, int if is_whole else int | float) and not isinstance(value, bool)
    if is_number and least <= value <= most and value < math.inf:  # type: ignore[operator]  # NaN is refused too
        return
    kind = "a whole number" if is_whole else "a number"
    bounds = f"{least:g} or more" if most == math.inf else f"{least:g}..{most:g}"
    raise ConfigError(f"{what}: want {name} to be {kind}, {bounds}, got {value!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How many retries a handler may spend on one tenant in a minute: *percent* of its events, or *per_minute_min*.

    The larger of the two. Each process counts what it handles itself. Beyond it an event is a dead letter
    ``over_budget``; one with an ordering key, which would block its key, comes back a minute later instead.
    """

    percent: float = 20.0
    per_minute_min: int = 10

    def __post_init__(self) -> None:
        _check("budget", "percent", self.percent, least=0, most=1000)
        _check("budget", "per_minute_min", self.per_minute_min, least=0, is_whole=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Breaker:
    """When a handler is paused because most of its attempts fail, and how it comes back. Per process.

    It opens when, of at least *calls_min* attempts in *window_s*, more than *failure_percent* failed. Then nothing of
    the handler's event type starts for *open_s*, twice that each time it opens again, at most *open_max_s*. Then
    *probes* events are tried: if all succeed, starts are let through at a rate that doubles each second, and after
    *ramp_s* without limit; if one fails, it opens again. What fails in all that time is not charged.
    """

    failure_percent: float = 50.0
    calls_min: int = 20
    window_s: float = 10.0
    open_s: float = 10.0
    open_max_s: float = 300.0
    probes: int = 3
    ramp_s: float = 10.0

    def __post_init__(self) -> None:
        _check("breaker", "failure_percent", self.failure_percent, least=0, most=99.9)
        _check("breaker", "calls_min", self.calls_min, least=1, is_whole=True)
        _check("breaker", "window_s", self.window_s, least=1, most=3600)
        _check("breaker", "open_s", self.open_s, least=0.01)
        _check("breaker", "open_max_s", self.open_max_s, least=self.open_s)
        _check("breaker", "probes", self.probes, least=1, most=1000, is_whole=True)
        _check("breaker", "ramp_s", self.ramp_s, least=0, most=3600)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How long to go on trying.

    *max_retries* 5 is six attempts. *max_elapsed_s* runs from the first failure; a wait that would pass it is not
    begun. *max_wait_s* bounds the backoff of one wait, not what another system asked for. *budget* bounds retries
    altogether, *breaker* pauses a handler that fails mostly; None is without.
    """

    max_retries: int = 5
    max_elapsed_s: float = 86_400.0
    max_wait_s: float = 900.0
    base_s: float = 1.0
    jitter: Jitter = Jitter.ADDED
    budget: Budget | None = Budget()
    breaker: Breaker | None = Breaker()

    def __post_init__(self) -> None:
        _check("policy", "max_retries", self.max_retries, least=0, is_whole=True)
        for name in ("max_elapsed_s", "max_wait_s", "base_s"):
            _check("policy", name, getattr(self, name), least=0)
        for name, kind in (("jitter", Jitter), ("budget", Budget | None), ("breaker", Breaker | None)):
            value: object = getattr(self, name)
            if not isinstance(value, kind):
                wanted = getattr(kind, "__name__", str(kind))
                raise ConfigError(f"policy: want {name} as a {wanted}, got {value!r}")
