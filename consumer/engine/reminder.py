"""One timer for many wishes: calls back when the earliest moment that somebody wished for has come."""

import asyncio
from collections.abc import Callable


class Reminder:
    """Moments are on the event loop's clock, which is ``time.monotonic``."""

    def __init__(self, remind: Callable[[], None]) -> None:
        self._remind = remind
        self._timer: asyncio.TimerHandle | None = None

    def at(self, moment: float) -> None:
        """Call back at *moment*, once, or before if that was wished for already."""
        if self._timer is not None and self._timer.when() <= moment:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(moment, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self._remind()
