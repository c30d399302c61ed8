"""What cuts a tenure's naps short: somebody said that there is something to see."""

import asyncio
import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Alarm:
    """Outlives tenures; one of them naps at a time. Polling stays the truth: one that never rings costs time only."""

    def __init__(self) -> None:
        self._nap: asyncio.Timeout | None = None
        self.rang_at = -math.inf
        """Monotonic time of the last ring."""

    def ring(self) -> None:
        """End the nap, if there is one. Called on the event loop, as often as anybody likes."""
        self.rang_at = time.monotonic()
        # Once a nap: one that is ending already cannot be told again.
        nap, self._nap = self._nap, None
        if nap is not None:
            nap.reschedule(asyncio.get_running_loop().time())

    @asynccontextmanager
    async def nap(self) -> AsyncIterator[None]:
        """Run a wait that a ring cuts short. What is inside must bear being cancelled while it waits."""
        limit = asyncio.timeout(None)
        try:
            async with limit:
                self._nap = limit
                yield
        except TimeoutError:
            if not limit.expired():
                raise
        finally:
            self._nap = None
