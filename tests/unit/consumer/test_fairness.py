"""The scheduler's promises, one scene each. What holds whatever happens stands in tests/properties."""

from collections import Counter
from collections.abc import Callable
from itertools import count

import pytest

from consumer.decide.fairness import Grant, Item, Scheduler
from outbox.errors import ConfigError
from outbox.event import Tier

numbers = count()


def offer(scheduler: Scheduler, tenant: str, *, tier: Tier = Tier.STANDARD, type: str = "t", cost: int = 1) -> Item:
    item = Item(ident=next(numbers), tier=tier, tenant=tenant, type=type, lane=f"{tier.label}.{tenant}", cost=cost)
    scheduler.offer(item)
    return item


def fill(scheduler: Scheduler, tenant: str, many: int, *, tier: Tier = Tier.STANDARD, type: str = "t") -> None:
    for _ in range(many):
        offer(scheduler, tenant, tier=tier, type=type)


def take(scheduler: Scheduler) -> Grant:
    grant = scheduler.take()
    assert grant is not None
    return grant


def take_all(scheduler: Scheduler) -> list[Item]:
    items = []
    while (grant := scheduler.take()) is not None:
        items.append(grant.item)
    return items


def serve(scheduler: Scheduler, many: int) -> list[Item]:
    """Let *many* items start one after the other, each ending before the next."""
    items = []
    for _ in range(many):
        items.append(take(scheduler).item)
        scheduler.done(items[-1].ident)
    return items


# -------------------------------------------------------------------- tenants


def test_a_light_tenant_beside_twenty_flooding_ones_starts_within_three_dispatches() -> None:
    """triggerdotdev/trigger.dev#2617, #4353."""
    scheduler = Scheduler(10)
    for number in range(20):
        fill(scheduler, f"flood-{number}", 200)
    serve(scheduler, 20)
    running = take_all(scheduler)

    def dispatch(many: int) -> list[Item]:
        for _ in range(many):
            scheduler.done(running.pop(0).ident)
            running.append(take(scheduler).item)
        return running[-many:]

    for _ in range(30):
        dispatch(50)
        light = offer(scheduler, "light")
        assert light in dispatch(3)


def test_twenty_quiet_tenants_all_start_before_a_flood_goes_on() -> None:
    scheduler = Scheduler(2)
    for number in range(20):
        fill(scheduler, f"flood-{number}", 100)
    serve(scheduler, 60)

    quiet = [offer(scheduler, f"quiet-{number}") for number in range(20)]

    assert serve(scheduler, 20) == quiet


def test_a_tenant_returning_after_an_idle_hour_gets_no_credit() -> None:
    scheduler = Scheduler(2, quantum=3)
    fill(scheduler, "busy", 1000)
    fill(scheduler, "back", 3)
    serve(scheduler, 600)

    fill(scheduler, "back", 100)

    assert Counter(item.tenant for item in serve(scheduler, 60))["back"] in range(28, 34)


def test_what_a_tenant_left_of_its_turn_is_lost_when_the_round_is_over() -> None:
    scheduler = Scheduler(4, quantum=10)
    long = offer(scheduler, "back")
    assert take(scheduler).item == long
    fill(scheduler, "busy", 1000)
    serve(scheduler, 300)

    fill(scheduler, "back", 100)

    assert Counter(item.tenant for item in serve(scheduler, 60))["back"] in range(20, 41)


def test_a_tenant_that_left_with_a_debt_pays_it_when_it_returns() -> None:
    scheduler = Scheduler(2)
    fill(scheduler, "busy", 1000)
    offer(scheduler, "dear", cost=50)
    serve(scheduler, 10)

    offer(scheduler, "dear")
    served = [item.tenant for item in serve(scheduler, 60)]

    assert 35 <= served.index("dear") <= 50


def test_a_tenant_whose_few_buffered_items_all_run_does_not_return_as_new() -> None:
    scheduler = Scheduler(4)
    for tenant in ("greedy", "a", "b"):
        fill(scheduler, tenant, 2)
    running = take_all(scheduler)
    starts: Counter[str] = Counter()

    for _ in range(300):  # each that ends is replaced by the broker at once, as with a prefetch of two
        ended = running.pop(0)
        scheduler.done(ended.ident)
        offer(scheduler, ended.tenant)
        running.append(take(scheduler).item)
        starts[running[-1].tenant] += 1

    assert max(starts.values()) - min(starts.values()) <= 3


