"""Which alerts are told now: each thing at once when it is new, its repeats together after a while."""

from collections import deque
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from consumer.ports import Alert, AlertKind

_MINUTE_S: Final = 60.0
_About: TypeAlias = tuple[AlertKind, str | None, str | None, str | None]


@dataclass(slots=True)
class _Told:
    """One thing that was told, and not again before *until*; *held* stands for its repeats since."""

    until: float
    held: Alert | None = None


class Repeats:
    """Holds back repeats. No clock: *now* is the caller's, in seconds, and never goes back.

    Alerts are alike if kind, tenant, type and handler are. Where many things go wrong at once, those of one kind are
    told as one that names none of them; so neither what is told nor what is remembered grows with their number.
    """

    def __init__(self, *, every_s: float = 300.0, per_minute_max: int = 30) -> None:
        """Tell each thing once in *every_s*, and of *per_minute_max* new things by themselves."""
        self._every_s = every_s
        self._per_minute_max = per_minute_max
        self._told: dict[_About, _Told] = {}
        self._new_at: deque[float] = deque()

    def tell(self, alert: Alert, now: float) -> Alert | None:
        """Return what is to be told of *alert* now, if anything."""
        self._forget(now)
        if _about(alert) not in self._told and not self._has_room(now):
            alert = replace(alert, tenant=None, event_type=None, handler=None)
        told = self._told.get(_about(alert))
        if told is None:
            self._told[_about(alert)] = _Told(until=now + self._every_s)
            return alert
        held = 0 if told.held is None else told.held.count
        told.held = replace(alert, count=held + alert.count)
        return None

    def due(self, now: float) -> list[Alert]:
        """Return what was held back long enough, the latest of each with the count of all."""
        self._forget(now)
        found = []
        for told in self._told.values():
            if told.held is not None and told.until <= now:
                found.append(told.held)
                told.held, told.until = None, now + self._every_s
        return found

    def _has_room(self, now: float) -> bool:
        """Whether another new thing may be told by itself; if so, it is."""
        while self._new_at and self._new_at[0] <= now - _MINUTE_S:
            self._new_at.popleft()
        if len(self._new_at) >= self._per_minute_max:
            return False
        self._new_at.append(now)
        return True

    def _forget(self, now: float) -> None:
        for about in [about for about, told in self._told.items() if told.held is None and told.until <= now]:
            del self._told[about]


def _about(alert: Alert) -> _About:
    return alert.kind, alert.tenant, alert.event_type, alert.handler
