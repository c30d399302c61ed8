"""A relay in a process of its own, how to talk to it, and the lanes that it finds declared."""

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from benchmarks.servers import Servers
from outbox.naming import Lane
from outbox.topology import QueueKind
from relay.rabbitmq.publisher import RabbitPublisher

_ANSWER_S = 180
_LINE_BYTES_MAX = 1 << 24


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
        stdin=PIPE, stdout=PIPE, limit=_LINE_BYTES_MAX,
    )  # fmt: skip
    try:
        yield child
    finally:
        assert child.stdin is not None
        child.stdin.close()
        await asyncio.wait_for(child.wait(), 30)


async def ask(child: Process, question: Mapping[str, int | bool]) -> None:
    """Send *question* as ``benchmarks.relay_child`` reads it, and return once it was read."""
    assert child.stdin is not None
    child.stdin.write(json.dumps(question).encode() + b"\n")
    assert "ready" in await answer(child)


async def answer(child: Process) -> Mapping[str, float]:
    """What the child says next."""
    assert child.stdout is not None
    said: Mapping[str, float] = json.loads(await asyncio.wait_for(child.stdout.readline(), _ANSWER_S))
    return said
