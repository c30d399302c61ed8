"""From the first lease to the last: one session's work, step by step.

Everything here is in memory and worthless once the session ends: whoever comes next reads the stored
positions. Nothing in a step waits longer than a third of the lease.
"""

import asyncio
import math
import random
import time
from collections.abc import Sequence

import structlog

from outbox.errors import BrokerUnavailable
from relay.decide.cadence import poll_interval_s
from relay.decide.holdings import Holdings
from relay.engine.alarm import Alarm
from relay.engine.directory import Directory
from relay.engine.outcomes import Outcomes
from relay.engine.reader import Reader
from relay.engine.sender import Sender
from relay.gauges import Gauges
from relay.limits import Limits
from relay.log import deferred, leases, positions, scheduled
from relay.log.sessions import Sessions
from relay.ports import LaneTopology, Publisher

log = structlog.get_logger(__name__)

_LOOK_EVERY_S = 0.5
_MARGIN_S = 0.05


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
        self._former = former
        self._alarm = alarm
        self._sessions = sessions
        self._limits = limits
        self._gauges = gauges
        self._holdings = Holdings()
        self._reader = Reader(sessions, self._holdings, limits=limits, gauges=gauges)
        self._directory = Directory(topology, sessions, limits=limits)
        self._outcomes = Outcomes(
            holdings=self._holdings, want=self._directory.want, limits=limits, gauges=gauges, rng=rng
        )
        self._sender = Sender(
            publisher,
            self._holdings,
            reader=self._reader,
            directory=self._directory,
            outcomes=self._outcomes,
            limits=limits,
            gauges=gauges,
            rng=rng,
        )
        self._persisting: asyncio.Task[None] | None = None
        self._owned = 0
        self._lease_until = -math.inf
        self._lease_at = -math.inf
        self._persisted_at = 0.0
        self._found_at = -math.inf
        self._polled_at = -math.inf
        self._looked_at = -math.inf

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
        if self._persisting is not None:
            # Not cancelled: the driver would ask a server that may be frozen to give up. Its deadline severs it.
            await asyncio.gather(self._persisting, return_exceptions=True)
        await self._reader.close()
        await self._sender.close()

    async def _step(self, stop: asyncio.Event) -> None:
        now = time.monotonic()
        if now >= self._lease_at:
            await self._keep_leases()
        self._reader.collect()
        self._collect_persist()
        try:
            await self._sender.tend(now)
            if self._sender.may_publish and now < self._lease_until:
                await self._look(now)
                await self._sender.publish()
            await self._listen(stop)
        except BrokerUnavailable as error:
            await self._sender.lost(error, time.monotonic())
        if self._persisting is None and time.monotonic() >= self._persist_at():
            self._persisting = asyncio.create_task(self._persist())
        self._show()

    async def _look(self, now: float) -> None:
        """Poll the log when it is time and there is room, and see to what is due."""
        if not self._owned:
            await self._look_for_buckets(now)
            return
        if not self._sender.has_room or now < self._poll_at():
            return
        look = now >= self._looked_at + _LOOK_EVERY_S
        self._polled_at = now
        polled = await self._reader.poll(look_as=self.token if look else None)
        if polled.has_found:
            self._found_at = now
        if look:
            self._looked_at = now
        if polled.has_free:
            self._lease_at = now
        if polled.has_scheduled:
            await self._move_scheduled()
        if polled.has_deferred:
            await self._retry_deferred()

    async def _look_for_buckets(self, now: float) -> None:
        if now < self._looked_at + _LOOK_EVERY_S:
            return
        self._looked_at = now
        async with self._sessions.writing() as connection:
            if await leases.has_free(connection, self.token, within_s=self._limits.wait_s):
                self._lease_at = now

    async def _move_scheduled(self) -> None:
        async with self._sessions.writing() as connection:
            moved = await scheduled.move_due(connection, rows_max=self._limits.cap, within_s=self._limits.wait_s)
        self._gauges.scheduled_moved += moved
        # There may be more, and what was moved is in the log now.
        self._polled_at = self._looked_at = -math.inf

    async def _retry_deferred(self) -> None:
        # Those under way are still in the table: ask for as many more.
        rows_max = self._limits.chunk + len(self._outcomes.retrying)
        async with self._sessions.writing() as connection:
            due = await deferred.due(connection, self.token, rows_max=rows_max, within_s=self._limits.wait_s)
        await self._sender.retry(due)

    async def _listen(self, stop: asyncio.Event) -> None:
        """Wait for the broker's answers, or for what comes first by the clock."""
        if self._sender.has_work:
            wait_s = 0.0
        else:
            due = min(self._sender.next_due(), self._lease_at, self._poll_due(), self._persist_at())
            wait_s = min(max(due - time.monotonic(), 0.0), self._limits.idle_poll_s)
            if self._persisting is not None or self._reader.is_reading_beside or self._directory.is_asking:
                # What ends beside wakes nobody.
                wait_s = min(wait_s, self._limits.busy_poll_s)
        if self._sender.is_open:
            async with self._alarm.nap():
                await self._sender.hear(wait_s)
        elif wait_s:
            try:
                async with asyncio.timeout(wait_s):
                    await stop.wait()
            except TimeoutError:
                return

    async def _keep_leases(self) -> None:
        """Renew what is ours, and take what nobody holds."""
        limits = self._limits
        asked_at = time.monotonic()
        async with self._sessions.writing() as connection:
            taken = await leases.take(
                connection,
                self.token,
                former=self._former,
                owned=self._owned,
                lease_s=limits.lease_s,
                within_s=limits.wait_s,
            )
        # From before the question: the database's clock started the lease after that.
        self._lease_until = asked_at + limits.lease_s - _MARGIN_S
        self._lease_at = asked_at + limits.wait_s
        if taken.bases:
            self._owned += len(taken.bases)
            self._gauges.takeovers += 1
            log.info("buckets taken", count=len(taken.bases), streams=len(taken.streams))
            await self._directory.take([(group, bucket) for group, bucket, _ in taken.bases], asked_at)
            self._reader.catch_up(taken)

    async def _persist(self) -> None:
        """Store what is settled now; publishing goes on meanwhile, and is not part of it."""
        moved = self._holdings.backlog.positions(retries=self._outcomes.unsettled_retries)
        found = self._outcomes.findings()
        if moved.bases or moved.streams or moved.caught_up or not found.is_empty:
            async with self._sessions.writing() as connection:
                await positions.persist(
                    connection, self.token, moved, found, owned=self._owned, within_s=self._limits.wait_s
                )
            self._gauges.persists += 1
        self._holdings.backlog.persisted(moved)
        self._outcomes.persisted(found)
        self._persisted_at = time.monotonic()

    def _collect_persist(self) -> None:
        if self._persisting is not None and self._persisting.done():
            done, self._persisting = self._persisting, None
            done.result()

    async def _hand_over(self) -> None:
        until = time.monotonic() + self._limits.drain_s
        try:
            while self._sender.may_publish and len(self._holdings.flight) and time.monotonic() < until:
                await self._sender.hear(min(_MARGIN_S, until - time.monotonic()))
        except BrokerUnavailable as error:
            log.warning("broker lost", reason=str(error), unsettled=len(self._holdings.flight))
        if self._persisting is not None:
            await self._persisting
        if self._owned:
            await self._persist()
            async with self._sessions.writing() as connection:
                await leases.release(connection, self.token, within_s=self._limits.wait_s)
        log.info("buckets released", count=self._owned, unsettled=len(self._holdings.flight))

    def _persist_at(self) -> float:
        limits = self._limits
        if not self._owned or self._persisting is not None:
            return math.inf
        if not self._outcomes.has_news:
            # Bases move also when nothing is published: truncation and the next takeover depend on them.
            return self._persisted_at + limits.wait_s
        # A full window waits for nothing but this.
        return self._persisted_at + (limits.persist_s if self._sender.has_room else limits.persist_s / 5)

    def _poll_at(self) -> float:
        if self._alarm.rang_at > self._polled_at:
            # Whoever rang has committed; however many ring, one look now finds it all.
            return self._polled_at + self._limits.busy_poll_s
        quiet_s = self._polled_at - self._found_at
        interval_s = poll_interval_s(quiet_s, busy_s=self._limits.busy_poll_s, idle_s=self._limits.idle_poll_s)
        return self._polled_at + interval_s

    def _poll_due(self) -> float:
        can_poll = self._owned and self._sender.may_publish and self._sender.has_room
        return self._poll_at() if can_poll else math.inf

    def _show(self) -> None:
        self._gauges.owned = self._owned
        self._gauges.stepped_at = time.monotonic()
        self._sender.show()
