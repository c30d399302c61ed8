"""What has been settled and not heard yet, between an adapter that settles and an engine that waits for it."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from relay.ports import Settlement


class Answers:
    """Kept in the order in which they came."""

    def __init__(self) -> None:
        self._settled: list[Settlement] = []
        self._news = asyncio.Event()

    def add(self, settlements: Sequence[Settlement]) -> None:
        """These are settled."""
        self._settled.extend(settlements)
        self.ring()

    def ring(self) -> None:
        """Wake who waits: something has changed, the connection perhaps."""
        self._news.set()

    def clear(self) -> None:
        """Forget what nobody heard, and wake who waits."""
        self._settled.clear()
        self.ring()

    async def take(self, *, timeout_s: float, check_open: Callable[[], None], is_open: bool) -> Sequence[Settlement]:
        """All that came since the last call; waits up to *timeout_s* for one while the connection *is_open*.

        Raises what *check_open* raises of a lost connection, once everything has been handed out.
        """
        if not self._settled and is_open:
            self._news.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._news.wait()
        if not self._settled:
            check_open()
        settled, self._settled = self._settled, []
        return settled