def test_weights_share_in_proportion_though_only_two_items_are_buffered() -> None:
    weights = {"small": 1, "large": 4}
    scheduler = Scheduler(2, weight_of=weights.__getitem__)
    for tenant in weights:
        fill(scheduler, tenant, 2)
    starts: Counter[str] = Counter()

    for _ in range(500):
        item = take(scheduler).item
        starts[item.tenant] += 1
        scheduler.done(item.ident)
        offer(scheduler, item.tenant)

    assert starts == {"small": 100, "large": 400}


def test_retries_of_a_noisy_tenant_wait_like_its_first_attempts() -> None:
    scheduler = Scheduler(2)
    fill(scheduler, "noisy", 50)
    fill(scheduler, "quiet", 50)
    starts: Counter[str] = Counter()

    for _ in range(60):
        item = take(scheduler).item
        starts[item.tenant] += 1
        scheduler.done(item.ident)
        if item.tenant == "noisy":
            offer(scheduler, "noisy")

    assert starts == {"noisy": 30, "quiet": 30}


def test_measured_cost_replaces_the_estimate() -> None:
    scheduler = Scheduler(2, quantum=10)
    spent: Counter[str] = Counter()
    for tenant in ("slow", "quick"):
        for _ in range(500):
            offer(scheduler, tenant, cost=10)

    for _ in range(400):
        item = take(scheduler).item
        cost = {"slow": 30, "quick": 5}[item.tenant]
        spent[item.tenant] += cost
        scheduler.done(item.ident, cost=cost)

    assert spent["slow"] / spent["quick"] == pytest.approx(1, abs=0.05)


def test_what_runs_long_is_charged_while_it_runs() -> None:
    scheduler = Scheduler(3, quantum=1)
    long = offer(scheduler, "long")
    fill(scheduler, "long", 100)
    fill(scheduler, "other", 100)
    assert take(scheduler).item == long

    scheduler.charge(long.ident, cost=40)

    assert {item.tenant for item in serve(scheduler, 30)} == {"other"}


# -------------------------------------------------------------------- tiers


@pytest.mark.parametrize(
    ("slots", "interactive", "standard", "bulk"),
    [(2, 2, 1, 1), (3, 3, 2, 1), (4, 4, 2, 1), (10, 10, 7, 6), (20, 20, 14, 13)],
)
def test_one_lane_alone_uses_all_the_slots_its_tier_may_have(
    slots: int, interactive: int, standard: int, bulk: int
) -> None:
    for tier, expected in zip(Tier, (interactive, standard, bulk), strict=True):
        scheduler = Scheduler(slots)
        fill(scheduler, "lone", 50, tier=tier)

        assert len(take_all(scheduler)) == expected


@pytest.mark.parametrize(
    ("tiers", "interactive", "standard", "bulk"),
    [("i", 10, 0, 0), ("s", 0, 10, 0), ("b", 0, 0, 10), ("is", 10, 7, 0), ("ib", 10, 0, 7), ("sb", 0, 10, 9)],
)
def test_where_some_tiers_alone_are_served_every_slot_is_theirs(
    tiers: str, interactive: int, standard: int, bulk: int
) -> None:
    served = [tier for tier in Tier if tier.label[0] in tiers]
    for tier, expected in zip(Tier, (interactive, standard, bulk), strict=True):
        scheduler = Scheduler(10, tiers=served)
        fill(scheduler, "lone", 50, tier=tier)

        assert len(take_all(scheduler)) == expected


def test_interactive_work_starts_at_once_while_everything_else_floods() -> None:
    scheduler = Scheduler(10)
    for tier in (Tier.STANDARD, Tier.BULK):
        for number in range(50):
            fill(scheduler, f"flood-{number}", 10, tier=tier)
    take_all(scheduler)

    urgent = offer(scheduler, "anyone", tier=Tier.INTERACTIVE)

    assert take(scheduler) == Grant(item=urgent, is_reserved=True)


def test_interactive_work_takes_reserved_slots_before_shared_ones() -> None:
    scheduler = Scheduler(10)
    fill(scheduler, "a", 5, tier=Tier.INTERACTIVE)

    assert [take(scheduler).is_reserved for _ in range(5)] == [True, True, True, False, False]


