"""What happened lately to one handler, per tenant: how many attempts, how many failed, how many retries were spent.

No clock: *now* is the caller's, in seconds, and never goes back. What is remembered grows with the number of tenants
up to a bound, and with nothing else; of more tenants the ones seen longest ago begin anew.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from consumer.decide.policy import Breaker, Budget

MINUTE_S: Final = 60.0
_LOOK_S: Final = 0.25
_PERCENT: Final = 100.0


@dataclass(slots=True)
class Tally:
    """Two counts of the last *length_s* seconds, in constant memory.

    A sliding-window counter: the counts since a fixed moment, and of the stretch before it the share that the window
    still covers, as if they had come evenly. Source: Alatorre, "How we built rate limiting capable of scaling to
    millions of domains", Cloudflare, 2017.
    """

    length_s: float
    since: float
    all: int = 0
    some: int = 0
    all_before: int = 0
    some_before: int = 0

    def add(self, now: float, *, all: int = 0, some: int = 0) -> None:
        """Count more."""
        self._move_on(now)
        self.all += all
        self.some += some

    def read(self, now: float) -> tuple[float, float]:
        """Return both counts of the last *length_s*."""
        self._move_on(now)
        share = 1.0 - (now - self.since) / self.length_s
        return self.all + self.all_before * share, self.some + self.some_before * share

    def _move_on(self, now: float) -> None:
        passed = now - self.since
        if passed < self.length_s:
            return
        if passed < 2 * self.length_s:
            self.since += self.length_s
            self.all_before, self.some_before = self.all, self.some
        else:
            self.since = now
            self.all_before = self.some_before = 0
        self.all = self.some = 0


@dataclass(slots=True)
class _OfTenant:
    spent: Tally  # events, and retries among what was tried
    tried: Tally  # attempts, and failures


@dataclass(frozen=True, slots=True, kw_only=True)
class Trip:
    """Too much fails: for *tenant* alone, or, where that is None, for most of them."""

    tenant: str | None


class Recent:
    """One handler's recent past."""

    def __init__(self, budget: Budget | None, breaker: Breaker | None, *, tenants_max: int = 10_000) -> None:
        self._budget = budget
        self._breaker = breaker
        self._window_s = breaker.window_s if breaker is not None else MINUTE_S
        self._tenants_max = tenants_max
        self._tenants: OrderedDict[str, _OfTenant] = OrderedDict()
        self._looked_at = -_LOOK_S

    def __len__(self) -> int:
        return len(self._tenants)

    def count(self, tenant: str, now: float, *, is_new: bool, has_failed: bool | None) -> None:
        """Take in that an attempt ended.

        *is_new*: it was its event's first. *has_failed* is None where it says nothing of the handler's health.
        """
        of_tenant = self._of(tenant, now)
        if is_new:
            of_tenant.spent.add(now, all=1)
        if has_failed is not None:
            of_tenant.tried.add(now, all=1, some=has_failed)

    def spend_retry(self, tenant: str, now: float) -> bool:
        """Whether the budget allows *tenant* one more retry; if so, it is spent."""
        if self._budget is None:
            return True
        spent = self._of(tenant, now).spent
        events, retries = spent.read(now)
        if retries + 1 > max(self._budget.per_minute_min, events * self._budget.percent / _PERCENT):
            return False
        spent.add(now, some=1)
        return True

    def trip(self, tenant: str, now: float) -> Trip | None:
        """Whether the breaker is to open, after an attempt for *tenant* has failed.

        For all tenants where, on average over the tenants, too much failed: each counts the same, so one that floods or
        is broken by itself does not pause the handler for the others. Else for *tenant*, by its own numbers.
        """
        if self._breaker is None:
            return None
        calls, failures = self._of(tenant, now).tried.read(now)
        if self._is_tripped_by_all(now):
            return Trip(tenant=None)
        if calls >= self._breaker.calls_min and failures * _PERCENT > calls * self._breaker.failure_percent:
            return Trip(tenant=tenant)
        return None

    def forget_failures(self, tenant: str | None) -> None:
        """Begin anew with counting what is tried: of *tenant*, or of all."""
        for name, of_tenant in self._tenants.items():
            if tenant in {None, name}:
                of_tenant.tried = Tally(self._window_s, of_tenant.tried.since)

    def _is_tripped_by_all(self, now: float) -> bool:
        assert self._breaker is not None  # noqa: S101 - the caller asked
        if now < self._looked_at + _LOOK_S:  # it costs as much as there are tenants
            return False
        self._looked_at = now
        tried = list(self._recent(now))
        if len(tried) < 2 or sum(calls for calls, _ in tried) < self._breaker.calls_min:  # noqa: PLR2004 - several
            return False
        average = sum(failures / calls for calls, failures in tried) / len(tried)
        return average * _PERCENT > self._breaker.failure_percent

    def _recent(self, now: float) -> Iterator[tuple[float, float]]:
        """Calls and failures of each tenant that had a call within the window."""
        for of_tenant in self._tenants.values():
            if now - of_tenant.tried.since < 2 * self._window_s:
                calls, failures = of_tenant.tried.read(now)
                if calls > 0:
                    yield calls, failures

    def _of(self, tenant: str, now: float) -> _OfTenant:
        of_tenant = self._tenants.get(tenant)
        if of_tenant is None:
            of_tenant = _OfTenant(spent=Tally(MINUTE_S, now), tried=Tally(self._window_s, now))
            self._tenants[tenant] = of_tenant
            if len(self._tenants) > self._tenants_max:
                self._tenants.popitem(last=False)
        else:
            self._tenants.move_to_end(tenant)
        return of_tenant
