"""One relay in a process of its own, so that its CPU time is its own: told by JSON lines when to count.

Reads ``{"expect": n}`` from standard input and answers, once *n* more events are confirmed, with
``{"last_confirm": monotonic seconds, "cpu_s": seconds since that line}``. Ends when its input does.
"""

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from outbox.shell.logs import configure
from outbox.topology import QueueKind
from relay.engine.loop import run_relay
from relay.limits import Limits
from relay.ports import Confirmed, Outgoing, Settlement
from relay.rabbitmq.publisher import RabbitPublisher

#: Short, so that a takeover is soon seen.
LEASE_S: Final = 5.0


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

    async def close(self) -> None:
        """As the port says."""
        await self._publisher.close()


async def main(database_url: str, rabbitmq_url: str, kind: QueueKind) -> None:
    """Run the relay, and answer lines until there are no more."""
    publisher = RabbitPublisher(url=rabbitmq_url, queue_kind=kind)
    counting = Counting(publisher)
    relay = asyncio.create_task(
        run_relay(database_url, counting, publisher, stop=asyncio.Event(), limits=replace(Limits(), lease_s=LEASE_S))
    )
    while line := await asyncio.to_thread(sys.stdin.readline):
        wanted = counting.confirmed + json.loads(line)["expect"]
        cpu = time.process_time()
        print(json.dumps({"ready": True}), flush=True)
        while counting.confirmed < wanted:
            counting.changed.clear()
            await asyncio.wait_for(counting.changed.wait(), 120)
        answer = {"last_confirm": counting.last_confirm, "cpu_s": time.process_time() - cpu}
        print(json.dumps(answer), flush=True)
    relay.cancel()
    with suppress(asyncio.CancelledError):
        await relay


if __name__ == "__main__":
    configure(level="warning", format="console", stream=sys.stderr)
    kind: QueueKind = "quorum" if sys.argv[3] == "quorum" else "classic"
    asyncio.run(main(sys.argv[1], sys.argv[2], kind))
