"""A broker whose wires are slow and can be cut: what was written may arrive late, and its confirms may never.

Every relay runs on an event loop of its own thread, the broker's wires move on one more.
"""

import asyncio
import random
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field

from outbox.errors import BrokerUnavailable
from outbox.naming import Lane
from relay.ports import Announcement, Confirmed, LaneFault, Outgoing, Settlement


@dataclass(slots=True, eq=False)
class Wire:
    """One connection. After a cut nothing more is heard, though some of what was written still arrives."""

    loop: asyncio.AbstractEventLoop
    news: asyncio.Event
    underway: deque[Outgoing] = field(default_factory=deque)
    confirms: list[Settlement] = field(default_factory=list)
    is_cut: bool = False


class SlowBroker:
    """``arrivals`` is what reached the queues, in that order; ``on_arrival`` sees each."""

    def __init__(self, seed: int) -> None:
        self.arrivals: list[Outgoing] = []
        self._rng = random.Random(seed)
        self._lock = threading.Lock()
        self._wires: list[Wire] = []
        self._is_over = threading.Event()
        self._mover = threading.Thread(target=self._move, daemon=True)
        self._mover.start()

    def connect(self, loop: asyncio.AbstractEventLoop, news: asyncio.Event) -> Wire:
        wire = Wire(loop, news)
        with self._lock:
            self._wires.append(wire)
        return wire

    def write(self, wire: Wire, batch: Sequence[Outgoing]) -> None:
        with self._lock:
            wire.underway.extend(batch)

    def heard(self, wire: Wire) -> Sequence[Settlement]:
        with self._lock:
            confirms, wire.confirms = wire.confirms, []
        return confirms

    def cut(self, wire: Wire) -> None:
        """The socket dies: the end of what was written is lost, the rest arrives, no confirm does."""
        with self._lock:
            kept = self._rng.randrange(len(wire.underway) + 1)
            wire.underway = deque(list(wire.underway)[:kept])
            wire.is_cut = True
            wire.confirms = []
        self._wake(wire)

    def cut_one(self) -> bool:
        """Cut a wire that is in use; say whether there was one."""
        with self._lock:
            alive = [wire for wire in self._wires if not wire.is_cut]
        if alive:
            self.cut(self._rng.choice(alive))
        return bool(alive)

    def arrived(self) -> list[Outgoing]:
        with self._lock:
            return list(self.arrivals)

    def close(self) -> None:
        self._is_over.set()
        self._mover.join()

    def _move(self) -> None:
        while not self._is_over.wait(self._rng.random() * 0.02):
            with self._lock:
                for wire in list(self._wires):
                    self._move_one(wire)

    def _move_one(self, wire: Wire) -> None:
        for _ in range(min(len(wire.underway), self._rng.randrange(25))):
            outgoing = wire.underway.popleft()
            self.arrivals.append(outgoing)
            if not wire.is_cut:
                place = self._rng.randrange(len(wire.confirms) + 1)
                wire.confirms.insert(place, Confirmed(tag=outgoing.tag))
        if wire.is_cut and not wire.underway:
            self._wires.remove(wire)
        elif wire.confirms:
            self._wake(wire)

    @staticmethod
    def _wake(wire: Wire) -> None:
        with suppress(RuntimeError):  # its relay's loop is closed: a crash
            wire.loop.call_soon_threadsafe(wire.news.set)


class SlowPublisher:
    """Implements ``relay.ports.Publisher`` and ``LaneTopology`` on a SlowBroker."""

    def __init__(self, broker: SlowBroker) -> None:
        self._broker = broker
        self._wire: Wire | None = None
        self._news = asyncio.Event()

    @property
    def is_blocked(self) -> bool:
        return False

    async def open(self) -> None:
        await self.close()
        self._news.clear()
        self._wire = self._broker.connect(asyncio.get_running_loop(), self._news)

    async def send(self, batch: Sequence[Outgoing]) -> None:
        self._broker.write(self._opened(), batch)

    async def settlements(self, *, timeout_s: float) -> Sequence[Settlement]:
        settled = self._broker.heard(self._opened())
        if not settled:
            self._news.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._news.wait()
            settled = self._broker.heard(self._opened())
        return settled

    def unread(self) -> AbstractContextManager[None]:
        return nullcontext()

    async def close(self) -> None:
        wire, self._wire = self._wire, None
        if wire is not None and not wire.is_cut:
            self._broker.cut(wire)

    async def declare(self, lanes: Sequence[Lane], *, patience_s: float = 10.0) -> Sequence[LaneFault]:
        self._opened()
        return ()

    async def announce(self, announcements: Sequence[Announcement]) -> Sequence[LaneFault]:
        self._opened()
        return ()

    def roll_calls(self) -> frozenset[str]:
        return frozenset()

    def _opened(self) -> Wire:
        if self._wire is None or self._wire.is_cut:
            raise BrokerUnavailable("slow broker: want an open connection, got a cut one")
        return self._wire
