"""What the scheduler promises whatever happens, on programs of offers, starts and ends that Hypothesis invents."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count, permutations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from consumer.decide.fairness import Item, Scheduler
from outbox.event import Tier

TENANTS = ["a", "b", "c", "d", "e"]
STEADY = TENANTS[:2]


@dataclass(frozen=True)
class Step:
    """Some tenants' items (tenant, cost) come, some starts are tried, some of what runs ends."""

    offers: list[tuple[str, int]]
    starts: int
    ends: int
    which: int


@dataclass
class Play:
    """A scheduler whose tenants' backlogs are kept as a program says, and what each of them was charged over time."""

    quantum: int
    weights: dict[str, int]
    slots: int = 2
    charged: Counter[str] = field(default_factory=Counter)
    backlog: Counter[str] = field(default_factory=Counter)
    running: list[Item] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=count)

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(self.slots, quantum=self.quantum, weight_of=self.weights.__getitem__)

    def offer(self, tenant: str, cost: int) -> None:
        self.backlog[tenant] += 1
        self.scheduler.offer(
            Item(ident=next(self.numbers), tier=Tier.STANDARD, tenant=tenant, type="t", lane=tenant, cost=cost)
        )

    def take(self) -> Item | None:
        grant = self.scheduler.take()
        if grant is None:
            return None
        self.backlog[grant.item.tenant] -= 1
        self.charged[grant.item.tenant] += grant.item.cost
        self.running.append(grant.item)
        return grant.item

    def offer_all(self, step: Step, *, but: list[str]) -> None:
        for tenant, cost in step.offers:
            if tenant not in but:
                self.offer(tenant, cost)

    def end_some(self, step: Step) -> None:
        for _ in range(min(step.ends, len(self.running))):
            self.end(step.which)

    def end(self, which: int, cost: int | None = None) -> None:
        item = self.running.pop(which % len(self.running))
        if cost is not None:
            self.charged[item.tenant] += cost - item.cost
        self.scheduler.done(item.ident, cost=cost)


COST_MAX = 9
STEPS = st.lists(
    st.builds(
        Step,
        offers=st.lists(st.tuples(st.sampled_from(TENANTS), st.integers(1, COST_MAX)), max_size=4),
        starts=st.integers(0, 12),
        ends=st.integers(0, 12),
        which=st.integers(0, 100),
    ),
    min_size=8,
    max_size=50,
)


@settings(max_examples=100, deadline=None)
@given(
    steps=STEPS,
    costs=st.lists(st.integers(1, COST_MAX), min_size=1, max_size=20),
    quantum=st.integers(1, 12),
    weights=st.fixed_dictionaries({tenant: st.integers(1, 4) for tenant in TENANTS}),
    slots=st.integers(2, 12),
    buffered=st.integers(1, 8),
)
def test_tenants_that_always_wait_get_the_same_cost_per_weight_and_who_comes_and_goes_never_more(
    steps: list[Step], costs: list[int], quantum: int, weights: dict[str, int], slots: int, buffered: int
) -> None:
    """The bound of deficit round robin, over every interval, for both sides of a pair that is always backlogged; and
    one-sided, with the one quantum that being new is worth, for a tenant that comes and goes: idleness earns no other
    credit and forgives no debt. How many items a tenant has in the buffer makes no difference.
    """
    play = Play(quantum=quantum, weights=weights, slots=slots)
    cost = {tenant: iter(costs * 1000) for tenant in STEADY}
    pairs = [(one, steady) for one, steady in permutations(TENANTS, 2) if steady in STEADY]
    lowest = dict.fromkeys(pairs, 0.0)

    def fill() -> None:
        for tenant in STEADY:
            while play.backlog[tenant] < buffered:
                play.offer(tenant, next(cost[tenant]))

    def check() -> None:
        for one, steady in pairs:
            ahead = play.charged[one] / weights[one] - play.charged[steady] / weights[steady]
            lowest[one, steady] = min(ahead, lowest[one, steady])
            quanta = quantum if one in STEADY else 2 * quantum
            assert ahead - lowest[one, steady] <= quanta + COST_MAX / weights[one] + COST_MAX / weights[steady]

    fill()
    for step in steps:
        play.offer_all(step, but=STEADY)
        for _ in range(step.starts):
            play.take()
            fill()
            check()
        play.end_some(step)


