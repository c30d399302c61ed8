"""A circuit breaker that is not closed: nothing starts, then a few probes, then ever more until all may.

No clock: *now* is the caller's, in seconds, and never goes back. Source: Nygard, "Release It!", 2007. Ours differs in
the way back: after the probes starts are let through at a bounded rate, so that what has just recovered is not run
over by everything that has waited.
"""

import math
from enum import Enum, auto
from typing import Final

from consumer.decide.policy import Breaker

_DOUBLINGS: Final = 10  # within the ramp: from *probes* a second to a thousand times that
_LEVELS_MAX: Final = 64
_PERCENT: Final = 100.0


class Phase(Enum):
    """Where a breaker stands between opening and having closed."""

    OPEN = auto()
    PROBING = auto()
    RAMPING = auto()
    CLOSED = auto()


class Circuit:
    """One breaker, from the moment at which it opens. *ident* names an event that has started, once it has."""

    def __init__(self, breaker: Breaker, now: float) -> None:
        self.phase = Phase.OPEN
        self._breaker = breaker
        self._times_opened = 0
        self._until = now
        self._running: set[int] = set()
        self._passed = 0  # probes that succeeded; in the ramp, events that ended
        self._failed = 0
        self._started = 0  # in the ramp
        self._open(now)

    def advance(self, now: float) -> None:
        """Let the time that has passed have its effect."""
        if self.phase is Phase.OPEN and now >= self._until:
            self._enter(Phase.PROBING)
        elif self.phase is Phase.RAMPING and now >= self._until + self._breaker.ramp_s:
            self.phase = Phase.CLOSED

    def room(self, now: float) -> float:
        """How many more events may start now; one, if it is a fraction."""
        match self.phase:
            case Phase.OPEN:
                return 0
            case Phase.PROBING:
                return self._breaker.probes - len(self._running) - self._passed
            case Phase.RAMPING:
                return self._allowed(now) - self._started
            case Phase.CLOSED:
                return math.inf

    def has_room(self, now: float) -> bool:
        """Whether one more event may start now."""
        return self.room(now) > 0

    def is_paused(self) -> bool:
        """Whether nothing may start until time has passed, or a probe has ended."""
        return self.phase in {Phase.OPEN, Phase.PROBING} and not self.has_room(self._until)

    def started(self, ident: int) -> None:
        """An event that there was room for has started."""
        self._running.add(ident)
        self._started += 1

    def left(self, ident: int) -> None:
        """It has ended. If it neither ``succeeded`` nor ``failed`` it never got to the handler: another may start."""
        self._running.discard(ident)

    def succeeded(self, ident: int, now: float) -> None:
        """Its attempt went well."""
        if ident not in self._running:
            return  # it started before the breaker opened, and says nothing of now
        self._running.discard(ident)
        self._passed += 1
        if self.phase is Phase.PROBING and self._passed >= self._breaker.probes:
            self._enter(Phase.RAMPING)
            self._until = now

    def failed(self, ident: int, now: float) -> None:
        """Its attempt failed: the breaker may open again, for twice as long."""
        if ident not in self._running:
            return
        self._running.discard(ident)
        self._failed += 1
        ended = self._passed + self._failed
        is_bad = self._failed * _PERCENT > ended * self._breaker.failure_percent
        if self.phase is Phase.PROBING or (self.phase is Phase.RAMPING and ended >= self._breaker.probes and is_bad):
            self._open(now)

    def wait_s(self, now: float) -> float:
        """Return how long nothing will start, as far as is known."""
        return max(0.0, self._until - now) if self.phase is Phase.OPEN else 0.0

    def next_s(self, now: float) -> float | None:
        """Return how long until time alone makes a difference; None if it will not."""
        match self.phase:
            case Phase.OPEN:
                return self.wait_s(now)
            case Phase.RAMPING:
                left_s = max(0.0, self._until + self._breaker.ramp_s - now)
                if self.has_room(now):
                    return left_s
                doubling_s = self._breaker.ramp_s / _DOUBLINGS
                # The moment at which ``_allowed`` passes what has started.
                rate = self._breaker.probes * doubling_s / math.log(2)
                room_s = doubling_s * math.log2(1 + (self._started - 1) / rate)
                return min(left_s, max(0.0, self._until + room_s - now))
            case Phase.PROBING | Phase.CLOSED:
                return None

    def _allowed(self, now: float) -> float:
        """How many may have started by *now*: *probes* a second at first, a rate that doubles ten times."""
        if self._breaker.ramp_s == 0:
            return math.inf
        doubling_s = self._breaker.ramp_s / _DOUBLINGS
        doublings = min((now - self._until) / doubling_s, _DOUBLINGS)
        return 1 + self._breaker.probes * doubling_s * (math.exp2(doublings) - 1) / math.log(2)

    def _open(self, now: float) -> None:
        self._enter(Phase.OPEN)
        wait_s: float = self._breaker.open_s * 2.0 ** min(self._times_opened, _LEVELS_MAX)
        self._until = now + min(wait_s, self._breaker.open_max_s)
        self._times_opened += 1

    def _enter(self, phase: Phase) -> None:
        self.phase = phase
        self._running.clear()
        self._passed = self._failed = self._started = 0
