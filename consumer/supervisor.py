"""Several consumer processes as one: started, watched, replaced when they die, and ended together.

The supervisor imports no app and opens no connection, so nothing that a handler does can end it. What a worker takes
with it when it dies is what it had in hand; the others go on.
"""

import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, cast

import structlog

from consumer.decide.restart import SOUND_S, End, decide
from outbox.shell.child import Child, Note
from outbox.shell.exits import CONFIGURATION, DONE, TRY_AGAIN, UNAVAILABLE, USAGE
from outbox.shell.health import Check, Probe
from outbox.shell.signals import Stop, first_of

_OF_ALL: Final = frozenset({USAGE, UNAVAILABLE, CONFIGURATION})
#: How long a report may be late before its worker does not count as ready any more.
_LATE_S: Final = 10.0
_WATCH_S: Final = 0.5
_FIRST_S: Final = 10.0
_START_S: Final = 120.0
# After the drain's own time a worker writes acknowledgements and closes connections, which may be cut off.
_DRAIN_MARGIN_S: Final = 15.0
_AT_ONCE_S: Final = 5.0
log = structlog.get_logger("consumer.supervisor")


@dataclass(slots=True, kw_only=True)
class Worker:
    """One place among the workers, and the process that has it now. Times are on the monotonic clock.

    *incarnation* is that of the last process here that told it: its successor frees what that had, as it is dead.
    """

    number: int
    child: Child | None = None
    started_at: float = 0.0
    heard_at: float = 0.0
    checks: Mapping[str, Check] = field(default_factory=dict)
    metrics: str = ""
    incarnation: str = ""
    deaths: int = 0
    restarts: int = 0

    def is_ready(self, now: float) -> bool:
        """Whether it said so, and lately."""
        return bool(self.checks) and now - self.heard_at < _LATE_S and all(one.is_ok for one in self.checks.values())

    def complaint(self, now: float) -> str:
        """Why it is not ready."""
        if self.child is None:
            return "not running"
        if not self.checks:
            return "starting"
        if now - self.heard_at >= _LATE_S:
            return f"silent for {now - self.heard_at:.0f} s"
        return ", ".join(f"{name} {one.detail}".strip() for name, one in self.checks.items() if not one.is_ok)


