"""Caps and rates as an app declares them: what they hold back, whom they do not, and when it goes on."""

from collections.abc import Callable
from itertools import count

import pytest

from consumer import Cap, Consumer, Rate
from consumer.decide.fairness import Item, Scheduler
from consumer.decide.limit import Limit, bounds_of
from consumer.limits import Limits
from outbox.errors import ConfigError
from outbox.event import Event, Tier

numbers = count()
TYPE = "orders.order.placed"


def scheduler_with(*limits: Limit, type: str | None = None, slots: int = 20) -> Scheduler:
    return Scheduler(slots, bounds=bounds_of((type, limit) for limit in limits))


def offer(scheduler: Scheduler, tenant: str, *, type: str = TYPE, tier: Tier = Tier.STANDARD) -> Item:
    item = Item(ident=next(numbers), tier=tier, tenant=tenant, type=type, lane=f"{tier.label}.{tenant}")
    scheduler.offer(item)
    return item


def take_all(scheduler: Scheduler, now: float = 0.0) -> list[Item]:
    found = []
    while (grant := scheduler.take(now)) is not None:
        found.append(grant.item)
    return found


# -------------------------------------------------------------------- caps


def test_a_cap_per_tenant_holds_for_each_tenant_and_not_for_interactive_work() -> None:
    scheduler = scheduler_with(Cap(2, per="tenant"))
    for tenant in ("a", "b", "c"):
        for _ in range(4):
            offer(scheduler, tenant)
    urgent = [offer(scheduler, "a", tier=Tier.INTERACTIVE) for _ in range(4)]

    started = take_all(scheduler)

    assert started[:4] == urgent
    assert sorted(item.tenant for item in started[4:]) == ["a", "a", "b", "b", "c", "c"]


def test_a_cap_on_a_type_binds_interactive_work_too_and_no_other_type() -> None:
    scheduler = scheduler_with(Cap(2), type=TYPE)
    for tier in (Tier.INTERACTIVE, Tier.STANDARD):
        for _ in range(3):
            offer(scheduler, "a", tier=tier)
    other = offer(scheduler, "a", type="other")

    started = take_all(scheduler)

    assert [item.type for item in started].count(TYPE) == 2
    assert other in started


def test_a_cap_on_a_type_per_tenant_leaves_its_tenants_other_types_and_the_type_of_others_alone() -> None:
    scheduler = scheduler_with(Cap(1, per="tenant"), type=TYPE)
    for tenant in ("a", "b"):
        for type_ in (TYPE, "other"):
            for _ in range(3):
                offer(scheduler, tenant, type=type_)

    started = [(item.tenant, item.type) for item in take_all(scheduler)]

    assert [started.count(("a", TYPE)), started.count(("b", TYPE))] == [1, 1]
    assert started.count(("a", "other")) == started.count(("b", "other")) == 3


def test_of_two_caps_on_the_same_the_stricter_holds() -> None:
    scheduler = scheduler_with(Cap(5, per="tenant"), Cap(2, per="tenant"), Cap(9, per="tenant"))
    for _ in range(10):
        offer(scheduler, "a")
    assert len(take_all(scheduler)) == 2


def test_a_cap_on_everything_holds_across_tenants_types_and_tiers() -> None:
    scheduler = scheduler_with(Cap(3))
    for tier in Tier:
        for tenant in ("a", "b"):
            offer(scheduler, tenant, tier=tier, type=f"of {tenant}")
    assert len(take_all(scheduler)) == 3


def test_tenants_that_left_nothing_behind_are_forgotten_with_their_caps() -> None:
    scheduler = scheduler_with(Cap(2, per="tenant"), Rate(1000, per="tenant"))
    for number in range(100):
        offer(scheduler, f"tenant-{number}")
        for item in take_all(scheduler, number):
            scheduler.done(item.ident)
    for _ in range(100):
        scheduler.take(1000.0)
    assert not scheduler._limits._rooms


# -------------------------------------------------------------------- rates


def test_a_rate_lets_a_burst_start_and_then_one_as_each_token_comes() -> None:
    scheduler = scheduler_with(Rate(10, burst=3, per="tenant"))
    for _ in range(8):
        offer(scheduler, "a")
    assert len(take_all(scheduler, 100.0)) == 3
    assert scheduler.wakes_at() == pytest.approx(100.1)
    assert take_all(scheduler, 100.09) == []
    assert len(take_all(scheduler, 100.11)) == 1
    assert scheduler.wakes_at() == pytest.approx(100.2)
    assert len(take_all(scheduler, 100.35)) == 2
    assert len(take_all(scheduler, 999.0)) == 2
    assert scheduler.wakes_at() is None


