"""Which queues get a consumer, and which a second one."""

from datetime import UTC, datetime
from itertools import count
from uuid import uuid4

from consumer.decide.fairness import Scheduler
from consumer.engine.hands import Hands
from consumer.engine.item import Item
from consumer.engine.lanes import Lanes
from consumer.ports import Receipt
from outbox.event import Event, Tier
from outbox.naming import Lane
from outbox.wire import encode

NOW = datetime(2026, 11, 29, tzinfo=UTC)
IDENTS = count(1)
BUSY = Lane(group="billing", tier=Tier.STANDARD, tenant="busy")
QUIET = Lane(group="billing", tier=Tier.STANDARD, tenant="quiet")


class World:
    def __init__(self, *, slots: int = 10) -> None:
        self.scheduler = Scheduler(slots)
        self.lanes = Lanes(prefetch=2, scheduler=self.scheduler)
        self.hands = Hands(self.scheduler, group="billing")
        self.lanes.learn([BUSY, QUIET], now=0.0)

    def deliver(self, lane: Lane, number: int) -> None:
        for _ in range(number):
            event = Event(
                id=uuid4(),
                tenant=lane.tenant,
                tier=lane.tier,
                type="orders.order.placed",
                data_version=1,
                source="shop",
                content_type="application/json",
                payload=b"{}",
                time=NOW,
                ledger_time=NOW,
            )
            item = Item(
                ident=next(IDENTS),
                lane=lane,
                message=encode(event),
                envelope=event,
                source=Receipt(epoch=1, tag=next(IDENTS)),
                arrived_at=0.0,
            )
            self.hands.add(item, lane=lane.queue)

    def start(self) -> int:
        started = 0
        while self.hands.next(0.0) is not None:
            started += 1
        return started


def test_a_lane_is_attached_once() -> None:
    lanes = Lanes(prefetch=2, scheduler=Scheduler(10))
    assert lanes.learn([BUSY], now=0.0) == [BUSY.queue]
    assert lanes.learn([BUSY, QUIET], now=0.0) == [QUIET.queue]
    assert lanes.learn([], now=0.0) == []
    assert lanes.attached == 2
    assert lanes.of(BUSY.queue) == BUSY
    assert lanes.of("another") is None


def test_a_lane_that_is_lost_is_attached_again_later_and_later() -> None:
    lanes = Lanes(prefetch=2, scheduler=Scheduler(10))
    lanes.learn([BUSY], now=0.0)
    waits = []
    now = 0.0
    for _ in range(6):
        lanes.lose(BUSY.queue, now)
        lost_at = now
        while not lanes.learn([], now):
            now += 1.0
        waits.append(now - lost_at)
    assert waits == [5.0, 10.0, 20.0, 40.0, 60.0, 60.0]
    lanes.delivered(BUSY.queue)
    lanes.lose(BUSY.queue, now)
    assert lanes.learn([], now + 5.0) == [BUSY.queue]


def test_a_lane_that_runs_all_it_has_gets_an_extra_consumer_for_the_slots_of_its_tier() -> None:
    world = World()
    world.deliver(BUSY, 2)
    assert world.start() == 2
    assert world.lanes.hungry() == [(BUSY.queue, 7)]
    assert world.lanes.hungry() == []
    assert (BUSY.queue, True) in world.lanes.consumers()


def test_a_lane_below_its_prefetch_has_given_all_it_has() -> None:
    world = World()
    world.deliver(QUIET, 1)
    world.start()
    assert world.lanes.hungry() == []


def test_an_extra_consumer_goes_once_its_tier_is_full_and_another_lane_waits() -> None:
    world = World()
    world.deliver(BUSY, 2)
    world.start()
    world.lanes.hungry()
    world.deliver(BUSY, 7)
    world.start()
    assert world.lanes.contended(world.hands) == []
    world.deliver(QUIET, 1)
    assert world.start() == 0
    assert world.lanes.contended(world.hands) == [BUSY.queue]
    assert world.lanes.contended(world.hands) == []
    assert (BUSY.queue, True) not in world.lanes.consumers()


def test_an_extra_consumer_stays_while_only_a_paused_lane_waits() -> None:
    world = World()
    world.scheduler.pause(tenant=QUIET.tenant)
    world.deliver(BUSY, 2)
    world.start()
    world.lanes.hungry()
    world.deliver(BUSY, 7)
    world.deliver(QUIET, 1)
    world.start()
    assert world.lanes.contended(world.hands) == []
    world.scheduler.resume(tenant=QUIET.tenant)
    assert world.lanes.contended(world.hands) == [BUSY.queue]


def test_a_favoured_lane_gets_and_keeps_an_extra_consumer_while_others_wait() -> None:
    world = World()
    world.lanes.favour([BUSY, Lane(group="billing", tier=Tier.BULK, tenant="unknown")])
    assert world.lanes.favoured() == []
    world.deliver(QUIET, 7)
    assert world.start() == 7
    world.deliver(BUSY, 2)
    world.deliver(QUIET, 2)
    assert world.lanes.hungry() == []
    assert world.lanes.favoured() == [(BUSY.queue, 7)]
    assert world.lanes.favoured() == []
    assert world.lanes.contended(world.hands) == []
    world.lanes.favour([])
    assert world.lanes.contended(world.hands) == [BUSY.queue]


def test_lanes_that_were_let_go_are_attached_again_at_once() -> None:
    world = World()
    world.deliver(BUSY, 2)
    world.start()
    world.lanes.hungry()
    assert sorted(world.lanes.let_go()) == sorted([(BUSY.queue, False), (QUIET.queue, False), (BUSY.queue, True)])
    assert world.lanes.let_go() == []
    assert sorted(world.lanes.learn([], now=0.0)) == sorted([BUSY.queue, QUIET.queue])


def test_a_lane_is_left_once_nothing_of_it_is_in_hand_and_is_not_found_again() -> None:
    world = World()
    world.deliver(BUSY, 2)
    assert world.lanes.leave([BUSY], world.hands) == []
    assert world.lanes.standing() == {QUIET}
    world.hands.lose(1)
    assert world.lanes.leave([], world.hands) == [BUSY.queue]
    assert world.lanes.leave([], world.hands) == []
    assert world.lanes.learn([QUIET], now=100.0) == []
    assert world.lanes.of(BUSY.queue) == BUSY


def test_a_lane_that_is_made_again_is_attached_at_once() -> None:
    world = World()
    world.lanes.leave([BUSY], world.hands)
    world.lanes.lose(BUSY.queue, now=1.0)
    assert world.lanes.learn([BUSY], now=1.0) == [BUSY.queue]
    assert world.lanes.standing() == {BUSY, QUIET}
