"""Brings single copies to their lanes and waits for the broker's word on each: what replays publish with.

It declares a lane only when an event comes back for want of it, and then tells the lane's group.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final, assert_never

from outbox.errors import BrokerUnavailable
from outbox.naming import Lane
from relay.limits import Limits
from relay.log import lanes, store
from relay.log.replays import Copy
from relay.ports import Announcement, Category, Confirmed, Failed, LaneTopology, Nacked, Outgoing, Publisher, Settlement

_RESEND_S: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """What became of a chunk's copies, in order, before the first that did not get through: that is *stuck*.

    *failed* are those that the broker refuses for good. *problem* is the last thing that went wrong, a sentence.
    """

    published: int
    failed: int
    stuck: int | None
    problem: str | None


class Courier:
    """One connection to the broker, open while there is something to bring, and what is unsettled on it."""

    def __init__(
        self, publisher: Publisher, topology: LaneTopology, connection: store.Connection, *, limits: Limits
    ) -> None:
        self._publisher = publisher
        self._topology = topology
        self._connection = connection
        self._limits = limits
        self._is_open = False
        self._last_tag = 0
        self._copies: Sequence[Copy] = ()
        self._sent: dict[int, int] = {}
        self._proven: set[Lane] = set()
        self._behind: dict[Lane, list[int]] = {}
        self._ready: list[int] = []
        self._nacked: list[int] = []
        self._returned: list[int] = []
        self._was_returned: set[int] = set()
        self._failed: set[int] = set()
        self._stuck: set[int] = set()
        self._problem: str | None = None

    async def close(self) -> None:
        """Close the connection, whatever is unsettled. Safe to repeat."""
        self._is_open = False
        self._proven.clear()
        await self._publisher.close()

    async def deliver(self, copies: Sequence[Copy]) -> Delivered:
        """Publish *copies* in their order, and return once the broker has spoken of each, or time is up.

        Raises:
            BrokerUnavailable: there is no connection, it was lost, or the broker takes nothing from anybody.
        """
        self._begin(copies)
        if copies and not self._is_open:
            async with self._answered("a connection"):
                await self._publisher.open()
            self._is_open = True
        await self._send(range(len(copies)))
        until = time.monotonic() + self._limits.confirm_s
        has_heard = False
        while (self._sent or self._nacked) and time.monotonic() < until:
            if self._publisher.is_blocked:
                raise BrokerUnavailable("broker: want it to take messages, got it blocked")
            settlements = await self._publisher.settlements(timeout_s=_RESEND_S)
            has_heard = has_heard or bool(settlements)
            for settlement in settlements:
                self._hear(settlement)
            await self._again()
        tenants = {copy.place.tenant_hash for copy in copies}
        if copies and not has_heard and len(tenants) > 1:
            raise BrokerUnavailable(f"broker: want confirms within {self._limits.confirm_s:g} s, got none")
        return self._delivered()

    def _begin(self, copies: Sequence[Copy]) -> None:
        self._copies = copies
        self._sent.clear()
        self._behind.clear()
        self._ready.clear()
        self._nacked.clear()
        self._returned.clear()
        self._was_returned.clear()
        self._failed.clear()
        self._stuck.clear()
        self._problem = None

    def _hear(self, settlement: Settlement) -> None:
        index = self._sent.pop(settlement.tag, None)
        if index is None:
            return  # of a chunk that was given up
        lane = self._copies[index].lane
        behind = self._behind.pop(lane, [])
        match settlement:
            case Confirmed():
                self._proven.add(lane)
                self._ready += behind
            case Nacked():
                self._problem = f"{lane.queue}: want the queue to take an event, got it back"
                self._nacked += [index, *behind]
            case Failed(category=Category.UNROUTABLE) if index not in self._was_returned:
                self._was_returned.add(index)
                self._returned += [index, *behind]
            case Failed():
                self._problem = settlement.reason
                self._failed.add(index)
                self._ready += behind
            case _:
                assert_never(settlement)

    async def _again(self) -> None:
        """Send what came back, in its order: once its lane stands, or after a moment; and what waited for its lane."""
        again, self._nacked = self._nacked, []
        if again:
            await asyncio.sleep(_RESEND_S)
        again += self._ready
        self._ready.clear()
        if self._returned:
            returned, self._returned = self._returned, []
            again += await self._declared(returned)
        await self._send(sorted(again))

    async def _declared(self, returned: Sequence[int]) -> list[int]:
        """Have lanes stand again, and their groups know; return the copies that can be sent now."""
        recorded = await lanes.recorded(self._connection, within_s=self._limits.wait_s)
        wanted = dict.fromkeys(lane for index in returned if (lane := self._copies[index].lane) in recorded)
        faults = {fault.lane: fault.reason for fault in await self._topology.declare(list(wanted))}
        standing = [lane for lane in wanted if lane not in faults]
        starts = await lanes.group_starts(self._connection, within_s=self._limits.wait_s)
        await self._topology.announce(
            [Announcement(lane=lane, group_started_at=starts[lane.group]) for lane in standing if lane.group in starts]
        )
        for index in returned:
            lane = self._copies[index].lane
            if lane in faults:
                self._problem = faults[lane]
                self._stuck.add(index)
            elif lane not in wanted:
                self._problem = f"{lane.queue}: want a lane of a tenant that is here, got one that was off-boarded"
                self._failed.add(index)
        return [index for index in returned if self._copies[index].lane in standing]

    async def _send(self, indices: Sequence[int]) -> None:
        """Send these; to a lane that has confirmed nothing on this connection the first alone, and apart."""
        batch = []
        for index in indices:
            copy = self._copies[index]
            if copy.lane in self._behind:
                self._behind[copy.lane].append(index)
                continue
            is_apart = copy.lane not in self._proven
            if is_apart:
                self._behind[copy.lane] = []
            self._last_tag += 1
            self._sent[self._last_tag] = index
            batch.append(Outgoing(tag=self._last_tag, lane=copy.lane, event=copy.row.event, is_apart=is_apart))
        if batch:
            async with self._answered(f"{len(batch)} messages taken"):
                await self._publisher.send(batch)

    def _delivered(self) -> Delivered:
        open_ones = {*self._sent.values(), *self._nacked, *self._stuck, *chain(*self._behind.values())}
        stuck = min(open_ones, default=None)
        before = len(self._copies) if stuck is None else stuck
        failed = sum(index < before for index in self._failed)
        problem = self._problem
        if stuck is not None and problem is None:
            queue, seconds = self._copies[stuck].lane.queue, self._limits.confirm_s
            problem = f"{queue}: want a confirm within {seconds:g} s, got none"
        return Delivered(published=before - failed, failed=failed, stuck=stuck, problem=problem)

    @contextlib.asynccontextmanager
    async def _answered(self, what: str) -> AsyncIterator[None]:
        seconds = self._limits.wait_s
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError:
            raise BrokerUnavailable(f"broker: want {what} within {seconds:g} s, got none") from None