def test_a_tenant_at_its_rate_holds_up_no_other_tenant_and_no_interactive_work() -> None:
    scheduler = scheduler_with(Rate(1, per="tenant"))
    first, *_held = [offer(scheduler, "a") for _ in range(3)]
    other = offer(scheduler, "b")
    urgent = offer(scheduler, "a", tier=Tier.INTERACTIVE)
    assert take_all(scheduler) == [urgent, first, other]


def test_a_type_at_its_rate_holds_up_no_other_type_of_its_lane() -> None:
    scheduler = scheduler_with(Rate(1), type="slow")
    slow, _held = offer(scheduler, "a", type="slow"), offer(scheduler, "a", type="slow")
    quick = [offer(scheduler, "a", type="quick") for _ in range(3)]
    assert take_all(scheduler) == [slow, *quick]


def test_tenants_that_wait_for_a_types_tokens_have_them_in_turn_and_nobody_overtakes() -> None:
    scheduler = scheduler_with(Rate(1), type=TYPE)
    for tenant in ("a", "b", "c"):
        for _ in range(4):
            offer(scheduler, tenant)
    served = []
    for second in range(12):
        (item,) = take_all(scheduler, float(second))
        served.append(item.tenant)
        scheduler.done(item.ident)
        offer(scheduler, f"new-{second}", type="other")
        for other in take_all(scheduler, float(second)):
            scheduler.done(other.ident)
    assert served == ["a", "b", "c"] * 4


def test_a_moment_of_idleness_earns_a_tenant_no_new_burst() -> None:
    scheduler = scheduler_with(Rate(1, burst=2, per="tenant"))
    for _ in range(2):
        offer(scheduler, "a")
    for item in take_all(scheduler, 0.0):
        scheduler.done(item.ident)
    for number in range(20):  # rounds in which the idle tenant could be forgotten
        offer(scheduler, f"other-{number}")
        for item in take_all(scheduler, 0.1):
            scheduler.done(item.ident)
    offer(scheduler, "a")
    assert take_all(scheduler, 0.2) == []
    assert len(take_all(scheduler, 1.0)) == 1


def test_what_started_and_only_had_to_wait_for_another_has_spent_no_token() -> None:
    scheduler = scheduler_with(Rate(1, per="tenant"))
    early, next_ = offer(scheduler, "a"), offer(scheduler, "a")
    assert take_all(scheduler) == [early]
    scheduler.hold(early.ident, cost=0)
    assert take_all(scheduler) == [next_]


def test_a_rate_over_a_long_time_is_kept_exactly_whatever_the_moments_of_asking() -> None:
    scheduler = scheduler_with(Rate(3), type=TYPE)
    for _ in range(500):
        offer(scheduler, "a")
    starts, now = 0, 0.0
    while now < 100.0:
        for item in take_all(scheduler, now):
            starts += 1
            scheduler.done(item.ident)
        now += 0.0701
    assert 299 <= starts <= 303


# -------------------------------------------------------------------- declared


def test_a_consumers_limits_hold_for_all_types_a_handlers_for_its_own_and_an_operators_for_tenants() -> None:
    consumer = Consumer("billing", limits=[Cap(8, per="tenant")])

    @consumer.on("shop.sold", limits=[Cap(2, scope="fleet"), Rate(0.5, burst=4)])
    async def handle(event: Event) -> None: ...

    assert consumer.limits == [
        (None, Cap(8, per="tenant")),
        ("shop.sold", Cap(2, scope="fleet")),
        ("shop.sold", Rate(0.5, burst=4)),
    ]
    limits = Limits(tenant_cap=3, tenant_fleet_cap=5, tenant_per_s=2.5).of_tenants()
    assert limits == [
        (None, Cap(3, per="tenant")),
        (None, Cap(5, per="tenant", scope="fleet")),
        (None, Rate(2.5, per="tenant")),
    ]


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: Cap(0), "Cap: want 1 or more .* got 0"),
        (lambda: Cap(1, per="type"), "Cap: want per='tenant' or none, got 'type'"),  # type: ignore[arg-type]
        (lambda: Cap(1, scope="world"), "Cap: want scope 'process' or 'fleet', got 'world'"),  # type: ignore[arg-type]
        (lambda: Rate(0), "Rate: want starts per second above 0, got 0"),
        (lambda: Rate(float("nan")), "Rate: want starts per second above 0, got nan"),
        (lambda: Rate(1, burst=0), "Rate: want a burst of 1 or more, got 0"),
        (lambda: Consumer("billing", limits=[4]), "consumer billing: want limits that are a Cap or a Rate, got int"),  # type: ignore[list-item]
    ],
)
def test_a_limit_that_makes_no_sense_is_refused_in_one_sentence(make: Callable[[], object], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        make()