@settings(max_examples=100, deadline=None)
@example(measured=[(1, 8), (9, 1)], estimate=1, quantum=4)
@example(
    measured=[(9, 2), (6, 7), (8, 3), (3, 6), (9, 9), (9, 9), (1, 2), (3, 9)], estimate=1, quantum=2
)  # rounds were skipped while a new tenant had its first turn to come
@given(
    measured=st.lists(st.tuples(st.integers(1, COST_MAX), st.integers(1, COST_MAX)), min_size=1, max_size=50),
    estimate=st.integers(1, COST_MAX),
    quantum=st.integers(1, 12),
)
def test_costs_measured_afterwards_are_shared_like_costs_known_beforehand(
    measured: list[tuple[int, int]], estimate: int, quantum: int
) -> None:
    play = Play(quantum=quantum, weights=dict.fromkeys(TENANTS, 1))
    costs = {tenant: iter([pair[side] for pair in measured] * 200) for side, tenant in enumerate(STEADY)}
    for tenant in STEADY * 100:
        play.offer(tenant, estimate)
    aheads = [0]

    for _ in range(200):
        item = play.take()
        assert item is not None
        play.offer(item.tenant, estimate)
        play.end(0, cost=next(costs[item.tenant]))
        aheads.append(play.charged["a"] - play.charged["b"])

    assert max(aheads) - min(aheads) <= quantum + 2 * COST_MAX + 2 * (estimate - 1)


@dataclass
class Visits:
    """By tenant: who has started since it last did, or since it began to wait."""

    play: Play
    started: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))

    def offer(self, tenant: str) -> None:
        if not self.play.backlog[tenant]:
            self.started[tenant].clear()
        self.play.offer(tenant, 1)

    def take(self) -> None:
        if (item := self.play.take()) is None:
            return
        self.started[item.tenant].clear()
        for other in set(TENANTS) - {item.tenant}:
            if self.play.backlog[other]:
                assert item.tenant not in self.started[other]
                self.started[other].add(item.tenant)


@settings(max_examples=100, deadline=None)
@given(steps=STEPS, slots=st.integers(2, 12))
def test_every_waiting_tenant_is_visited_each_round_while_the_list_changes(steps: list[Step], slots: int) -> None:
    """NetSys/bess#772: items of cost one, quantum one: who starts twice has let everyone else who waited start once."""
    play = Play(quantum=1, weights=dict.fromkeys(TENANTS, 1), slots=slots)
    visits = Visits(play)

    for step in steps:
        for tenant, _cost in step.offers:
            visits.offer(tenant)
        for _ in range(step.starts):
            visits.take()
        play.end_some(step)


@settings(max_examples=20, deadline=None)
@given(old=st.integers(1, 100), quantum=st.integers(1, 3))
def test_an_endless_stream_of_new_tenants_starves_no_old_one(old: int, quantum: int) -> None:
    numbers = count()
    scheduler = Scheduler(2, quantum=quantum)
    starts = Counter({f"old-{number}": 0 for number in range(old)})

    def offer(tenant: str) -> None:
        scheduler.offer(Item(ident=next(numbers), tier=Tier.BULK, tenant=tenant, type="t", lane=tenant))

    for tenant in list(starts) * 20:
        offer(tenant)
    for moment in range(1200):
        offer(f"new-{moment}")
        grant = scheduler.take()
        assert grant is not None
        scheduler.done(grant.item.ident)
        starts[grant.item.tenant] += 1

    assert min(starts[f"old-{number}"] for number in range(old)) >= 3
