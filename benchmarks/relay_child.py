"""One relay in a process of its own, so that its CPU time is its own: told by JSON lines when to count.

Reads lines of JSON from standard input, says that each is read, and answers

- ``{"expect": n}``, once *n* more events are confirmed, with ``{"last_confirm": monotonic seconds, "cpu_s": seconds
  since that line}``;
- ``{"persists": true}`` with ``{"persists_ms": [how long each persist since the last such line took]}``.

Ends when its input does.
"""

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from typing import Any, Final

from outbox.shell.logs import configure
from outbox.topology import QueueKind
from relay.engine.janitor import run_janitor
from relay.engine.loop import run_relay
from relay.gauges import Gauges
from relay.limits import Limits, Upkeep
from relay.log import positions
from relay.ports import Confirmed, Outgoing, Settlement
from relay.process import collect_rarely
from relay.rabbitmq.publisher import RabbitPublisher

#: Short, so that a takeover is soon seen.
LEASE_S: Final = 5.0
_DAY_S = 86_400.0


class Counting:
    """A publisher that counts what the real one confirms."""

    def __init__(self, publisher: RabbitPublisher) -> None:
        self._publisher = publisher
        self.confirmed = 0
        self.last_confirm = 0.0
        self.changed = asyncio.Event()

    @property
    def is_blocked(self) -> bool:
        """As the port says."""
        return self._publisher.is_blocked

    async def open(self) -> None:
        """As the port says."""
        await self._publisher.open()

    async def send(self, batch: Sequence[Outgoing]) -> None:
        """As the port says."""
        await self._publisher.send(batch)

    async def settlements(self, *, timeout_s: float) -> Sequence[Settlement]:
        """As the port says."""
        settled = await self._publisher.settlements(timeout_s=timeout_s)
        self.confirmed += sum(isinstance(one, Confirmed) for one in settled)
        if settled:
            self.last_confirm = time.monotonic()
            self.changed.set()
        return settled

    def unread(self) -> AbstractContextManager[None]:
        """As the port says."""
        return self._publisher.unread()

    async def close(self) -> None:
        """As the port says."""
        await self._publisher.close()


def timed_persists() -> list[float]:
    """How long persists take from now on, in milliseconds; the caller empties it."""
    persist, durations_ms = positions.persist, list[float]()

    async def timed(*arguments: Any, **options: Any) -> None:
        began = time.monotonic()
        await persist(*arguments, **options)
        durations_ms.append((time.monotonic() - began) * 1000)

    positions.persist = timed
    return durations_ms


async def main(database_url: str, rabbitmq_url: str, kind: QueueKind) -> None:
    """Run the relay, and answer lines until there are no more."""
    publisher = RabbitPublisher(url=rabbitmq_url, queue_kind=kind)
    counting = Counting(publisher)
    persists_ms = timed_persists()
    stop, gauges = asyncio.Event(), Gauges()
    limits = replace(Limits(), lease_s=LEASE_S)
    upkeep = Upkeep(retention_s=_DAY_S, ordering_retention_s=_DAY_S, every_s=60)
    janitor = asyncio.create_task(run_janitor(database_url, stop=stop, upkeep=upkeep, gauges=gauges))
    relay = asyncio.create_task(run_relay(database_url, counting, publisher, stop=stop, limits=limits, gauges=gauges))
    while line := await asyncio.to_thread(sys.stdin.readline):
        asked = json.loads(line)
        cpu = time.process_time()
        print(json.dumps({"ready": True}), flush=True)
        if "persists" in asked:
            print(json.dumps({"persists_ms": persists_ms}), flush=True)
            persists_ms.clear()
            continue
        wanted = counting.confirmed + asked["expect"]
        while counting.confirmed < wanted:
            counting.changed.clear()
            await asyncio.wait_for(counting.changed.wait(), 120)
        answer = {"last_confirm": counting.last_confirm, "cpu_s": time.process_time() - cpu}
        print(json.dumps(answer), flush=True)
    for task in (relay, janitor):
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


if __name__ == "__main__":
    configure(level="warning", format="console", stream=sys.stderr)
    collect_rarely()
    kind: QueueKind = "quorum" if sys.argv[3] == "quorum" else "classic"
    asyncio.run(main(sys.argv[1], sys.argv[2], kind))
