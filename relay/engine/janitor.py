"""Keeps the log, and what stands beside it, from growing: old slots, positions' dead versions, keys and counters.

Every relay runs one; nothing depends on any of them being there, since a row is never refused for want of room.
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import structlog

from outbox.errors import OutboxError
from relay.gauges import Gauges
from relay.limits import Upkeep
from relay.log import guard, pruning, rewriting, slots, store

log = structlog.get_logger(__name__)

_CONNECT_S: Final = 5.0
_STATEMENT_S: Final = 300.0
_TICK_S: Final = 1.0
# Dead versions come by persists alone, and so many of them make a tenth of what a position table may grow to.
_PERSISTS: Final = 20
_KEY_BATCHES_MAX: Final = 100
_COUNTER_BATCHES_MAX: Final = 50
# Each batch locks its rows, and what else the server has to do comes between.
_PAUSE_S: Final = 0.01
_IN_ORDER: Final = (slots.TRUNCATED, slots.CURRENT, slots.RETAINED)


async def run_janitor(url: str, *, stop: asyncio.Event, upkeep: Upkeep, gauges: Gauges) -> None:
    """Work until *stop*. It never fails: it tries again.

    Args:
        gauges: its persists say when positions may have grown; what is found is written to it.
    """
    janitor = _Janitor(url, upkeep, gauges)
    while not stop.is_set():
        try:
            await janitor.tick(time.monotonic())
        except OutboxError as error:
            # Rows still fit, and events still flow: nobody must stop for this.
            log.warning("janitor could not work", reason=str(error))
            await janitor.close()
        try:
            async with asyncio.timeout(min(_TICK_S, upkeep.every_s)):
                await stop.wait()
        except TimeoutError:
            continue
    await janitor.close()


async def truncate_old_slots(connection: store.Connection, *, retention_s: float) -> Mapping[int, str]:
    """Truncate every slot that may be; return what ``slots.truncate`` answered for each that was not empty."""
    return {
        slot: await slots.truncate(connection, slot, retention_s=retention_s, within_s=_STATEMENT_S)
        for slot in await slots.filled(connection, within_s=_STATEMENT_S)
    }


async def connect(url: str) -> store.Connection:
    """A session for the janitor's work.

    Raises:
        StoreUnavailable: the database cannot be reached.
        WrongDatabase, SchemaMissing, ConfigError: it is not ours to use.
    """
    connection = await store.connect(url, store.FIXED_PLANS, connect_s=_CONNECT_S, statement_s=_STATEMENT_S)
    try:
        await guard.check(connection, within_s=_STATEMENT_S)
    except BaseException:
        await store.close(connection)
        raise
    return connection


@dataclass(slots=True, eq=False)
class _Janitor:
    url: str
    upkeep: Upkeep
    gauges: Gauges
    _connection: store.Connection | None = None
    _due_at: float = 0.0
    _persists: int = 0
    _place: pruning.Place = field(default_factory=pruning.Place)
    _kept: Mapping[int, str] = field(default_factory=dict)

    async def tick(self, now: float) -> None:
        """Do what is due by now."""
        if self.gauges.persists - self._persists >= _PERSISTS:
            self._persists = self.gauges.persists
            await self._rewrite()
        if now >= self._due_at:
            self._due_at = now + self.upkeep.every_s
            await self._truncate()
            await self._prune()

    async def close(self) -> None:
        """Let the session go; the next tick opens another."""
        connection, self._connection = self._connection, None
        await store.close(connection)

    async def _connected(self) -> store.Connection:
        if self._connection is None:
            self._connection = await connect(self.url)
        return self._connection

    async def _truncate(self) -> None:
        connection = await self._connected()
        answers = await truncate_old_slots(connection, retention_s=self.upkeep.retention_s)
        truncated = [slot for slot, answer in answers.items() if answer == slots.TRUNCATED]
        if truncated:
            log.info("slots truncated", slots=truncated)
        held = {slot: answer for slot, answer in answers.items() if answer not in _IN_ORDER}
        for slot, answer in held.items():
            if self._kept.get(slot) != answer:
                log.warning("slot kept", slot=slot, reason=answer)
        self._kept = held
        kept = await slots.kept(connection, within_s=_STATEMENT_S)
        gauges = self.gauges
        gauges.slots_truncated += len(truncated)
        gauges.slots_kept_unpublished = sum(answer == slots.UNPUBLISHED for answer in held.values())
        gauges.slots_kept_busy = sum(answer == slots.BUSY for answer in held.values())
        gauges.slots_kept_foreign = sum(answer == slots.FOREIGN for answer in held.values())
        gauges.oldest_event_s = int(max((slot.oldest_s for slot in kept), default=0.0))

    async def _rewrite(self) -> None:
        connection = await self._connected()
        for table in rewriting.TABLES:
            if not await rewriting.is_bloated(connection, table, within_s=_STATEMENT_S):
                continue
            if await rewriting.rewrite(connection, table, within_s=_STATEMENT_S):
                self.gauges.positions_rewritten += 1
            else:
                self.gauges.positions_busy += 1

    async def _prune(self) -> None:
        connection = await self._connected()
        for _ in range(_KEY_BATCHES_MAX):
            removed = await pruning.prune_keys(connection, within_s=_STATEMENT_S)
            self.gauges.keys_pruned += removed
            if removed < pruning.BATCH:
                break
            await asyncio.sleep(_PAUSE_S)
        for _ in range(_COUNTER_BATCHES_MAX):
            walked = await pruning.prune_counters(
                connection, self._place, retention_s=self.upkeep.ordering_retention_s, within_s=_STATEMENT_S
            )
            self.gauges.counters_pruned += walked.removed
            self._place = walked.following or pruning.Place()
            if walked.following is None:
                break
            await asyncio.sleep(_PAUSE_S)
