"""A relay in a process of its own, and the lanes that it finds declared."""

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from benchmarks.servers import Servers
from outbox.naming import Lane
from outbox.topology import QueueKind
from relay.rabbitmq.publisher import RabbitPublisher


async def declare_lanes(given: Servers, mine: Sequence[Lane], kind: QueueKind) -> None:
    """Declare and bind every lane, as a relay would on first use."""
    publisher = RabbitPublisher(url=given.rabbitmq_url, queue_kind=kind)
    await publisher.open()
    faults = await publisher.declare(mine)
    assert not faults, faults
    await publisher.close()


@asynccontextmanager
async def relay_process(given: Servers, kind: QueueKind) -> AsyncIterator[Process]:
    """``benchmarks.relay_child``, running; its pipes are the caller's."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.relay_child", given.database_url, given.rabbitmq_url, kind,
        stdin=PIPE, stdout=PIPE,
    )  # fmt: skip
    try:
        yield child
    finally:
        assert child.stdin is not None
        child.stdin.close()
        await asyncio.wait_for(child.wait(), 30)
