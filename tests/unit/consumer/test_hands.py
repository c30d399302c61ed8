"""What is in a process's hands, and which of it may start."""

from collections import Counter
from dataclasses import replace
from itertools import count
from uuid import UUID, uuid4

import pytest

from consumer import DeadCategory
from consumer.decide.costs import QUANTUM, Costs
from consumer.decide.delivery import Refused
from consumer.decide.fairness import Scheduler
from consumer.engine.hands import BUFFER_S, ORDER_S, Hands
from consumer.engine.item import FromWork, Item
from consumer.ports import Receipt
from consumer.store.stored import of_event
from consumer.store.work import Reason, WorkRow
from outbox.event import Event, Ordering, Tier
from outbox.naming import Lane
from outbox.wire import encode
from tests.unit.consumer.events import NOW, an_event

IDENTS = count(1)


def keyed(number: int, *, key: str = "order") -> Event:
    return an_event(ordering=Ordering(key=key, number=number, is_first=number == 1, previous_time=None))


def delivered(event: Event, *, epoch: int = 1, at: float = 0.0) -> Item:
    return Item(
        ident=next(IDENTS),
        lane=Lane(group="billing", tier=event.tier, tenant=event.tenant),
        message=encode(event),
        envelope=event,
        source=Receipt(epoch=epoch, tag=next(IDENTS)),
        arrived_at=at,
    )


def from_work(event: Event, *, owner: UUID) -> Item:
    row = WorkRow(
        group="billing",
        event_id=event.id,
        stored=of_event(event, encode(event)),
        reason=Reason.RETRY,
        due_at=NOW,
        attempts=1,
        handlers=None,
        owner=owner,
        waiting_since=NOW,
        last_error=None,
    )
    return replace_source(delivered(event), FromWork(owner=owner, row=row))


def replace_source(item: Item, source: FromWork) -> Item:
    return replace(item, source=source)


def hands_with(*items: Item, slots: int = 10) -> Hands:
    hands = Hands(Scheduler(slots), group="billing")
    for item in items:
        hands.add(item, lane=item.lane.queue)
    return hands


def start_all(hands: Hands, now: float = 0.0) -> list[Item]:
    started = []
    while (item := hands.next(now)) is not None:
        started.append(item)
    return started


def test_of_two_deliveries_of_one_event_the_second_waits_for_the_first() -> None:
    event = an_event()
    first, second = delivered(event), delivered(event, epoch=2)
    hands = hands_with(first, second)
    assert start_all(hands) == [first]
    assert hands.done(first, 0.0)
    assert start_all(hands) == [second]


def test_events_of_one_key_start_one_at_a_time_and_lowest_first() -> None:
    items = [delivered(keyed(number)) for number in (1, 4, 3, 2)]
    other = delivered(keyed(1, key="other"))
    hands = hands_with(*items, other)
    assert start_all(hands) == [items[0], other]
    for number in (2, 3, 4):
        running = next(item for item in items if item.event_id in {i.event_id for i in _running(hands)})
        hands.done(running, 0.0)
        (started,) = start_all(hands)
        assert isinstance(started.envelope, Event)
        assert started.envelope.ordering is not None
        assert started.envelope.ordering.number == number


def _running(hands: Hands) -> list[Item]:
    return [held.item for held in hands._running.values()]


def test_an_event_that_came_too_early_gives_its_slot_back_and_is_overdue_after_a_second() -> None:
    early = delivered(keyed(2))
    hands = hands_with(early)
    assert start_all(hands) == [early]
    hands.hold(early, now=10.0)
    assert hands.running == 0
    assert start_all(hands) == []
    assert hands.overdue(10.0 + ORDER_S) == []
    assert hands.overdue(10.1 + ORDER_S) == [early]
    hands.parked(early)
    assert len(hands) == 0


def test_an_event_that_came_too_early_may_try_again_and_is_overdue_all_the_same() -> None:
    early = delivered(keyed(2))
    hands = hands_with(early)
    for quarter in range(6):
        assert start_all(hands, quarter / 4) == [early]
        hands.hold(early, quarter / 4)
        if quarter < 5:
            hands.stir()
    assert hands.overdue(6 / 4) == [early]


def test_what_waits_longer_than_a_buffer_may_hold_it_is_overdue() -> None:
    items = [delivered(an_event()) for _ in range(9)]
    hands = hands_with(*items)
    running = start_all(hands)
    overdue = hands.overdue(BUFFER_S + 1)
    assert len(overdue) == 9 - len(running)
    assert not set(map(id, overdue)) & set(map(id, running))


