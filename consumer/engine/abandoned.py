"""Handlers that went on past their deadline and could not be stopped: left behind, counted, and in the end fled from.

A thread cannot be killed, and a coroutine may swallow its cancellation. What it ran on is replaced, what it had
begun in the database is cut off, and it goes on by itself, holding memory and whatever else it has.
"""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, TypeVar

import structlog

from consumer.engine.deadlines import Deadlines

T = TypeVar("T")
#: How long a coroutine may take to unwind once it was cancelled.
UNWIND_S: Final = 2.0


class Unstoppable(TimeoutError):
    """A handler was past its deadline and went on."""


class Abandoned:
    """How many of them still run in this process. More than *most* and *is_too_many* is set: the process should end.

    *deadlines* are those of the async handlers, which all run on one loop.
    """

    def __init__(self, *, most: int) -> None:
        self.is_too_many = asyncio.Event()
        self.alive = 0
        self.deadlines = Deadlines()
        self._most = most
        self._log = structlog.get_logger("consumer.engine.abandoned")

    def add(self, running: "asyncio.Future[T]", *, handler: str, then: Callable[[], None] | None = None) -> None:
        """*running* was left behind; *then* is called if it ever ends."""
        self.alive += 1
        self._log.error("handler abandoned", handler=handler, alive=self.alive)
        if self.alive > self._most:
            self.is_too_many.set()

        def end(ended: "asyncio.Future[T]") -> None:
            self.alive -= 1
            if not ended.cancelled():
                ended.exception()  # whatever it came to, nobody waits for it
            self._log.warning("abandoned handler ended", handler=handler, alive=self.alive)
            if then is not None:
                then()

        running.add_done_callback(end)


async def within(
    call: Callable[[], Awaitable[T]], deadline_s: float, *, name: str, abandoned: Abandoned | None = None
) -> T:
    """Await what *call* returns, in a task of its own, for *deadline_s*; then cancel it, and leave it if it goes on.

    *abandoned* counts what is left.

    Raises:
        TimeoutError: it was cancelled and has ended.
        Unstoppable: it was cancelled and has not, for two seconds.
    """
    loop = asyncio.get_running_loop()
    known = abandoned if abandoned is not None else Abandoned(most=0)
    ended: asyncio.Future[None] = loop.create_future()
    is_late = False

    def end() -> None:
        if not ended.done():
            ended.set_result(None)

    def be_late() -> None:
        nonlocal is_late
        is_late = True
        task.cancel()
        loop.call_later(UNWIND_S, end)

    task = loop.create_task(_run(call, end), name=name)
    known.deadlines.add(task, deadline_s, be_late)
    try:
        await ended
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait({task}, timeout=UNWIND_S)
        _leave(task, name, abandoned)
        raise
    finally:
        known.deadlines.remove(task, deadline_s)
    if not task.done():
        _leave(task, name, abandoned)
        raise Unstoppable(f"handler {name}: want an end within {deadline_s:g} s, got none, cancelled or not")
    if is_late and task.cancelled():
        raise TimeoutError(f"handler {name}: want an end within {deadline_s:g} s, got none")
    if isinstance(returned := task.result(), SystemExit):
        raise returned
    return returned


async def _run(call: Callable[[], Awaitable[T]], end: Callable[[], None]) -> T | SystemExit:
    try:
        return await call()
    except SystemExit as error:  # it would leave a task by way of the event loop, and end that
        return error
    finally:
        end()  # whoever waits is told after this step, which is the task's last


def _leave(task: "asyncio.Task[T]", name: str, abandoned: Abandoned | None) -> None:
    if not task.done() and abandoned is not None:
        abandoned.add(task, handler=name)


class Watch:
    """One call of a sync handler, watched from another thread."""

    def __init__(self, deadline_s: float) -> None:
        self.attempt = 1
        self._deadline_s = deadline_s
        self._lock = threading.Lock()
        self._began_at: float | None = None
        self._is_given_up = False

    def left_s(self) -> float:
        """How long it may still take; before it began, all of its time."""
        began_at = self._began_at
        return self._deadline_s if began_at is None else max(0.0, began_at + self._deadline_s - time.monotonic())

    def give_up(self) -> bool:
        """Give it up if it runs and is late: it will come to nothing. Whether it was."""
        with self._lock:
            is_late = self._began_at is not None and time.monotonic() >= self._began_at + self._deadline_s
            self._is_given_up = self._is_given_up or is_late
            return is_late

    @contextmanager
    def running(self) -> Iterator[None]:
        """The handler runs inside; what it did is refused if it was given up meanwhile."""
        self._began_at = time.monotonic()
        try:
            yield
        finally:
            with self._lock:
                self._began_at = None
                is_given_up = self._is_given_up
            if is_given_up:
                raise Unstoppable("given up while it ran")


#: The watch over the sync handler that this context calls, if there is one.
WATCH: Final[ContextVar[Watch | None]] = ContextVar("consumer_watch", default=None)
