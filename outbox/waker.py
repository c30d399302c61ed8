"""Tells relays of a commit, after it and beside it.

A NOTIFY inside the business transaction would take a lock of the whole cluster at its commit, fail that commit when
the notification queue is full, and forbid two-phase commit. So a thread sends it, on a connection of its own, and what
goes wrong there is nobody's concern: relays poll, and find an event that nobody told them of a little later.
"""

import asyncio
import logging
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final
from weakref import WeakKeyDictionary

from sqlalchemy import Engine, Pool, text

from outbox.backoff import Jitter, backoff_s
from outbox.schema import WAKE_CHANNEL

log: Final = logging.getLogger("outbox")

_NOTIFY: Final = text(f"NOTIFY {WAKE_CHANNEL}")
# A relay that has just found something looks again every few milliseconds, so nobody waits for the next one.
_EVERY_S: Final = 0.1
_IDLE_S: Final = 60.0
_BASE_S: Final = 0.5
_CAP_S: Final = 30.0


class Waker:
    """Wakes the relays of the databases that an app commits to, each at most ten times a second.

    A database's thread and connection come with the first commit and end a minute after the last.
    """

    def __init__(self) -> None:
        self._begin()

    def wake(self, engine: Engine) -> None:
        """Have the relays of *engine*'s database told that something was committed. Never waits and never raises."""
        if self._pid != os.getpid():
            # A fork has none of its parent's threads, and must not touch the parent's locks and connections.
            self._begin()
        # By its pool: engines that differ in their execution options share that, and may be made for each request.
        pool = engine.pool
        with self._lock:
            caller = self._callers.get(pool)
            if caller is None:
                caller = self._callers[pool] = _Caller()
        caller.call(engine)

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._callers: WeakKeyDictionary[Pool, _Caller] = WeakKeyDictionary()


class _Caller:
    """Calls the relays of one database, from a thread that ends when there is nothing to tell."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._is_wanted = False
        self._thread: threading.Thread | None = None

    def call(self, engine: Engine) -> None:
        """See ``Waker.wake``."""
        with self._changed:
            self._is_wanted = True
            self._changed.notify()
            if self._thread is None:
                thread = threading.Thread(target=self._run, args=(engine,), name="outbox-waker", daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:  # no more threads, or the interpreter is ending
                    log.warning("relays were not woken, they poll: %s", error)
                else:
                    self._thread = thread

    def _run(self, engine: Engine) -> None:
        failures = 0
        rng = random.Random()  # noqa: S311 (it only keeps many apps from calling at once)
        while self._has_call():
            try:
                with _notifying(engine) as notify:
                    while self._has_call():
                        # Before it is sent: a commit that comes meanwhile is told of by the next one.
                        self._is_wanted = False
                        notify()
                        failures = 0
                        time.sleep(_EVERY_S)
            except Exception as error:  # noqa: BLE001 (the app's own way to connect may raise anything)
                failures += 1
                if failures == 1:
                    log.warning("relays were not woken, they poll: %s", _first_line(error))
                time.sleep(backoff_s(failures, base_s=_BASE_S, cap_s=_CAP_S, jitter=Jitter.EQUAL, rng=rng))

    def _has_call(self) -> bool:
        """Wait for a call; False ends the thread."""
        with self._changed:
            if self._thread is not threading.current_thread():
                return False
            if self._changed.wait_for(lambda: self._is_wanted, timeout=_IDLE_S):
                return True
            self._thread = None
            return False


@contextmanager
def _notifying(engine: Engine) -> Iterator[Callable[[], None]]:
    """Connect as *engine* does, but outside of its pool, which is the app's; yield what sends one notification."""
    own = Engine(engine.pool.recreate(), engine.dialect, engine.url)
    with _notifying_async(own) if engine.dialect.is_async else _notifying_sync(own) as notify:
        yield notify


@contextmanager
def _notifying_sync(engine: Engine) -> Iterator[Callable[[], None]]:
    connection = engine.connect()
    try:
        connection.execution_options(isolation_level="AUTOCOMMIT")
        yield lambda: connection.execute(_NOTIFY).close()
    finally:
        # Not given back to a pool, which would have it rolled back first, by a server that may be gone.
        connection.invalidate()
        connection.close()


@contextmanager
def _notifying_async(engine: Engine) -> Iterator[Callable[[], None]]:
    from sqlalchemy.ext.asyncio import AsyncEngine  # noqa: PLC0415 (an app that is not async need not have greenlet)

    connection = AsyncEngine(engine).connect()

    async def begin() -> None:
        await connection.start()
        await connection.execution_options(isolation_level="AUTOCOMMIT")

    async def notify() -> None:
        await connection.execute(_NOTIFY)

    async def end() -> None:
        if connection.sync_connection is not None:
            await connection.invalidate()
            await connection.close()

    # A connection belongs to one event loop: this one's to a loop of this thread.
    with asyncio.Runner() as runner:
        try:
            runner.run(begin())
            yield lambda: runner.run(notify())
        finally:
            runner.run(end())


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