class Supervisor:
    """Keeps *count* workers running. *command* is the line that starts one, after the one before it has died."""

    def __init__(
        self, command: Callable[[Worker], Sequence[str]], *, count: int, drain_s: float, silent_s: float, stop: Stop
    ) -> None:
        """*silent_s*: a worker that says nothing for longer is killed, and replaced like any that died."""
        self.workers = tuple(Worker(number=number) for number in range(1, count + 1))
        self._command = command
        self._drain_s = drain_s
        self._silent_s = silent_s
        self._stop = stop
        self._rng = random.Random()  # noqa: S311 - it spreads restarts, and hides nothing
        self._was_any_ready = False
        self._first_spoke = asyncio.Event()
        self._code = DONE

    def probes(self) -> dict[str, Probe]:
        """Ready while any worker is: one that was killed and comes again takes nothing from what the others do."""
        return {"workers": self._readiness, "running": self._running}

    async def run(self) -> int:
        """Run until asked to stop, or until a worker's end means that all must; return the exit code."""
        async with asyncio.TaskGroup() as tasks:
            watching = [tasks.create_task(self._end_all()), tasks.create_task(self._watch())]
            async with asyncio.TaskGroup() as workers:
                workers.create_task(self._keep(self.workers[0]))
                # What is wrong with app or settings is said once, not by each.
                workers.create_task(self._follow(workers))
            for task in watching:
                task.cancel()
        return self._code

    async def _follow(self, workers: asyncio.TaskGroup) -> None:
        await first_of(self._first_spoke.wait(), self._stop.drain(), within_s=_FIRST_S)
        for worker in self.workers[1:]:
            workers.create_task(self._keep(worker))

    async def _keep(self, worker: Worker) -> None:
        """Have a process in *worker*'s place, until all are to end."""
        while not self._stop.is_draining:
            code = await self._live(worker)
            if self._stop.is_draining:
                if code != DONE:  # it has not handed back what it held
                    self._fail(TRY_AGAIN)
                return
            ran_s = time.monotonic() - worker.started_at
            worker.deaths = 0 if ran_s >= SOUND_S else worker.deaths + 1
            decision = decide(code, _OF_ALL, was_any_ready=self._was_any_ready, deaths=worker.deaths, rng=self._rng)
            if isinstance(decision, End):
                log.error("worker ended for good", worker=worker.number, exit_code=code)
                self._fail(decision.code)
                self._stop.request()
                return
            worker.restarts += 1
            log.warning("worker died", worker=worker.number, exit_code=code, again_s=round(decision.after_s, 3))
            await first_of(self._stop.drain(), within_s=decision.after_s)

    async def _live(self, worker: Worker) -> int:
        """One process in *worker*'s place, from its start to its end; its exit code."""
        worker.started_at = worker.heard_at = time.monotonic()
        try:
            child = worker.child = await Child.start(self._command(worker))
        except OSError as error:  # no memory, or too many processes
            log.error("worker not started", worker=worker.number, reason=error.strerror)
            return TRY_AGAIN
        worker.checks = {}
        log.info("worker started", worker=worker.number, pid=child.pid)
        if self._stop.is_draining:  # asked while it was being started
            child.link.send({"stop": "drain"})
        hearing = asyncio.create_task(self._hear(worker, child))
        try:
            return await child.ended()
        finally:
            hearing.cancel()
            child.kill()
            worker.child, worker.checks, worker.metrics = None, {}, ""

    async def _hear(self, worker: Worker, child: Child) -> None:
        async for note in child.link.notes():
            worker.heard_at = time.monotonic()
            worker.checks, worker.metrics = _report(note)
            worker.incarnation = str(note.content["incarnation"]) or worker.incarnation
            self._first_spoke.set()
            self._was_any_ready = self._was_any_ready or worker.is_ready(worker.heard_at)

    async def _watch(self) -> None:
        """Kill the workers that have fallen silent, for ever: their event loop stands, and nobody else would notice."""
        while True:
            await asyncio.sleep(_WATCH_S)
            now = time.monotonic()
            for worker in self.workers:
                # Before its first word it loads the app, which may take a busy machine a while.
                patience_s = self._silent_s if worker.checks else max(self._silent_s, _START_S)
                if worker.child is not None and now - worker.heard_at > patience_s:
                    log.error("worker killed", worker=worker.number, silent_s=round(now - worker.heard_at))
                    worker.child.kill()

    async def _end_all(self) -> None:
        """Pass on that all are to end, and see that they do."""
        await self._stop.drain()
        log.info("draining")
        self._tell("drain")
        await first_of(self._stop.at_once(), within_s=self._drain_s + _DRAIN_MARGIN_S)
        if self._stop.is_at_once:
            self._fail(TRY_AGAIN)
            self._tell("at once")
            await asyncio.sleep(_AT_ONCE_S)
        for worker in self.workers:
            if worker.child is not None:
                log.error("worker killed", worker=worker.number, reason="it did not end in time")
                worker.child.kill()

    def _fail(self, code: int) -> None:
        """End with *code*, unless there was a reason before."""
        self._code = code if self._code == DONE else self._code

    def _tell(self, what: str) -> None:
        for worker in self.workers:
            if worker.child is not None:
                worker.child.link.send({"stop": what})

    def _readiness(self) -> Check:
        now = time.monotonic()
        ready = sum(worker.is_ready(now) for worker in self.workers)
        complaints = [f"worker {one.number}: {one.complaint(now)}" for one in self.workers if not one.is_ready(now)]
        return Check(is_ok=ready > 0, detail="; ".join([f"{ready} of {len(self.workers)} ready", *complaints]))

    def _running(self) -> Check:
        is_draining = self._stop.is_draining
        return Check(is_ok=not is_draining, detail="draining" if is_draining else "")


def _report(note: Note) -> tuple[dict[str, Check], str]:
    """What a worker says of itself; it is of our own version, so its form is known."""
    checks = cast("dict[str, list[object]]", note.content["checks"])
    found = {name: Check(is_ok=bool(is_ok), detail=str(detail)) for name, (is_ok, detail) in checks.items()}
    return found, note.data.decode()