def test_shared_slots_go_eight_to_four_to_one() -> None:
    scheduler = Scheduler(4)  # two reserved, two shared
    for tier in Tier:
        fill(scheduler, "a", 2000, tier=tier)
    for _ in range(2):
        assert take(scheduler).is_reserved
    running = [take(scheduler).item]
    starts: Counter[Tier] = Counter()

    for _ in range(1300):
        scheduler.done(running.pop().ident)
        grant = take(scheduler)
        if grant.is_reserved:
            continue
        starts[grant.item.tier] += 1
        running.append(grant.item)

    assert starts[Tier.INTERACTIVE] / starts[Tier.BULK] == pytest.approx(8, rel=0.1)
    assert starts[Tier.STANDARD] / starts[Tier.BULK] == pytest.approx(4, rel=0.1)


def test_a_tier_that_was_idle_for_long_gets_no_credit_at_the_shared_slots() -> None:
    scheduler = Scheduler(3)
    fill(scheduler, "a", 500)
    serve(scheduler, 300)
    fill(scheduler, "a", 500, tier=Tier.BULK)

    tiers = Counter(item.tier for item in serve(scheduler, 50))

    assert tiers[Tier.BULK] in range(9, 12)


@pytest.mark.parametrize("slots", [-1, 0, 1])
def test_fewer_than_two_slots_are_refused(slots: int) -> None:
    with pytest.raises(ConfigError, match=f"want at least 2, got {slots}"):
        Scheduler(slots)


@pytest.mark.parametrize("percent", [-5, 0, 100, 99])
def test_a_reservation_that_leaves_no_shared_slot_is_refused(percent: int) -> None:
    with pytest.raises(ConfigError, match="reserved_percent"):
        Scheduler(5, reserved_percent=percent)


# -------------------------------------------------------------------- limits


def test_a_paused_type_at_the_head_of_a_lane_blocks_no_other_type_behind_it() -> None:
    scheduler = Scheduler(4)
    scheduler.pause(type="broken")
    stuck = offer(scheduler, "a", type="broken")
    free = offer(scheduler, "a", type="fine")

    assert take_all(scheduler) == [free]
    assert scheduler.blocked(stuck.ident)

    scheduler.resume(type="broken")
    assert take_all(scheduler) == [stuck]


def test_an_idle_slot_takes_short_work_that_waits_behind_a_long_one() -> None:
    """celery/celery#3434, #6500."""
    scheduler = Scheduler(4)
    scheduler.cap(1, type="long")
    long = [offer(scheduler, "a", type="long") for _ in range(3)]
    short = offer(scheduler, "a", type="short")

    assert take_all(scheduler) == [long[0], short]


def test_being_denied_by_a_cap_wakes_on_release() -> None:
    """bensheldon/good_job#603."""
    scheduler = Scheduler(10)
    scheduler.cap(1, type="t")
    first, second = offer(scheduler, "a"), offer(scheduler, "b")
    assert take_all(scheduler) == [first]
    assert scheduler.take() is None

    scheduler.done(first.ident)

    assert take_all(scheduler) == [second]


def test_tenants_at_a_cap_are_served_in_turn_and_nobody_overtakes() -> None:
    scheduler = Scheduler(10)
    scheduler.cap(1, type="t")
    for tenant in ("a", "b", "c"):
        fill(scheduler, tenant, 10)
    order = []

    for number in range(12):
        (item,) = take_all(scheduler)
        order.append(item.tenant)
        offer(scheduler, f"passer-by-{number}", type="u")
        (other,) = take_all(scheduler)
        scheduler.done(other.ident)
        scheduler.done(item.ident)

    assert order == ["a", "b", "c"] * 4


def test_interactive_work_is_outside_its_tenants_cap_but_not_outside_a_types() -> None:
    scheduler = Scheduler(10)
    scheduler.cap(1, tenant="a")
    fill(scheduler, "a", 5)
    fill(scheduler, "a", 5, tier=Tier.INTERACTIVE)
    assert Counter(item.tier for item in take_all(scheduler)) == {Tier.INTERACTIVE: 5, Tier.STANDARD: 1}

    scheduler = Scheduler(10)
    scheduler.cap(2, tenant="a", type="t")
    fill(scheduler, "a", 5, tier=Tier.INTERACTIVE)
    assert len(take_all(scheduler)) == 2


