"""The pump: what waits in the database comes back when it is due, and what is held too long goes there."""

import asyncio
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

import structlog

from consumer.engine.item import Item
from consumer.engine.lease import Lease
from consumer.engine.loop import Engine
from consumer.engine.path import Path
from consumer.limits import Limits
from consumer.store import claims, control, gate, pruning, results, start, work
from consumer.store.connection import SlotConnection
from consumer.store.desk import Desk
from consumer.store.work import Reason
from outbox.errors import LeaseLost, StoreUnavailable

_SWEEP_S: Final = 1.0
_STIR_S: Final = 0.25
# A queue's next deliveries of a paused type come as soon as those before were put off.
_PUT_OFF_S: Final = 0.02
_PUT_OFF_BATCH: Final = 100
_TAKE_S: Final = 1.0
_TAKE_MIN_S: Final = 0.02
_CALM_S: Final = 10.0
_PRUNE_S: Final = 600.0
_PRUNE_BUSY_S: Final = 60.0
_PRUNE_RESULTS_S: Final = 60.0
_PROBE_S: Final = 0.1
_PROBE_MAX_S: Final = 2.0


class Pump:
    """Feeds *engine* from the database and relieves it. Each job says after how many seconds to do it again."""

    def __init__(
        self,
        *,
        engine: Engine,
        path: Path,
        desk: Desk,
        parking: SlotConnection,
        lease: Lease,
        limits: Limits,
        horizon: timedelta,
    ) -> None:
        """*parking* is for writing what is held too long; *horizon* is the limits', checked against the ledger's."""
        self._engine = engine
        self._path = path
        self._desk = desk
        self._parking = parking
        self._lease = lease
        self._limits = limits
        self._horizon = horizon
        self._swept_at = 0.0
        self._may_own_more = False
        self._waiting_seen_at = time.monotonic()
        self._log = structlog.get_logger("consumer.engine.pump")

    async def take(self) -> float:
        """Claim what is due, as far as there is room for it, and give back what could not be handled."""
        engine, owner = self._engine, self._lease.id
        async with self._desk.use() as connection:
            returned = engine.returned()
            if self._may_own_more:
                owned = await work.owned(connection, engine.group, owner=owner)
                returned = [*returned, *owned.difference(engine.hands.from_work())]
            if returned:
                await work.give_back(connection, engine.group, owner=owner, event_ids=returned)
                engine.forget_returned(returned)
            self._may_own_more = False
            room = self._limits.work_total - len(engine.hands.from_work())
            if engine.is_suspended and not engine.is_draining:
                return _TAKE_S
            if engine.is_draining or room <= 0:
                return _TAKE_MIN_S
            self._may_own_more = True  # until the answer is here: it may be lost, and the rows ours all the same
            rows = await work.take_due(
                connection,
                engine.group,
                owner=owner,
                per_lane_limit=self._limits.work_per_lane,
                total=room,
                tiers=self._limits.tiers,
            )
            self._may_own_more = False
            wait_s: float | None = 0.0
            if not rows:
                wait_s = await work.seconds_to_next(connection, engine.group, owner=owner, tiers=self._limits.tiers)
        if owner != self._lease.id:
            return _TAKE_MIN_S  # the lease ran out meanwhile: they are whoever's finds them
        if any(row.reason is Reason.WAITING for row in rows):
            self._waiting_seen_at = time.monotonic()
        engine.take_work(rows)
        return max(_TAKE_MIN_S, _TAKE_S if wait_s is None else min(_TAKE_S, wait_s))

    async def move_keys(self) -> float:
        """Make the successors of what was handled due, and, each second, those that this missed."""
        engine, now = self._engine, time.monotonic()
        passed, engine.passed = engine.passed, []
        is_sweep = now - self._swept_at >= _SWEEP_S
        # Where nobody waits, and that is the rule, asking for each event would double what the database does.
        if now - self._waiting_seen_at > _CALM_S:
            passed = []
        if passed or is_sweep:
            async with self._desk.use() as connection:
                for key, number in passed:
                    if await work.make_due(
                        connection, engine.group, tenant=key.tenant, tier=key.tier, key=key.key, number=number + 1
                    ):
                        self._see_waiting()
                if is_sweep and await gate.sweep(connection, engine.group):
                    self._see_waiting()
        if is_sweep:
            self._swept_at = now
        return _SWEEP_S

    async def relieve(self) -> float:
        """Make work rows of what is paused or held too long, let the rest try again, cancel consumers in the way."""
        hands = self._engine.hands
        paused = hands.paused(time.monotonic())
        for first in range(0, len(paused), _PUT_OFF_BATCH):
            await self._put_off(paused[first : first + _PUT_OFF_BATCH])
        for item in hands.overdue(time.monotonic()):
            await self._park(item)
        self._engine.stir()
        await self._engine.relieve()
        return _PUT_OFF_S if paused else _STIR_S

    async def prune(self) -> float:
        """Empty the ledger's partitions that nothing can ask for any more, and forget pauses that are over."""
        async with self._desk.use() as connection:
            await control.forget_ended(connection, self._engine.group)
            pruned = await pruning.prune(connection, horizon=self._horizon)
            await start.prune(connection, self._engine.group, older_than=self._horizon)
            await claims.forget_keys(connection, self._engine.group)
        if pruned.emptied:
            self._log.info("ledger pruned", slots=list(pruned.emptied))
        return _PRUNE_BUSY_S if pruned.busy else _PRUNE_S

    async def prune_results(self) -> float:
        """Remove what handlers returned and nobody is to ask for any more."""
        async with self._desk.use() as connection:
            keep_for = timedelta(days=self._limits.result_days)
            removed = await results.prune(connection, self._engine.group, keep_for=keep_for)
        return _PRUNE_RESULTS_S if removed < results.PRUNE_ROWS else _TAKE_MIN_S

    async def watch(self) -> None:
        """Ask the database, once it was lost, until it answers; for ever."""
        pause_s = _PROBE_S
        while True:
            await self._engine.store_lost.wait()
            try:
                async with self._desk.use() as connection:
                    await connection.execute("SELECT 1")
            except StoreUnavailable:
                await asyncio.sleep(pause_s)
                pause_s = min(_PROBE_MAX_S, pause_s * 2)
            else:
                pause_s = _PROBE_S
                self._engine.regain_store()

    async def _put_off(self, items: Sequence[Item]) -> None:
        hands = self._engine.hands
        try:
            settled = await self._path.put_off(self._parking, items, owner=self._lease.id)
        except StoreUnavailable:
            for item in items:
                hands.unparked(item)
            self._engine.lose_store()
        else:
            for item in items:
                self._engine.settle(item, settled)
                hands.parked(item)

    async def _park(self, item: Item) -> None:
        hands = self._engine.hands
        try:
            settled = await self._path.park(self._parking, item)
        except StoreUnavailable:
            hands.unparked(item)
            self._engine.lose_store()
        except LeaseLost:
            hands.parked(item)
        else:
            self._see_waiting()
            self._engine.settle(item, settled)
            hands.parked(item)

    def _see_waiting(self) -> None:
        self._waiting_seen_at = time.monotonic()
        self._engine.work_stored.set()
