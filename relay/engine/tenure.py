"""From the first lease to the last: one session's work, step by step.

Everything here is in memory and worthless once the session ends: whoever comes next reads the stored
positions. Nothing in a step waits longer than a third of the lease.
"""

import asyncio
import math
import random
import time
from collections.abc import Collection, Sequence

import structlog

from outbox.errors import BrokerUnavailable
from outbox.naming import bucket_of
from relay.decide.cadence import poll_interval_s
from relay.decide.departure import Departure
from relay.decide.gathering import Gathering
from relay.decide.holdings import Holdings
from relay.decide.pending import Place
from relay.engine.alarm import Alarm
from relay.engine.directory import Directory
from relay.engine.lease import Lease
from relay.engine.outcomes import Outcomes
from relay.engine.reader import Polled, Reader
from relay.engine.sender import Sender
from relay.gauges import Gauges
from relay.limits import Limits
from relay.log import deferred, positions, scheduled
from relay.log.ringlog import Look
from relay.log.sessions import Sessions
from relay.ports import LaneTopology, Publisher

log = structlog.get_logger(__name__)

_LOOK_EVERY_S = 0.5
_HEAR_S = 0.05


class Tenure:
    """One session of a relay: one token, and what is published under it."""

    def __init__(  # noqa: PLR0913 (what a tenure is made of; a bag of it would hide that)
        self,
        token: int,
        publisher: Publisher,
        topology: LaneTopology,
        *,
        sessions: Sessions,
        former: Sequence[int],
        alarm: Alarm,
        limits: Limits,
        gauges: Gauges,
        rng: random.Random,
    ) -> None:
        """Args:
        former: tokens of this process's tenures before; what they held need not expire.
        alarm: cuts its waits short.
        """
        self.token = token
        self._alarm = alarm
        self._sessions = sessions
        self._limits = limits
        self._gauges = gauges
        self._holdings = Holdings()
        self._departure = Departure(self._holdings)
        self._lease = Lease(token, sessions, former=former, limits=limits, gauges=gauges)
        self._reader = Reader(sessions, self._holdings, limits=limits, gauges=gauges)
        self._directory = Directory(topology, sessions, limits=limits)
        self._outcomes = Outcomes(
            holdings=self._holdings, directory=self._directory, limits=limits, gauges=gauges, rng=rng
        )
        self._sender = Sender(
            publisher,
            self._holdings,
            reader=self._reader,
            directory=self._directory,
            outcomes=self._outcomes,
            keep=self._lease.keep,
            limits=limits,
            gauges=gauges,
            rng=rng,
        )
        self._persisting: asyncio.Task[None] | None = None
        self._surplus = 0
        self._gathering = Gathering(window=limits.window, least_s=limits.busy_poll_s, most_s=limits.persist_s)
        self._persisted_at = 0.0
        self._found_at = -math.inf
        self._polled_at = -math.inf
        self._looked_at = -math.inf
        self._sent_at_poll = 0

    async def run(self, stop: asyncio.Event) -> None:
        """Work until *stop*, then hand over: wait for confirms, persist, and let the leases go.

        Raises:
            StoreUnavailable, LeaseLost: begin anew, with nothing of this.
        """
        while not stop.is_set():
            await self._step(stop)
        await self._hand_over()

    async def close(self) -> None:
        """End what runs beside, and the broker's connection. Leases run out by themselves."""
        self._gauges.is_broker_up = False
        self._gauges.owned = 0
        # Severed, not cancelled: the driver would ask a server that may be frozen to give up, and wait for its answer.
        self._sessions.sever()
        if self._persisting is not None:
            await asyncio.gather(self._persisting, return_exceptions=True)
        await self._reader.close()
        await self._sender.close()

    async def _step(self, stop: asyncio.Event) -> None:
        now = time.monotonic()
        if now >= self._lease.take_at:
            await self._take(now)
        self._reader.collect()
        self._collect_persist()
        if self._surplus:
            # Here, since no window is being read that a poll has not begun beside.
            self._surplus -= self._departure.begin(self._surplus, leaves_by=now + self._limits.drain_s)
        try:
            await self._sender.tend(now)
            if self._sender.is_open:
                self._lease.reached_broker()
            if self._sender.may_publish and not self._lease.is_over:
                await self._look(now)
                await self._sender.publish(rows_max=self._rows_until_poll())
            await self._listen(stop)
        except BrokerUnavailable as error:
            await self._sender.lost(error, time.monotonic())
        if self._persisting is None and time.monotonic() >= self._persist_at():
            self._persisting = asyncio.create_task(self._persist(self._part(), is_last=False))
        self._show()

    async def _look(self, now: float) -> None:
        """Poll the log when it is time and there is room, and see to what is due."""
        look = now >= self._looked_at + _LOOK_EVERY_S
        if not self._lease.owned:
            if look:
                self._looked_at = now
                await self._lease.look()
            return
        if not self._sender.has_room or now < self._poll_at():
            return
        self._polled_at = now
        self._sent_at_poll = self._sender.sent
        look_as = Look(token=self.token, relays=self._lease.relays) if look else None
        polled = await self._reader.poll(look_as=look_as)
        self._gauges.polled_at = time.time()
        if polled.has_found:
            self._found_at = now
        if look:
            self._looked_at = now
            await self._see_to(polled, now)

    async def _see_to(self, polled: Polled, now: float) -> None:
        if polled.has_moves:
            self._lease.take_at = now
        if polled.has_scheduled:
            await self._move_scheduled()
        if polled.has_deferred:
            await self._retry_deferred()

    async def _move_scheduled(self) -> None:
        async with self._sessions.writing() as connection:
            moved = await scheduled.move_due(connection, rows_max=self._limits.cap, within_s=self._limits.wait_s)
        self._gauges.scheduled_moved += moved
        # There may be more, and what was moved is in the log now.
        self._polled_at = self._looked_at = -math.inf

    async def _retry_deferred(self) -> None:
        limits = self._limits
        async with self._sessions.writing() as connection:
            due = await deferred.due(
                connection,
                self.token,
                waiting=(*self._outcomes.waiting, *self._directory.leaving),
                rows_max=limits.chunk,
                within_s=limits.wait_s,
            )
            chosen = self._sender.choose(due)
            if not chosen:
                return
            claimed = await deferred.claim(connection, self.token, chosen, within_s=limits.wait_s)
        await self._sender.retry(claimed)

    async def _listen(self, stop: asyncio.Event) -> None:
        """Wait for the broker's answers, or for what comes first by the clock."""
        if self._sender.has_work:
            wait_s = 0.0
        else:
            due = min(self._sender.next_due(), self._lease.take_at, self._poll_due(), self._persist_at())
            wait_s = min(max(due - time.monotonic(), 0.0), self._limits.idle_poll_s)
        beside = self._beside()
        if self._sender.is_open:
            wait_s = await self._gather(wait_s, beside)
        if beside:
            # What ends beside wakes nobody.
            wait_s = min(wait_s, self._limits.busy_poll_s)
        if self._sender.is_open:
            heard = 0
            async with self._alarm.nap():
                # An alarm ends the wait, and what follows in this block.
                heard = await self._sender.hear(wait_s)
            self._gathering.heard(heard)
        elif wait_s:
            try:
                async with asyncio.timeout(wait_s):
                    await stop.wait()
            except TimeoutError:
                return

    async def _gather(self, wait_s: float, beside: Collection[asyncio.Task[object]]) -> float:
        """Let confirms gather, until something of what runs *beside* ends; return what is left of *wait_s*.

        No alarm cuts this short: it would leave the confirms where they are, and so would the next one.
        """
        gather_s = min(wait_s, self._gathering.wait_s(len(self._holdings.flight), has_room=self._sender.has_room))
        if not gather_s or any(task.done() for task in beside):
            return wait_s
        with self._sender.unread():
            if not beside:
                await asyncio.sleep(gather_s)
            elif (await asyncio.wait(beside, timeout=gather_s, return_when=asyncio.FIRST_COMPLETED))[0]:
                return 0.0
        return wait_s - gather_s

    def _beside(self) -> Collection[asyncio.Task[object]]:
        beside = [*self._reader.beside, *self._directory.beside]
        return beside if self._persisting is None else [*beside, self._persisting]

    async def _take(self, now: float) -> None:
        """Renew what is ours, take what nobody holds, and see what others should have."""
        taken = await self._lease.take()
        self._surplus = max(0, taken.share.surplus - len(self._departure.places))
        if taken.bases:
            await self._directory.take([(group, bucket) for group, bucket, _ in taken.bases], now)
            self._reader.catch_up(taken)
        if self._lease.owned:
            await self._directory.heed(self.token, self._holdings.backlog.streams)

    def _part(self) -> frozenset[Place]:
        """The buckets that the next persist gives up; from here on none of what they have unsettled is ours."""
        if time.monotonic() < self._departure.due_at():
            return frozenset()
        streams, gone = self._departure.cut()
        self._outcomes.forget(streams, gone)
        return self._departure.places

    async def _persist(self, given_up: frozenset[Place], *, is_last: bool) -> None:
        """Store what is settled now; publishing goes on meanwhile, and is not part of it."""
        found = self._outcomes.findings()
        moved = self._holdings.backlog.positions(
            retries=self._outcomes.unsettled_retries,
            keep_rows_max=0 if is_last else self._limits.window // 4,
            must_move={*given_up, *((one.lane.group, bucket_of(one.tenant_hash)) for one in found.failures)},
        )
        if moved.bases or moved.streams or moved.caught_up or given_up or not found.is_empty:
            async with self._sessions.writing() as connection:
                await positions.persist(
                    connection,
                    self.token,
                    moved,
                    found,
                    owned=self._lease.owned,
                    within_s=self._limits.wait_s,
                    given_up=tuple(given_up),
                )
                self._lease.gave_up(given_up)
            self._gauges.persists += 1
        self._holdings.backlog.persisted(moved)
        if given_up:
            self._directory.forget(given_up)
            self._departure.end()
        self._persisted_at = time.monotonic()

    def _collect_persist(self) -> None:
        if self._persisting is not None and self._persisting.done():
            done, self._persisting = self._persisting, None
            done.result()

    async def _hand_over(self) -> None:
        until = time.monotonic() + self._limits.drain_s
        try:
            while self._sender.may_publish and len(self._holdings.flight) and time.monotonic() < until:
                await self._lease.keep()
                await self._sender.hear(min(_HEAR_S, until - time.monotonic()))
        except BrokerUnavailable as error:
            log.warning("broker lost", reason=str(error), unsettled=len(self._holdings.flight))
        if self._persisting is not None:
            await self._persisting
        if self._lease.owned:
            await self._persist(frozenset(), is_last=True)
        await self._lease.release()
        log.info("buckets released", count=self._lease.owned, unsettled=len(self._holdings.flight))

    def _persist_at(self) -> float:
        if not self._lease.owned or self._persisting is not None:
            return math.inf
        return min(self._departure.due_at(), self._settled_persist_at())

    def _settled_persist_at(self) -> float:
        limits, news = self._limits, self._outcomes.news
        if not (news or self._holdings.backlog.is_lagging):
            # Bases move also when nothing is published: truncation and the next takeover depend on them.
            return self._persisted_at + limits.lease_s
        if self._sender.has_room or not news:
            return self._persisted_at + limits.persist_s
        # A full window waits for nothing but this, or else for the broker: then a persist would make little room.
        return self._persisted_at + limits.persist_s * (3 if self._sender.waits_for_broker else 1 / 5)

    def _poll_at(self) -> float:
        if self._alarm.rang_at > self._polled_at:
            # Whoever rang has committed; however many ring, one look now finds it all.
            return self._polled_at + self._limits.busy_poll_s
        if self._sender.has_work:
            # Between two batches of a backlog, since nobody else's next event may wait for more of it than one.
            return self._polled_at + (self._limits.busy_poll_s / 5 if self._rows_until_poll() else 0.0)
        quiet_s = self._polled_at - self._found_at
        interval_s = poll_interval_s(quiet_s, busy_s=self._limits.busy_poll_s, idle_s=self._limits.idle_poll_s)
        return self._polled_at + interval_s

    def _rows_until_poll(self) -> int:
        """How many rows may go out before the log is looked at again: a batch, or small ones that make a chunk."""
        sent = self._sender.sent - self._sent_at_poll
        return self._limits.batch if not sent else max(0, self._limits.chunk - sent)

    def _poll_due(self) -> float:
        can_poll = self._lease.owned and self._sender.may_publish and self._sender.has_room
        return self._poll_at() if can_poll else math.inf

    def _show(self) -> None:
        self._gauges.owned = self._lease.owned
        self._gauges.stepped_at = time.monotonic()
        self._sender.show()
