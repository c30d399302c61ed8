"""The memory publisher with a broker's bad days: confirms withheld, lanes refused, messages given back."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from outbox.errors import BrokerUnavailable
from outbox.inprocess import InProcessBroker
from outbox.naming import Lane
from relay.memory import MemoryPublisher
from relay.ports import Announcement, Category, Failed, LaneFault, Nacked, Outgoing, Settlement


class FaultyPublisher:
    """Implements ``relay.ports.Publisher`` and ``LaneTopology``; what is wrong is set from outside."""

    def __init__(self, broker: InProcessBroker) -> None:
        self._memory = MemoryPublisher(broker)
        self._given_back: list[Settlement] = []
        self.is_silent: Callable[[Outgoing], bool] = lambda _: False
        """Published, and never confirmed."""
        self.is_late = False
        """Published, and confirmed only once this is over."""
        self.is_refused: Callable[[Outgoing], bool] = lambda _: False
        """Given back at once."""
        self.is_returned: Callable[[Outgoing], bool] = lambda _: False
        """Came back for want of a queue, though one was declared."""
        self.is_dead = False
        """Every send fails."""
        self.send_s = 0.0
        """How long the connection takes to accept a batch."""
        self.lane_fault: Callable[[Lane], LaneFault | None] = lambda _: None
        self.sent: list[Outgoing] = []
        self.opens = 0
        self.announced: list[Announcement] = []
        self.announcing_fails: asyncio.Event | None = None
        """Once this is set, the next announcement fails, as the connection does."""
        self.called: set[str] = set()
        self._silent_tags: set[int] = set()
        self._late: list[Settlement] = []

    @property
    def is_blocked(self) -> bool:
        return self._memory.is_blocked

    async def open(self) -> None:
        self.opens += 1
        self._silent_tags.clear()
        self._given_back.clear()
        self._late.clear()
        if self.is_dead:
            raise BrokerUnavailable("faulty publisher: want it alive, got it dead")
        await self._memory.open()

    async def send(self, batch: Sequence[Outgoing]) -> None:
        if self.is_dead:
            raise BrokerUnavailable("faulty publisher: want it alive, got it dead")
        await asyncio.sleep(self.send_s)
        self.sent += batch
        nacked = [outgoing for outgoing in batch if self.is_refused(outgoing)]
        returned = [outgoing for outgoing in batch if self.is_returned(outgoing)]
        self._given_back += [Nacked(tag=outgoing.tag) for outgoing in nacked]
        self._given_back += [
            Failed(tag=outgoing.tag, category=Category.UNROUTABLE, reason="no queue") for outgoing in returned
        ]
        self._silent_tags |= {outgoing.tag for outgoing in batch if self.is_silent(outgoing)}
        await self._memory.send([outgoing for outgoing in batch if outgoing not in nacked + returned])

    async def settlements(self, *, timeout_s: float) -> Sequence[Settlement]:
        if self.is_dead:
            raise BrokerUnavailable("faulty publisher: want it alive, got it dead")
        given_back, self._given_back = self._given_back, []
        heard = await self._memory.settlements(timeout_s=0 if given_back else timeout_s)
        self._late += [one for one in heard if one.tag not in self._silent_tags]
        if self.is_late:
            return given_back
        heard, self._late = self._late, []
        return [*given_back, *heard]

    def unread(self) -> AbstractContextManager[None]:
        return self._memory.unread()

    async def close(self) -> None:
        await self._memory.close()

    async def declare(self, lanes: Sequence[Lane], *, patience_s: float = 10.0) -> Sequence[LaneFault]:
        faults = [fault for lane in lanes if (fault := self.lane_fault(lane)) is not None]
        refused = {fault.lane for fault in faults}
        return [*faults, *await self._memory.declare([lane for lane in lanes if lane not in refused])]

    async def announce(self, announcements: Sequence[Announcement]) -> Sequence[LaneFault]:
        if self.announcing_fails is not None:
            await self.announcing_fails.wait()
            self.announcing_fails = None
            raise BrokerUnavailable("faulty publisher: want a directory that answers, got none")
        self.announced += announcements
        return await self._memory.announce(announcements)

    def roll_calls(self) -> frozenset[str]:
        called, self.called = frozenset(self.called), set()
        return called | self._memory.roll_calls()
