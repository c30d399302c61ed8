"""How many of a fleet's permits a process asks for, and when it leaves some to others. Pure: time is an argument.

Whoever has work asks for as many as it could use. Where others want some too, and a process has held more than an equal
share for a turn, it goes back to its share, rounded down, and asks for no more until the others have had time to take
what it left. So with fewer permits than processes they go round, a turn each.
"""

from dataclasses import dataclass
from typing import Final

from consumer.decide.fairness import FleetNeed

#: How long a process may keep more than its share once others want some, and how long it then leaves them the rest.
TURN_S: Final = 0.25
LEAVE_S: Final = 0.15
#: How long permits are kept that nobody wants, since asking costs a round trip.
LINGER_S: Final = 1.0


def wanted_of(need: FleetNeed) -> int:
    """How many there is work for."""
    return min(need.most, need.used + need.waiting)


@dataclass(slots=True, kw_only=True)
class Claim:
    """One scope, as one process sees it over time."""

    needed_at: float
    above_share_since: float | None = None
    leaves_until: float = 0.0

    def ask(self, need: FleetNeed, *, rivals: int, now: float) -> int:
        """How many to hold from now on; *rivals* is how many others hold or want some, 0 where none wants more."""
        wanted = wanted_of(need)
        if wanted >= need.held:
            self.needed_at = now
        if not rivals:
            self.above_share_since = None
            return max(wanted, need.held if now - self.needed_at < LINGER_S else 0)
        share = need.most // (rivals + 1)
        if wanted <= share:
            self.above_share_since = None
            return wanted
        if need.held > share and self.above_share_since is None:
            self.above_share_since = now
        if self.above_share_since is not None and now - self.above_share_since >= TURN_S:
            self.above_share_since = None
            self.leaves_until = now + LEAVE_S
        return share if now < self.leaves_until else wanted