def test_an_interactive_item_at_a_cap_does_not_wait_for_bulk_work_that_has_no_slot() -> None:
    scheduler = Scheduler(4)  # one slot for bulk work
    scheduler.cap(1, type="t")
    first = offer(scheduler, "a")
    offer(scheduler, "b", tier=Tier.BULK)
    assert take_all(scheduler) == [first]
    long = offer(scheduler, "c", tier=Tier.BULK, type="long")
    assert take_all(scheduler) == [long]
    scheduler.done(first.ident)  # the room is kept for b, which has no slot

    urgent = offer(scheduler, "d", tier=Tier.INTERACTIVE)

    assert take_all(scheduler) == [urgent]


def test_room_kept_for_what_is_withdrawn_goes_to_the_next() -> None:
    scheduler = Scheduler(10)
    scheduler.cap(1, type="t")
    first, second, third = (offer(scheduler, tenant) for tenant in ("a", "b", "c"))
    assert take_all(scheduler) == [first]
    scheduler.done(first.ident)

    scheduler.withdraw(second.ident)

    assert take_all(scheduler) == [third]


def test_room_kept_for_what_was_paused_meanwhile_goes_to_another_tier_in_the_same_call() -> None:
    scheduler = Scheduler(4)
    scheduler.cap(1, type="t")
    first = offer(scheduler, "a", cost=100)
    offer(scheduler, "paused")
    bulk = offer(scheduler, "b", tier=Tier.BULK)
    assert take_all(scheduler) == [first]
    scheduler.done(first.ident)
    scheduler.pause(tenant="paused")

    assert scheduler.take() == Grant(item=bulk, is_reserved=False)


def test_a_tenant_under_two_full_caps_is_not_starved() -> None:
    scheduler = Scheduler(20)
    scheduler.cap(1, tenant="a")
    scheduler.cap(1, type="scarce")
    fill(scheduler, "a", 200, type="common")
    wanted = offer(scheduler, "a", type="scarce")
    for number in range(5):
        fill(scheduler, f"other-{number}", 100, type="scarce")
    running = take_all(scheduler)

    ends = 0
    while wanted not in running:
        scheduler.done(running.pop(0).ident)
        running += take_all(scheduler)
        ends += 1
        assert ends <= 20


def test_a_cap_counts_what_already_runs_and_can_be_raised_and_lifted() -> None:
    scheduler = Scheduler(20)
    fill(scheduler, "a", 30)
    running = [take(scheduler).item for _ in range(3)]

    scheduler.cap(2, tenant="a")
    assert scheduler.take() is None
    scheduler.done(running.pop().ident)
    assert scheduler.take() is None

    scheduler.cap(4, tenant="a")
    assert len(take_all(scheduler)) == 2
    scheduler.cap(None, tenant="a")
    assert len(take_all(scheduler)) == 10


def test_a_cap_of_nothing_is_refused_because_a_pause_says_it_better() -> None:
    with pytest.raises(ConfigError, match="want 1 or more"):
        Scheduler(2).cap(0, tenant="a")


def test_a_paused_tenant_and_a_paused_lane_start_nothing() -> None:
    scheduler = Scheduler(10)
    for tier in Tier:
        fill(scheduler, "a", 2, tier=tier)
    scheduler.pause(tenant="a")
    assert scheduler.take() is None

    scheduler.resume(tenant="a")
    scheduler.pause(tenant="a", tier=Tier.BULK)
    scheduler.pause(tenant="a", tier=Tier.BULK)
    assert {item.tier for item in take_all(scheduler)} == {Tier.INTERACTIVE, Tier.STANDARD}

    scheduler.resume(tenant="a", tier=Tier.BULK)
    assert len(take_all(scheduler)) == 2


def test_a_paused_tier_stops_nothing_of_other_tiers_and_a_pause_of_all_stops_everything() -> None:
    scheduler = Scheduler(10)
    for tier in Tier:
        for tenant in "ab":
            offer(scheduler, tenant, tier=tier)
    scheduler.pause()
    assert scheduler.take() is None

    scheduler.pause(tier=Tier.STANDARD)
    scheduler.resume()
    assert [item.tier for item in take_all(scheduler)] == [Tier.INTERACTIVE, Tier.INTERACTIVE, Tier.BULK, Tier.BULK]

    scheduler.resume(tier=Tier.STANDARD)
    assert len(take_all(scheduler)) == 2


