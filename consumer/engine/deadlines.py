"""Deadlines that are hardly ever reached: each costs an entry, and the event loop has one timer for all of a length."""

import asyncio
from collections.abc import Callable
from typing import Final


class Deadlines:
    """Calls back what is late; all of it runs on one event loop, and deadlines have few lengths."""

    def __init__(self) -> None:
        self._of_length: dict[float, _OfLength] = {}

    def add(self, key: object, deadline_s: float, be_late: Callable[[], None]) -> None:
        """Call *be_late* in *deadline_s*, unless *key* is removed before."""
        of_length = self._of_length.get(deadline_s)
        if of_length is None:
            of_length = self._of_length[deadline_s] = _OfLength(deadline_s)
        of_length.add(key, be_late)

    def remove(self, key: object, deadline_s: float) -> None:
        """Forget *key*, added with *deadline_s*; it may have been late."""
        self._of_length[deadline_s].waiting.pop(key, None)


class _OfLength:
    """Those of one length: they are late in the order they came in."""

    def __init__(self, length_s: float) -> None:
        self.waiting: Final[dict[object, tuple[float, Callable[[], None]]]] = {}
        self._length_s = length_s
        self._is_armed = False

    def add(self, key: object, be_late: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        moment = loop.time() + self._length_s
        self.waiting[key] = moment, be_late
        if not self._is_armed:
            self._is_armed = True
            loop.call_at(moment, self._ring, loop)

    def _ring(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_armed = False
        now = loop.time()
        while self.waiting:
            key, (moment, be_late) = next(iter(self.waiting.items()))
            if moment > now:
                self._is_armed = True
                loop.call_at(moment, self._ring, loop)
                return
            del self.waiting[key]
            be_late()
