"""Suspects, one at a time, in a process that runs nothing else.

Each is handled, or, after two starts that it did not let end, buried. One that is handled well proves that the process
is sound, so the next may follow in it; but nothing is convicted by a start that came after another's.
"""

import asyncio
import time
from contextlib import AsyncExitStack
from typing import Final
from uuid import UUID

import structlog

from consumer.api import Consumer
from consumer.decide.delivery import Refused
from consumer.engine.alarm import Alarm, HookAlerts
from consumer.engine.item import Item
from consumer.engine.lease import Lease
from consumer.engine.path import Held, Path
from consumer.engine.run import assemble_core, engine_for
from consumer.engine.slot import Slot
from consumer.engine.suspects import GO_ON_S, MARGIN_S, alone_s
from consumer.limits import Limits
from consumer.outcome import DeadCategory
from consumer.store import start, work
from consumer.store.desk import Desk
from consumer.store.work import WorkRow
from outbox.event import Event
from outbox.shell.signals import Stop

#: So many starts that their process did not live to end, it running nothing else, and the event is poison.
UNENDED_MAX: Final = 2
_log = structlog.get_logger("consumer.engine.alone")


class Alone:
    """Handles suspects of *group*, by *path* on *slot*, for the incarnation of *lease*."""

    def __init__(self, *, group: str, path: Path, slot: Slot, desk: Desk, lease: Lease, payload_bytes_max: int) -> None:
        self._group = group
        self._path = path
        self._slot = slot
        self._desk = desk
        self._lease = lease
        self._payload_bytes_max = payload_bytes_max

    async def run(self, stop: Stop) -> None:
        """Handle one after the other while that is quick, or give one back, uncharged, if *stop* asks first.

        Raises:
            StoreUnavailable: it is given back when the lease runs out.
            MemoryError: the handler took more than it may have. As good as dead: nothing is given back.
        """
        began = time.monotonic()
        stopping = asyncio.create_task(stop.drain())
        is_fresh = True
        while not stop.is_draining and time.monotonic() - began < GO_ON_S and (row := await self._take()) is not None:
            handling = asyncio.create_task(self._handle(row, is_fresh=is_fresh))
            is_fresh = False
            await asyncio.wait({handling, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not handling.done():
                await self._give_back(handling)
            elif not handling.result():
                break
        stopping.cancel()
        await self._lease.end()

    async def _take(self) -> WorkRow | None:
        async with self._desk.use() as connection:
            rows = await work.take_due(
                connection, self._group, owner=self._lease.id, per_lane_limit=1, total=1, suspects=True
            )
        return rows[0] if rows else None

    async def _handle(self, row: WorkRow, *, is_fresh: bool) -> bool:
        """Handle *row*; false if it is for another process to do: what has ended one is begun again in a fresh one."""
        item = Item.of_row(row, ident=1, payload_bytes_max=self._payload_bytes_max, now=time.monotonic(), is_alone=True)
        async with self._desk.use() as connection:
            unended = await start.begin_alone(connection, self._group, row.event_id, incarnation=self._lease.id)
            if 0 < unended < UNENDED_MAX and not is_fresh:
                await start.forgive(connection, self._lease.id)
                return False
        if unended >= UNENDED_MAX and isinstance(item.envelope, Event):
            await self._convict(item, item.envelope, unended)
            return True
        _log.info("suspect begun", event_id=str(row.event_id), tenant=row.stored.tenant, unended=unended)
        walked = await self._path.walk(self._slot, item)
        if isinstance(walked, Held):
            await self._path.park(self._slot.connection, item)
        async with self._desk.use() as connection:
            await start.end(connection, self._group, [row.event_id], incarnations=[self._lease.id])
        return True

    async def _convict(self, item: Item, event: Event, unended: int) -> None:
        reason = f"a process that outlives it: want one, got {unended} that ran nothing else and died"
        await self._path.bury(self._slot.connection, item, Refused(category=DeadCategory.POISON, reason=reason))
        async with self._desk.use() as connection:
            await start.convict(connection, self._group, event.id)

    async def _give_back(self, handling: "asyncio.Task[bool]") -> None:
        handling.cancel()
        await asyncio.wait({handling})
        async with self._desk.use() as connection:
            await start.forgive(connection, self._lease.id)
        _log.info("suspect given back")


async def run_suspect(consumer: Consumer, database_url: str, *, incarnation: UUID, stop: Stop, limits: Limits) -> None:
    """Handle suspects of the group, if there are any, as *incarnation*. Raises as ``Alone.run``, and ConfigError."""
    name = f"outbox-consumer {consumer.group} suspect"
    alarm = Alarm(consumer.group, [HookAlerts(hook) for hook in consumer.alert_hooks])
    async with AsyncExitStack() as stack:
        desk = Desk(database_url, name=name)
        stack.push_async_callback(desk.close)
        # It renews nothing: a handler may block the loop for all of its time, and who has started it sees its end.
        lease_s = alone_s(consumer, limits) + 2 * MARGIN_S
        core = await assemble_core(
            consumer, database_url, limits, stack, name=name, alarm=alarm, lease_s=lease_s, incarnation=incarnation
        )
        slot = Slot(engine_for(database_url, name=name), number=0)
        stack.push_async_callback(slot.close)
        alone = Alone(
            group=consumer.group,
            path=core.path,
            slot=slot,
            desk=desk,
            lease=core.lease,
            payload_bytes_max=limits.payload_bytes_max,
        )
        sending = asyncio.create_task(alarm.send())
        await alone.run(stop)
        await alarm.close()
        sending.cancel()
