"""Where the testing kit ends a consumer, as a kill would: at either side of its commit."""

import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from enum import Enum, auto
from functools import wraps
from typing import cast

from consumer.memory import MemoryBroker
from consumer.ports import Receipt
from consumer.registry import Handler
from outbox.inprocess import InProcessBroker


class Crash(Enum):
    """Where the consumer is ended, as a kill would end it, before it begins anew."""

    BEFORE_COMMIT = auto()
    """The handler has returned; nothing of it is committed."""
    BEFORE_ACK = auto()
    """All of it is committed; the broker has not heard of it."""


class Faults:
    """Where the next crash is to be, and whether it was reached. Used by two threads: what it does is atomic."""

    def __init__(self) -> None:
        self.armed: Crash | None = None
        self.reached = threading.Event()
        self.outcomes: Counter[str] = Counter()
        self._released = threading.Event()

    def is_at(self, crash: Crash) -> bool:
        """Whether this is the place; from then on nothing goes on there until ``release``."""
        if self.armed is not crash:
            return False
        self.armed = None
        self._released.clear()
        self.reached.set()
        return True

    def release(self) -> None:
        """Let the thread go on that a sync handler holds: it was cancelled meanwhile."""
        self._released.set()

    def passed(self) -> None:
        """The crash is over."""
        self.reached.clear()

    def around(self, handler: Handler) -> Handler:
        """*handler*, which never returns where a crash before its commit is wanted."""
        function = handler.function

        if handler.is_async:

            @wraps(function)
            async def run(**arguments: object) -> object:
                returned = await cast("Awaitable[object]", function(**arguments))
                if self.is_at(Crash.BEFORE_COMMIT):
                    await asyncio.Event().wait()
                return returned

            return replace(handler, function=run)

        @wraps(function)
        def block(**arguments: object) -> object:
            returned = function(**arguments)
            if self.is_at(Crash.BEFORE_COMMIT):
                self._released.wait()
                raise asyncio.CancelledError  # whoever called it is dead
            return returned

        return replace(handler, function=block)


class FaultyBroker(MemoryBroker):
    """Swallows the acknowledgement at which a crash is wanted, and all that follow."""

    def __init__(self, broker: InProcessBroker, faults: Faults) -> None:
        super().__init__(broker)
        self._faults = faults
        self._is_dead = False

    def settle(self, receipts: Sequence[Receipt], *, requeue: bool = False) -> None:
        """As the port says, until the crash."""
        self._is_dead = self._is_dead or self._faults.is_at(Crash.BEFORE_ACK)
        if not self._is_dead:
            super().settle(receipts, requeue=requeue)
