"""Two signals and what they mean: the first asks to drain, the second to stop at once."""

import asyncio
import signal
from collections.abc import Coroutine
from types import TracebackType
from typing import Final, Self

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class Stop:
    """Whether this process was asked to end, and how urgently.

    Used as an async context manager it listens for SIGTERM and SIGINT; without, only ``request`` counts.
    Belongs to one event loop, in the main thread if it listens.
    """

    def __init__(self) -> None:
        self._drain = asyncio.Event()
        self._at_once = asyncio.Event()

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self.request)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.remove_signal_handler(number)

    def request(self) -> None:
        """Ask to drain; asked again, to stop at once."""
        if self._drain.is_set():
            self._at_once.set()
        self._drain.set()

    @property
    def is_draining(self) -> bool:
        """Whether the process was asked to end at all."""
        return self._drain.is_set()

    @property
    def is_at_once(self) -> bool:
        """Whether it was asked twice."""
        return self._at_once.is_set()

    async def drain(self) -> None:
        """Return when the process has been asked to end."""
        await self._drain.wait()

    async def at_once(self) -> None:
        """Return when it has been asked twice."""
        await self._at_once.wait()


async def first_of(*events: Coroutine[object, object, object], within_s: float | None = None) -> None:
    """Return when the first of *events* does, or after *within_s*; the others are not waited for any more."""
    waits = [asyncio.ensure_future(event) for event in events]
    try:
        await asyncio.wait(waits, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