def test_what_is_paused_is_set_aside_where_others_wait_behind_it() -> None:
    scheduler = Scheduler(10)
    hands = Hands(scheduler, group="billing")
    typed, lane, row = delivered(an_event()), delivered(an_event(tenant="whole")), from_work(an_event(), owner=uuid4())
    free = delivered(an_event(tenant="whole", tier=Tier.BULK))
    for item in (typed, lane, row, free):
        hands.add(item, lane=item.lane.queue)
    assert hands.paused(0.0) == []
    scheduler.pause(type=an_event().type, tenant="acme")
    scheduler.pause(tenant="whole", tier=Tier.STANDARD)
    assert start_all(hands) == [free]

    assert hands.paused(0.0) == [typed, row]
    hands.parked(typed)
    hands.unparked(row)
    assert hands.paused(0.0) == [row]
    hands.parked(row)
    # In its queue all else is paused too, so it may wait here; but not for ever.
    assert hands.paused(BUFFER_S) == []
    assert hands.paused(BUFFER_S + 1) == [lane]
    hands.unparked(lane)
    scheduler.resume(tenant="whole", tier=Tier.STANDARD)
    assert start_all(hands) == [lane]


def test_what_came_by_a_lost_channel_is_forgotten_and_what_runs_goes_on() -> None:
    items = [delivered(an_event()) for _ in range(9)] + [delivered(an_event(), epoch=2)]
    hands = hands_with(*items)
    running = start_all(hands)
    hands.lose(1)
    assert len(hands) == len(running) + 1
    for item in running:
        hands.done(item, 0.0)
    assert start_all(hands) == [items[-1]]


def test_what_the_database_failed_comes_back_unless_it_is_gone_or_from_a_work_row() -> None:
    mine, gone, row = delivered(an_event()), delivered(an_event(), epoch=2), from_work(an_event(), owner=uuid4())
    hands = hands_with(mine, gone, row)
    start_all(hands)
    hands.lose(2)
    assert [hands.trouble(item) for item in (mine, gone, row)] == [True, False, False]
    assert start_all(hands) == []
    for item in (mine, gone, row):
        hands.recover(item)
    assert start_all(hands) == [mine]
    assert len(hands) == 1


def test_a_lost_lease_takes_what_comes_from_work_rows_and_has_not_started() -> None:
    owner = uuid4()
    running, waiting = from_work(an_event(), owner=owner), from_work(an_event(), owner=owner)
    hands = hands_with(running, waiting, slots=2)
    assert start_all(hands) == [running]
    hands.withdraw_work()
    assert (len(hands), len(hands.from_work())) == (1, 1)


def test_draining_hands_back_all_that_does_not_run() -> None:
    items = [delivered(an_event()) for _ in range(9)]
    hands = hands_with(*items)
    running = start_all(hands)
    assert {item.ident for item in hands.withdraw()} == {item.ident for item in items} - {i.ident for i in running}
    assert len(hands) == len(running)


def test_a_delivery_that_cannot_be_read_waits_its_turn_like_any_other() -> None:
    refused = Refused(category=DeadCategory.UNREADABLE, reason="ce-id: want this header, got none")
    item = replace(delivered(an_event()), envelope=refused)
    hands = hands_with(item)
    assert start_all(hands) == [item]
    hands.done(item, 0.0)
    assert len(hands) == 0


# -------------------------------------------------------------------- what a slot's time costs


def timed_hands(*items: Item, slots: int = 2) -> Hands:
    scheduler = Scheduler(slots, quantum=QUANTUM)
    hands = Hands(scheduler, group="billing", costs=Costs([items[0].envelope.type]))  # type: ignore[union-attr]
    for item in items:
        hands.add(item, lane=item.lane.queue)
    return hands


def test_a_tenant_whose_handlers_take_long_starts_as_much_less_often() -> None:
    hands = timed_hands(*(delivered(an_event(tenant=tenant)) for tenant in ("slow", "quick") for _ in range(300)))
    now, starts = 0.0, Counter[str]()
    for _ in range(300):
        item = hands.next(now)
        assert item is not None
        starts[item.lane.tenant] += 1
        now += 0.200 if item.lane.tenant == "slow" else 0.020
        hands.done(item, now)
    assert starts["quick"] == pytest.approx(10 * starts["slow"], rel=0.15)


def test_what_runs_long_is_paid_for_while_it_runs() -> None:
    long = delivered(an_event(tenant="slow"))
    others = [delivered(an_event(tenant=tenant)) for tenant in ("slow", "other") for _ in range(50)]
    hands = timed_hands(long, *others, slots=3)
    assert hands.next(0.0) is long

    hands.charge(now=10.0)

    started = []
    for _ in range(40):
        item = hands.next(10.0)
        assert item is not None
        started.append(item.lane.tenant)
        hands.done(item, 10.1)
    assert set(started) == {"other"}


def test_what_starts_again_is_paid_for_from_that_start_on() -> None:
    early = delivered(keyed(2))
    hands = timed_hands(early)
    hands.next(0.0)
    hands.hold(early, now=0.001)
    hands.stir()
    assert hands.next(100.0) is early
    hands.charge(now=100.002)
    assert hands._held[early.ident].charged == QUANTUM
