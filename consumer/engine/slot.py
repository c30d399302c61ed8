"""A slot: what one attempt at a time runs on. Async handlers run on the engine's loop, sync ones on a thread's own."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Coroutine
from typing import Final, TypeVar

from sqlalchemy.ext.asyncio import AsyncEngine

from consumer.engine.abandoned import WATCH, Abandoned, Unstoppable, Watch
from consumer.engine.attempt import Attempts, Job, Raised, Result
from consumer.engine.calling import invoke
from consumer.engine.pool import Pool
from consumer.registry import Handler, Isolation
from consumer.store.connection import SlotConnection
from outbox.event import Event

T = TypeVar("T")
_JOIN_S: Final = 2.0


class Slot:
    """A database connection on the engine's loop, and, once a sync handler was run, a thread with one of its own."""

    def __init__(
        self, engine: AsyncEngine, *, number: int, abandoned: Abandoned | None = None, pool: Pool | None = None
    ) -> None:
        """*abandoned* counts the handlers that could not be stopped at their deadline.

        *pool* has the processes for handlers that want one; without it they run here: this process runs nothing else.
        """
        self._pool = pool
        self.number = number
        self.connection = SlotConnection(engine)
        self._engine = engine
        self._abandoned = abandoned if abandoned is not None else Abandoned(most=0)
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
            return await self._attempt_in_thread(attempts, job)
        finally:
            self.attempt_job = self.attempt_since = None

    async def _attempt_in_thread(self, attempts: Attempts, job: Job) -> Result:
        watch = Watch(job.handler.deadline_s)
        try:
            return await self._in_thread(attempts.run(self._thread_connection, job), watch, name=job.handler.name)
        except Unstoppable as error:
            return Raised(attempt=watch.attempt, error=error)

    def invoke(self, handler: Handler, event: Event, arguments: dict[str, object]) -> Awaitable[object]:
        """Call *handler* where it may block if it does; no connection is opened for it."""
        if handler.isolation is Isolation.PROCESS and self._pool is not None:
            return self._pool.call(handler, event, arguments)
        if handler.is_async:
            return invoke(handler, event, arguments, abandoned=self._abandoned)
        return self._in_thread(invoke(handler, event, arguments), Watch(handler.deadline_s), name=handler.name)

    async def _in_thread(self, work: Awaitable[T], watch: Watch, *, name: str) -> T:
        """Run *work*, which calls a sync handler, on this slot's thread; raises Unstoppable once that is late."""

        async def watched() -> T:
            WATCH.set(watch)
            return await work

        thread = self._own_thread()
        running = asyncio.ensure_future(thread.run(watched()))
        try:
            while not running.done():
                await asyncio.wait({running}, timeout=watch.left_s())
                if not running.done() and watch.give_up():
                    break
        except asyncio.CancelledError:
            running.cancel()
            raise
        if running.done():
            return running.result()
        self._leave(thread, running, name)
        raise Unstoppable(f"handler {name}: want an end at its deadline, got none: it blocks its thread")

    def _leave(self, thread: "LoopThread", running: "asyncio.Future[T]", name: str) -> None:
        """Let *thread* go on by itself, cut off from the database; the next handler gets another."""
        self._thread_connection.sever()
        self._thread, self._thread_connection = None, SlotConnection(self._engine)
        self._abandoned.add(running, handler=name, then=thread.stop)

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
        """Run *last* there, let what it cut off come to its end, and end the loop.

        Gives up after two seconds on a thread that something blocks.
        """

        async def to_the_end() -> None:
            await last
            if unwinding := asyncio.all_tasks() - {asyncio.current_task()}:
                await asyncio.wait(unwinding)

        try:
            async with asyncio.timeout(_JOIN_S):
                await self.run(to_the_end())
        except TimeoutError:
            return
        self.stop()
        await asyncio.to_thread(self._thread.join, _JOIN_S)

    def stop(self) -> None:
        """Let the loop end, and the thread with it."""
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()
