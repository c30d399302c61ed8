"""A thread with an event loop of its own, and the mailboxes by which two loops hand each other work.

The broker's connection lives in such a thread, so a handler that burns CPU in Python on the engine's
loop takes turns with it and never starves its heartbeats.
"""

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")


class Mailbox(Generic[T]):
    """Items for one event loop, from any thread, in order; the loop is woken once for all that is waiting.

    What is posted before ``open`` waits for it.
    """

    def __init__(self, handle: Callable[[Sequence[T]], None]) -> None:
        """*handle* is called on the loop with one or more items; it never raises."""
        self._handle = handle
        self._items: deque[T] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_woken = False

    def open(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to hand items out on *loop*; called on it."""
        self._loop = loop
        self._drain()

    def post(self, items: Iterable[T]) -> None:
        """Hand *items* over; returns at once."""
        self._items.extend(items)
        # The item is in place before the flag is read, and the loop lowers the flag before it looks for
        # items: whichever comes first, the item is found. The other order would leave it lying.
        loop = self._loop
        if not self._is_woken and loop is not None:
            self._is_woken = True
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to hear
                loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        self._is_woken = False
        items: list[T] = []
        while self._items:
            items.append(self._items.popleft())
        if items and self._loop is not None:
            self._handle(items)


class WireThread:
    """One thread that runs one coroutine on an event loop of its own; the process can exit in spite of it.

    It is a loop of the same kind as the one that starts the thread.
    """

    def __init__(self, name: str, main: Callable[[], Coroutine[object, object, None]]) -> None:
        self._main = main
        self._ended = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    async def ended(self, *, within_s: float) -> bool:
        """Wait until the coroutine has returned and the thread is gone; False if it has not *within_s*."""
        try:
            async with asyncio.timeout(within_s):
                await self._ended.wait()
        except TimeoutError:
            return False
        self._thread.join()
        return True

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=type(self._loop)) as runner:
                runner.run(self._main())
        finally:
            with contextlib.suppress(RuntimeError):  # the loop that waits is closed already
                self._loop.call_soon_threadsafe(self._ended.set)