# -------------------------------------------------------------------- items and lanes


def test_what_is_held_uses_no_slot_and_comes_back_ahead_of_its_line() -> None:
    scheduler = Scheduler(2)
    early, later = offer(scheduler, "a"), offer(scheduler, "a")
    assert take_all(scheduler) == [early]

    scheduler.hold(early.ident, cost=0)
    assert take_all(scheduler) == [later]
    third = offer(scheduler, "a")
    scheduler.release(early.ident)
    scheduler.done(later.ident)

    assert serve(scheduler, 2) == [early, third]


def test_what_is_held_at_every_start_keeps_nobody_from_starting() -> None:
    scheduler = Scheduler(2, quantum=10)
    fill(scheduler, "b", 15)
    serve(scheduler, 10)
    early = offer(scheduler, "a")
    assert take(scheduler).item == early

    for _ in range(15):
        scheduler.hold(early.ident, cost=0)
        scheduler.release(early.ident)
        if take(scheduler).item != early:
            return
    pytest.fail("b never started")


def test_what_is_withdrawn_never_starts_and_is_forgotten() -> None:
    scheduler = Scheduler(4)
    gone, stays = offer(scheduler, "a"), offer(scheduler, "a")

    scheduler.withdraw(gone.ident)

    assert take_all(scheduler) == [stays]
    scheduler.offer(gone)
    assert take_all(scheduler) == [gone]


def test_an_item_in_another_state_is_refused_by_name() -> None:
    scheduler = Scheduler(2)
    item = offer(scheduler, "a")

    with pytest.raises(ValueError, match="want an item not offered yet"):
        scheduler.offer(item)
    with pytest.raises(ValueError, match="want one that is RUNNING, got WAITING"):
        scheduler.done(item.ident)
    take(scheduler)
    with pytest.raises(ValueError, match="want one that is WAITING or HELD, got RUNNING"):
        scheduler.withdraw(item.ident)
    with pytest.raises(ValueError, match="want one that is HELD, got none"):
        scheduler.release("nobody")
    with pytest.raises(ValueError, match="want a cost of 1 or more, got 0"):
        offer(scheduler, "a", cost=0)


def test_a_lane_is_hungry_while_a_slot_idles_and_all_it_has_runs_or_is_blocked() -> None:
    scheduler = Scheduler(10)
    running = [offer(scheduler, "a") for _ in range(2)]
    offer(scheduler, "b")
    take_all(scheduler)
    assert scheduler.hungry(Tier.STANDARD, most=10) == ["standard.b", "standard.a"]
    assert scheduler.hungry(Tier.STANDARD, most=10, unsettled_min=2) == ["standard.a"]
    assert scheduler.hungry(Tier.STANDARD, most=1) == ["standard.b"]

    scheduler.pause(type="broken")
    offer(scheduler, "a", type="broken")
    assert scheduler.take() is None
    assert "standard.a" in scheduler.hungry(Tier.STANDARD, most=10)

    fill(scheduler, "a", 20)
    take_all(scheduler)
    assert scheduler.waiting(Tier.STANDARD) > 0
    scheduler.done(running[0].ident)
    assert scheduler.hungry(Tier.STANDARD, most=10) == ["standard.b"]


@pytest.mark.parametrize("limit", ["pause tenant", "pause lane", "pause all", "cap tenant"])
def test_a_lane_that_could_start_nothing_anyway_is_not_hungry(limit: str) -> None:
    scheduler = Scheduler(10)
    offer(scheduler, "a")
    take_all(scheduler)
    limits: dict[str, Callable[[], None]] = {
        "pause tenant": lambda: scheduler.pause(tenant="a"),
        "pause lane": lambda: scheduler.pause(tenant="a", tier=Tier.STANDARD),
        "pause all": scheduler.pause,
        "cap tenant": lambda: scheduler.cap(1, tenant="a"),
    }
    limits[limit]()

    assert scheduler.hungry(Tier.STANDARD, most=10) == []


def test_tenants_that_went_idle_are_forgotten() -> None:
    scheduler = Scheduler(10)
    for number in range(5000):
        offer(scheduler, f"tenant-{number}")
    assert scheduler.tenants(Tier.STANDARD) == 5000

    serve(scheduler, 5000)
    for _ in range(100):
        assert scheduler.take() is None

    assert scheduler.tenants(Tier.STANDARD) == 0
