"""Fairness by measured time: tenants that always wait have slots for equally long, whatever their handlers take."""

from collections import Counter
from itertools import count

from hypothesis import given, settings
from hypothesis import strategies as st

from consumer.decide.costs import QUANTUM, Costs, cost_of
from consumer.decide.fairness import Item, Scheduler
from outbox.event import Tier

TENANTS = ("a", "b")
TYPE = "t"
SLOTS = 2  # one of them standard's: items run one after the other, so at any time at most one is uncorrected
MS = st.sampled_from([1, 3, 10, 40, 200])


@settings(max_examples=100, deadline=None)
@given(took_ms=st.lists(st.tuples(MS, MS), min_size=1, max_size=30), looks=st.integers(1, 50))
def test_tenants_that_always_wait_have_slots_for_equally_long_over_any_interval(
    took_ms: list[tuple[int, int]], looks: int
) -> None:
    """The scheduler's bound, quantum and two of the largest, and twice the largest correction for estimates."""
    scheduler, costs, idents = Scheduler(SLOTS, quantum=QUANTUM), Costs([TYPE]), count()
    spent: Counter[str] = Counter()
    turns = Counter(dict.fromkeys(TENANTS, 0))
    largest, aheads = QUANTUM, [0]

    def offer(tenant: str) -> None:
        cost = costs.expected(TYPE)
        scheduler.offer(Item(ident=next(idents), tier=Tier.STANDARD, tenant=tenant, type=TYPE, lane=tenant, cost=cost))

    for tenant in TENANTS:
        offer(tenant)
        offer(tenant)
    for _ in range(300):
        grant = scheduler.take()
        assert grant is not None
        tenant = grant.item.tenant
        took_s = took_ms[turns[tenant] % len(took_ms)][TENANTS.index(tenant)] / 1000
        turns[tenant] += 1
        for look in range(1, looks):  # what runs is charged whenever it is looked at
            if (cost := cost_of(took_s * look / looks)) > grant.item.cost:
                scheduler.charge(grant.item.ident, cost=cost)
        cost = costs.learn(TYPE, took_s)
        scheduler.done(grant.item.ident, cost=cost)
        offer(tenant)
        spent[tenant] += cost
        largest = max(largest, cost, grant.item.cost)
        aheads.append(spent["a"] - spent["b"])

    assert max(aheads) - min(aheads) <= QUANTUM + 2 * largest + 2 * largest
