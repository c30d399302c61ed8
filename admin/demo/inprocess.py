"""The pipeline inside this process: relay and consumer as tasks, the broker in memory."""

import asyncio
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from admin.demo import suppressed
from admin.demo.app import consumer
from consumer.engine.run import run_consumer
from consumer.limits import Limits as ConsumerLimits
from consumer.memory import MemoryBroker, MemoryExchange
from outbox.inprocess import InProcessBroker
from outbox.shell.logs import configure
from outbox.shell.signals import Stop
from relay.engine.loop import run_relay
from relay.limits import Limits as RelayLimits
from relay.memory import MemoryPublisher

# Short, so that what a crashed task held is taken over while one watches.
_LEASE_S: Final = 2.0


class InProcess:
    """``run_relay`` and ``run_consumer`` as tasks; a crash cancels one at whatever it was doing."""

    def __init__(self, *, database_url: str, log: Path) -> None:
        """Prepare; records of both go to the file *log*."""
        self._database_url = database_url
        self._log = log
        self._broker = InProcessBroker()
        self._relay_stop = asyncio.Event()
        self._consumer_stop = Stop()
        self._relay: asyncio.Task[None] | None = None
        self._consumer: asyncio.Task[None] | None = None
        configure(level="info", format="json", stream=log.open("a", buffering=1))

    async def start(self) -> None:
        """As the port says."""
        self._relay = self._start(self._run_relay())
        self._consumer = self._start(self._run_consumer())

    async def crash_relay(self) -> None:
        """As the port says."""
        await _abort(self._relay)
        self._relay = self._start(self._run_relay())

    async def crash_consumer(self) -> None:
        """As the port says."""
        await _abort(self._consumer)
        self._consumer = self._start(self._run_consumer())

    async def stop(self) -> None:
        """As the port says."""
        self._relay_stop.set()
        self._consumer_stop.request()
        running = [task for task in (self._relay, self._consumer) if task is not None]
        self._relay = self._consumer = None
        await asyncio.gather(*running, return_exceptions=True)

    def check(self) -> None:
        """As the port says."""
        for task in (self._relay, self._consumer):
            if task is not None and task.done():
                task.result()

    def suppressed(self) -> Mapping[str, int]:
        """As the port says."""
        return suppressed.count(self._log)

    def _start(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        return asyncio.create_task(work)

    async def _run_relay(self) -> None:
        publisher = MemoryPublisher(self._broker)
        limits = replace(RelayLimits(), lease_s=_LEASE_S)
        await run_relay(self._database_url, publisher, publisher, stop=self._relay_stop, limits=limits)

    async def _run_consumer(self) -> None:
        await run_consumer(
            consumer,
            MemoryBroker(self._broker),
            MemoryExchange(self._broker),
            self._database_url,
            stop=self._consumer_stop,
            limits=replace(ConsumerLimits(), lease_s=_LEASE_S),
        )


async def _abort(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
