"""The engine: deliveries in, slots that take turns at them, and what follows told to the broker.

Everything here runs on one event loop and decides from memory; attempts and the pump ask the database.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import count
from typing import Final
from uuid import UUID

import structlog

from consumer.decide.costs import Costs
from consumer.decide.delivery import open_envelope
from consumer.decide.fairness import Scheduler
from consumer.decide.heartbeat import Heartbeat
from consumer.decide.report import report_of
from consumer.engine.guard import Guard
from consumer.engine.hands import Hands
from consumer.engine.item import FromWork, Item
from consumer.engine.lanes import Lanes
from consumer.engine.path import Held
from consumer.engine.reminder import Reminder
from consumer.engine.restraint import Restraint
from consumer.engine.slot import Slot
from consumer.engine.tally import Tally
from consumer.engine.telling import Settled
from consumer.ports import Broker, Delivery, LostBecause, Receipt
from consumer.store.gate import Key
from consumer.store.work import WorkRow
from outbox.errors import LeaseLost, StoreUnavailable
from outbox.naming import Lane

_TROUBLE_S: Final = 0.05
_TROUBLE_MAX_S: Final = 30.0
_DOUBLINGS_MAX: Final = 10
# An acknowledgement each would cost a switch of threads, a write and a turn of the broker's for every event.
_SETTLE_S: Final = 0.002


class Engine:
    """One group's engine in one process: the broker's inbox, and what the pump feeds.

    *store_ok* is set while the database answers; nothing starts while it does not. *work_stored* and *dead_stored* are
    set when there is something for the pump to do at once; *passed* are the keys that moved on since *key_passed* was.
    *control_written* is set when a rule or a breaker has paused something. *alarm* is where alerts are raised.
    *permits_wanted* is set when something waits for a permit of the fleet.
    """

    def __init__(  # noqa: PLR0913 - each is a part that the caller owns
        self,
        *,
        group: str,
        broker: Broker,
        guard: Guard,
        scheduler: Scheduler,
        prefetch: int,
        payload_bytes_max: int,
        restraint: Restraint,
        costs: Costs | None,
        tally: Tally,
    ) -> None:
        self.group = group
        self.alarm = restraint.alarm
        self.tally = tally
        self.restraint = restraint
        self.hands = Hands(scheduler, group=group, costs=costs)
        self.lanes = Lanes(prefetch=prefetch, scheduler=scheduler)
        self.service: dict[str, asyncio.Queue[Delivery]] = {}
        self.outcomes: Counter[str] = Counter()
        self.passed: list[tuple[Key, int]] = []
        self.key_passed = asyncio.Event()
        self.work_stored = asyncio.Event()
        self.dead_stored = asyncio.Event()
        self.control_written = asyncio.Event()
        self.permits_wanted = asyncio.Event()
        self.store_ok = asyncio.Event()
        self.store_ok.set()
        self.store_lost = asyncio.Event()
        self.is_connected = False
        self.is_draining = False
        self.is_suspended = False
        self.is_empty = asyncio.Event()
        self._broker = broker
        self._guard = guard
        self._payload_bytes_max = payload_bytes_max
        self._idents = count(1)
        self._idle: list[asyncio.Future[Item]] = []
        self._settling: list[Receipt] = []
        self._returned: set[UUID] = set()
        self._scheduler = scheduler
        self._reminder = Reminder(self._dispatch)
        self._wishes: asyncio.Queue[tuple[str, int]] = asyncio.Queue()
        self._log = structlog.get_logger("consumer.engine.loop")

    # ---------------------------------------------------------------- the broker's side

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        """As the port says."""
        if self.is_draining:  # sent before the broker heard that we consume no more
            self._broker.settle([delivery.receipt for delivery in deliveries], requeue=True)
            return
        now = time.monotonic()
        for delivery in deliveries:
            service = self.service.get(delivery.queue)
            if service is not None:
                service.put_nowait(delivery)
            else:
                self._take_in(delivery, now)
        self._dispatch()

    def channel_lost(self, epoch: int) -> None:
        """As the port says."""
        self.hands.lose(epoch)

    def queue_lost(self, queue: str, because: LostBecause) -> None:
        """As the port says."""
        self._log.warning("queue lost", queue=queue, because=because.value)
        if because is not LostBecause.UNRESPONSIVE:
            self.lanes.lose(queue, time.monotonic())

    def connected(self, *, is_connected: bool) -> None:
        """As the port says."""
        if is_connected != self.is_connected:
            self.is_connected = is_connected
            write = self._log.info if is_connected else self._log.warning
            write("broker connected" if is_connected else "broker lost")

    # ---------------------------------------------------------------- the pump's side

    def take_work(self, rows: Iterable[WorkRow]) -> None:
        """Take in *rows*, which this process has claimed."""
        now = time.monotonic()
        for row in rows:
            item = Item.of_row(row, ident=next(self._idents), payload_bytes_max=self._payload_bytes_max, now=now)
            self.tally.from_work += 1
            # A buffer of its own: what it has in hand says nothing of the queue's consumer.
            self.hands.add(item, lane=f"work.{item.lane.routing_key}")
        self._dispatch()

    def returned(self) -> list[UUID]:
        """The events of claimed rows that could not be handled: to be given back, and then forgotten."""
        return list(self._returned)

    def forget_returned(self, events: Iterable[UUID]) -> None:
        """The rows of *events* were given back."""
        self._returned.difference_update(events)

    def settle(self, item: Item, settled: Settled) -> None:
        """All that follows from *item* is stored: tell whoever has to know."""
        self.outcomes[settled.outcome] += 1
        self.tally.settled_at = time.time()
        if isinstance(item.source, Receipt):
            self.acknowledge(item.source)
        if settled.passed is not None:
            self.passed.append(settled.passed)
            self.key_passed.set()
        if settled.due_in_s is not None:
            self.work_stored.set()
        if settled.outcome == "dead":
            self.dead_stored.set()
        if settled.has_paused:
            self.control_written.set()

    def acknowledge(self, receipt: Receipt) -> None:
        """Acknowledge, together with all that is acknowledged within 2 ms; a slot that finds no work waits for none."""
        if not self._settling:
            asyncio.get_running_loop().call_later(_SETTLE_S, self.flush)
        self._settling.append(receipt)

    def flush(self) -> None:
        """Write what was acknowledged."""
        if self._settling:
            receipts, self._settling = self._settling, []
            self._broker.settle(receipts)

    def lose_store(self) -> None:
        """The database does not answer: nothing starts until ``regain_store``."""
        if self.store_ok.is_set():
            self._log.warning("database lost")
            self.store_ok.clear()
            self.store_lost.set()

    def regain_store(self) -> None:
        """The database answers again."""
        if not self.store_ok.is_set():
            self._log.info("database back")
            self.store_lost.clear()
            self.store_ok.set()
            self._dispatch()

    def heartbeat(self) -> Heartbeat:
        """How it does at this moment."""
        return Heartbeat(
            is_connected=self.is_connected,
            is_suspended=self.is_suspended,
            lanes=len(self.lanes),
            attached=self.lanes.attached,
            in_hand=len(self.hands),
            outcomes=dict(self.outcomes),
            running=self.hands.running_by_type(),
            tiers=self._scheduler.tiers,
            breakers=self.restraint.breakers,
        )

    def stir(self) -> None:
        """Let what was held for another's sake try again."""
        self.hands.stir()
        self._dispatch()

    async def ease(self) -> float:
        """Let what breakers kept from starting try again, as time goes on; says when to call it again."""
        kept, has_changed, wait_s = self.restraint.follow()
        if has_changed:
            self.control_written.set()
        for item in reversed(kept):  # each goes ahead of the one before
            self.hands.recover(item)
        if kept:
            self._dispatch()
        return wait_s

    def look(self) -> None:
        """Start what may start: a limit gave way."""
        self._dispatch()

    # ---------------------------------------------------------------- consumers

    async def learn(self, lanes: Iterable[Lane]) -> None:
        """Attach to those of *lanes* that are not attached."""
        if self.is_suspended:
            return
        for queue in self.lanes.learn(lanes, time.monotonic()):
            await self._broker.attach(queue, prefetch=self.lanes.prefetch)

    async def leave(self, lanes: Iterable[Lane]) -> None:
        """Detach from *lanes*, and from those left before, as soon as nothing of them is in hand. Call it again."""
        if self.is_draining:
            return
        for queue in self.lanes.leave(lanes, self.hands):
            self._log.info("lane left", queue=queue)
            self.flush()
            for is_extra in (False, True):
                await self._broker.detach(queue, is_extra=is_extra)

    async def feed(self) -> None:
        """Give an extra consumer to each lane that could use an idle slot, for ever."""
        while True:
            queue, prefetch = await self._wishes.get()
            if not self.is_suspended:
                await self._broker.attach(queue, prefetch=prefetch, is_extra=True)

    async def relieve(self) -> None:
        """Charge for what runs long, and cancel the extra consumers that stand in others' way."""
        self.hands.charge(time.monotonic())
        for wish in self.lanes.favoured():
            self._wishes.put_nowait(wish)
        for queue in self.lanes.contended(self.hands):
            await self._broker.detach(queue, is_extra=True)

    async def suspend(self) -> None:
        """Consume from no lane and start nothing until ``go_on``; hand back, uncharged, what has not started."""
        self.is_suspended = True
        unstarted = self.hands.withdraw()
        receipts = [item.source for item in unstarted if isinstance(item.source, Receipt)]
        for queue, is_extra in self.lanes.let_go():
            await self._broker.detach(queue, is_extra=is_extra)
        self._broker.settle(receipts, requeue=True)
        self._returned |= {item.source.row.event_id for item in unstarted if isinstance(item.source, FromWork)}

    async def go_on(self) -> None:
        """Consume again, from every lane that is known."""
        if self.is_suspended and not self.is_draining:
            self.is_suspended = False
            self.work_stored.set()
            await self.learn(())

    async def drain(self) -> None:
        """Start nothing any more, hand back, uncharged, what has not started; *is_empty* is set when all has ended."""
        self.is_draining = True
        for queue in self.service:
            await self._broker.detach(queue)
        await self.suspend()
        self._check_empty()

    # ---------------------------------------------------------------- slots

    async def serve(self, slot: Slot) -> None:
        """Be a slot: handle one item after the other, for ever."""
        while True:
            item = await self._next()
            try:
                walked = await self._guard.walk(slot, item)
            except StoreUnavailable:
                self.lose_store()
                self._trouble(item)
            except LeaseLost:
                self._log.warning("work row lost to another process", event_id=str(item.event_id))
                self.hands.done(item, time.monotonic())
            except Exception as error:  # noqa: BLE001 - a bug of ours must neither end the slot nor charge the event
                report = report_of(error)
                event_id = str(item.event_id)
                self._log.error("delivery not handled", event_id=event_id, error=report.message, trace=report.trace)
                self._trouble(item)
            else:
                self._ended(item, walked)
            self.restraint.left(item)
            self._check_empty()

    async def _next(self) -> Item:
        item = self._start_one()
        if item is not None:
            return item
        self._look_for_more()
        self.flush()
        waiter: asyncio.Future[Item] = asyncio.get_running_loop().create_future()
        self._idle.append(waiter)
        return await waiter

    def _dispatch(self) -> None:
        while self._idle:
            item = self._start_one()
            if item is None:
                self._look_for_more()
                return
            waiter = self._idle.pop()
            if waiter.cancelled():  # its slot is being ended
                self._trouble(item)
                self.restraint.left(item)
            else:
                waiter.set_result(item)

    def _start_one(self) -> Item | None:
        if self.is_suspended or not self.store_ok.is_set():
            return None
        item = self.hands.next(time.monotonic())
        while item is not None and not self.restraint.admits(item):
            self.hands.set_back(item)
            item = self.hands.next(time.monotonic())
        if item is None:
            if (wakes_at := self._scheduler.wakes_at()) is not None:
                self._reminder.at(wakes_at)
            if self._scheduler.wants_permits():
                self.permits_wanted.set()
        return item

    def _look_for_more(self) -> None:
        if self.is_suspended or not self.store_ok.is_set():
            return
        for wish in self.lanes.hungry():
            self._wishes.put_nowait(wish)

    def _ended(self, item: Item, walked: Held | Settled) -> None:
        now = time.monotonic()
        if isinstance(walked, Held):
            self.hands.hold(item, now)
            return
        self.settle(item, walked)
        if self.hands.done(item, now) and self._idle:  # this slot takes one of them, others may take more
            self._dispatch()

    def _trouble(self, item: Item) -> None:
        """*item* is tried again after a while that grows; whatever went wrong, it is not charged."""
        item.troubles += 1
        if self.hands.trouble(item):
            delay_s = min(_TROUBLE_MAX_S, _TROUBLE_S * 2.0 ** min(item.troubles, _DOUBLINGS_MAX))
            asyncio.get_running_loop().call_later(delay_s, self._recover, item)
        elif isinstance(item.source, FromWork):
            self._returned.add(item.source.row.event_id)

    def _recover(self, item: Item) -> None:
        self.hands.recover(item)
        self._dispatch()

    def _check_empty(self) -> None:
        if self.is_draining and self.hands.running == 0:
            self.is_empty.set()

    def _take_in(self, delivery: Delivery, now: float) -> None:
        lane = self.lanes.of(delivery.queue)
        if lane is None:
            self._log.error("delivery from an unknown queue", queue=delivery.queue)
            return
        if self.is_suspended:  # sent before the broker heard that we consume no more
            self._broker.settle([delivery.receipt], requeue=True)
            return
        self.lanes.delivered(delivery.queue)
        self.tally.from_queues += 1
        envelope = open_envelope(delivery.message, lane, payload_bytes_max=self._payload_bytes_max)
        item = Item(
            ident=next(self._idents),
            lane=lane,
            message=delivery.message,
            envelope=envelope,
            source=delivery.receipt,
            arrived_at=now,
            is_doubted=delivery.is_redelivered,
        )
        self.hands.add(item, lane=delivery.queue)
