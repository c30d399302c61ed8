"""What an event costs a relay: CPU of its process and of its database sessions, and time from commit to confirm."""

import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from psycopg import AsyncConnection

from benchmarks.relay_process import answer, ask, relay_process
from benchmarks.servers import Servers
from outbox.topology import QueueKind

_SESSIONS = "SELECT pid FROM pg_stat_activity WHERE application_name = 'outbox-relay' AND datname = current_database()"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Per event, in microseconds."""

    cpu_us: float
    wall_us: float


class MeasuredRelay:
    """A relay in a process of its own, on a server of this machine."""

    def __init__(self, child: Process, given: Servers, watcher: AsyncConnection) -> None:
        self.child = child
        self.given = given
        self._watcher = watcher

    async def cost(self, count: int, work: Callable[[], Awaitable[float]]) -> Cost:
        """Let *work* commit *count* events, and wait for their confirms; *work* returns when the clock starts.

        CPU that a session used which has ended meanwhile is not counted; a relay opens one for large windows.
        """
        await ask(self.child, {"expect": count})
        sessions = await self._sessions_cpu_ns()
        began = await work()
        given = await answer(self.child)
        spent_ns = sum(used - sessions.get(pid, 0) for pid, used in (await self._sessions_cpu_ns()).items())
        return Cost(
            cpu_us=(given["cpu_s"] * 1e6 + spent_ns / 1e3) / count,
            wall_us=(given["last_confirm"] - began) * 1e6 / count,
        )

    async def persists_ms(self) -> Sequence[float]:
        """How long each persist since the last call took."""
        await ask(self.child, {"persists": True})
        durations: list[float] = (await answer(self.child))["persists_ms"]  # type: ignore[assignment]
        return durations

    async def _sessions_cpu_ns(self) -> dict[int, int]:
        used = {}
        for (pid,) in await (await self._watcher.execute(_SESSIONS)).fetchall():
            with suppress(FileNotFoundError):
                used[pid] = int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])
        return used


@asynccontextmanager
async def measured_relay(given: Servers, kind: QueueKind) -> AsyncIterator[MeasuredRelay]:
    """One on *given*, running; its sessions are gone at the end."""
    async with (
        await AsyncConnection.connect(given.database_url, autocommit=True) as watcher,
        relay_process(given, kind) as child,
    ):
        yield MeasuredRelay(child, given, watcher)


def now() -> float:
    """The clock of all times here."""
    return time.monotonic()
