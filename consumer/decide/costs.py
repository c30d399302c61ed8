"""What an event costs: the time it has a slot, in milliseconds, expected before and measured after.

No clock: durations are arguments. A type's expected cost follows what its events took, an eighth of the way each
time (the gain of RFC 6298's round-trip estimate); what the scheduler charged by it is corrected at the end, so a
wrong one costs nobody more than a late correction. What takes less than a millisecond costs one, so for the quickest
handlers there is nothing to correct.
"""

from collections.abc import Iterable
from typing import Final

#: What an event of an unknown type is taken to cost: 10 ms.
QUANTUM: Final = 10
_MS: Final = 1_000
_GAIN: Final = 8
_CLOSE: Final = 0.5


class Costs:
    """Expected costs by event type. Types that were not named are no handler's: they cost a quantum, always."""

    def __init__(self, types: Iterable[str]) -> None:
        self._expected = dict.fromkeys(types, float(QUANTUM))

    def expected(self, event_type: str) -> int:
        """What the next event of *event_type* will cost, as far as is known: 1 or more."""
        return int(self._expected.get(event_type, QUANTUM) + 0.5) or 1

    def learn(self, event_type: str, took_s: float) -> int:
        """An event of *event_type* had its slot for *took_s*; return what that cost."""
        cost = cost_of(took_s)
        expected = self._expected.get(event_type)
        if expected is not None and abs(cost - expected) > _CLOSE:
            self._expected[event_type] = expected + (cost - expected) / _GAIN
        return cost


def quantum_of(slots: int) -> int:
    """What a tenant may take per round where *slots* run: a millisecond of them all, 10 ms or more.

    Rounds cost the scheduler at most a visit for each such millisecond, however many slots there are.
    """
    return max(QUANTUM, slots)


def cost_of(took_s: float) -> int:
    """What having a slot for *took_s* costs."""
    return max(1, int(took_s * _MS + 0.5))
