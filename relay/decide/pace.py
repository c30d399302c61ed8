"""How much one lane may have with the broker at once: as much as keeps its queue busy, and little more.

What lies unconfirmed beyond that only waits in the broker, and everybody else's next event waits behind it. So a
lane's room grows while its confirms take about as long as the quickest ones did, and shrinks when they take longer.
No clock (the time is given) and no I/O.

Source: RFC 6817 (LEDBAT), whose window keeps the delay that it adds itself below a target. Ours counts messages,
and forgets the quickest confirm within a minute, since a queue may move to another node.
"""

import math
from typing import Final

# What a lane may add to everybody's delay.
_TARGET_S: Final = 0.01
_START: Final = 200.0
_LEAST: Final = 32.0
_GAIN: Final = 10.0
_REMEMBER_S: Final = 30.0


class Pace:
    """One lane's."""

    __slots__ = ("_before_s", "_quickest_s", "_until", "room")

    def __init__(self) -> None:
        self.room = _START
        """How many messages may be unconfirmed."""
        self._quickest_s = self._before_s = math.inf
        self._until = -math.inf

    def confirmed(self, after_s: float, now: float) -> None:
        """A message was confirmed *now*, *after_s* since it was sent."""
        if now > self._until:
            self._before_s, self._quickest_s, self._until = self._quickest_s, math.inf, now + _REMEMBER_S
        self._quickest_s = min(self._quickest_s, after_s)
        added_s = after_s - min(self._quickest_s, self._before_s)
        self.room = max(_LEAST, self.room + _GAIN / self.room * max(1.0 - added_s / _TARGET_S, -1.0))
