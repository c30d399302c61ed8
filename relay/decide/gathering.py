"""How long confirms may lie unread, so that many are taken in at once.

Among thousands of lanes they come in crumbs, and to take in each would cost more than what it confirms. So while
nothing can go out for want of them the next ones are let gather, for as long as it takes to be many. No clock, no I/O.
"""

# Of the window: with so many on their way they are worth gathering, and when so many were heard at once they were many.
_WORTH = 16
_ENOUGH = 16
_PLENTY = 4


class Gathering:
    """How long one relay lets them gather; times in seconds."""

    def __init__(self, *, window: int, least_s: float, most_s: float) -> None:
        self._window = window
        self._least_s = least_s
        self._most_s = most_s
        self._wait_s = 0.0

    def wait_s(self, in_flight: int, *, has_room: bool) -> float:
        """How long the next ones may gather: not at all where few are *in_flight*, and there is room for more."""
        if has_room and in_flight < self._window // _WORTH:
            self._wait_s = 0.0
        else:
            self._wait_s = max(self._wait_s, self._least_s)
        return self._wait_s

    def heard(self, count: int) -> None:
        """So many had gathered: the next ones get longer after few, and shorter after more than enough."""
        enough = self._window // _ENOUGH
        if count < enough:
            self._wait_s = min(self._wait_s * 2, self._most_s)
        elif count > _PLENTY * enough:
            self._wait_s /= 2
