"""A slot: what one attempt at a time runs on. Async handlers run on the engine's loop, sync ones on a thread's own."""

import asyncio
import threading
import time
from collections.abc import Coroutine
from typing import Final, TypeVar

from sqlalchemy.ext.asyncio import AsyncEngine

from consumer.engine.attempt import Attempts, Job, Result
from consumer.engine.calling import invoke
from consumer.registry import Handler
from consumer.store.connection import SlotConnection
from outbox.event import Event

T = TypeVar("T")
_JOIN_S: Final = 2.0


class Slot:
    """A database connection on the engine's loop, and, once a sync handler was run, a thread with one of its own."""

    def __init__(self, engine: AsyncEngine, *, number: int) -> None:
        self.number = number
        self.connection = SlotConnection(engine)
        self._engine = engine
        self._thread: LoopThread | None = None
        self._thread_connection = SlotConnection(engine)
        self.attempt_job: Job | None = None
        self.attempt_since: float | None = None  # on the monotonic clock

    async def attempt(self, attempts: Attempts, job: Job) -> Result:
        """Run *job* in a transaction, where its handler may block and where it may not."""
        self.attempt_job, self.attempt_since = job, time.monotonic()
        try:
            if job.handler.is_async:
                return await attempts.run(self.connection, job)
            return await self._own_thread().run(attempts.run(self._thread_connection, job))
        finally:
            self.attempt_job = self.attempt_since = None

    async def invoke(self, handler: Handler, event: Event, arguments: dict[str, object]) -> object:
        """Call *handler* where it may block if it does; no connection is opened for it."""
        if handler.is_async:
            return await invoke(handler, event, arguments)
        return await self._own_thread().run(invoke(handler, event, arguments))

    async def close(self) -> None:
        """Close both connections and end the thread; a handler that blocks it is left behind."""
        await self.connection.close()
        if self._thread is not None:
            thread, self._thread = self._thread, None
            await thread.close(self._thread_connection.close())

    def _own_thread(self) -> "LoopThread":
        if self._thread is None:
            self._thread = LoopThread(f"consumer-slot-{self.number}")
        return self._thread


class LoopThread:
    """A daemon thread that runs an event loop."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    async def run(self, work: Coroutine[object, object, T]) -> T:
        """Run *work* there and return what it returns. Cancelled, it is cancelled there as soon as it can be."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def close(self, last: Coroutine[object, object, None]) -> None:
        """Run *last* there, then end the loop. Gives up after two seconds on a thread that something blocks."""
        try:
            async with asyncio.timeout(_JOIN_S):
                await self.run(last)
        except TimeoutError:
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        await asyncio.to_thread(self._thread.join, _JOIN_S)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()
