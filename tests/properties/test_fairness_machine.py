"""The scheduler against a model that is too slow to be used and too simple to be wrong."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from consumer.decide.fairness import Bound, Item, Kind, Scheduler
from outbox.event import Tier

TENANTS = st.sampled_from(["a", "b", "c"])
TYPES = st.sampled_from(["x", "y", "z"])
TIERS = st.sampled_from(Tier)


class SchedulerMachine(RuleBasedStateMachine):
    """Offers, starts and ends in any order, with pauses, and with caps on one kind of scope per run."""

    @initialize(
        slots=st.integers(2, 9),
        percent=st.sampled_from([30, 50]),
        kind=st.sampled_from(["tenant", "type", "both"]),
        bound=st.none() | st.integers(1, 3),
    )
    def begin(self, slots: int, percent: int, kind: str, bound: int | None) -> None:
        self.slots = slots
        self.reserved = max(1, -(-slots * percent // 100))
        self.shared = slots - self.reserved
        self.kind = kind
        bounds = [] if bound is None else [bound_of(kind, bound)]
        self.scheduler = Scheduler(slots, reserved_percent=percent, bounds=bounds)
        self.items: dict[int, Item] = {}
        self.waiting: list[int] = []
        self.running: list[int] = []
        self.held: list[int] = []
        self.paused: set[tuple[Tier | None, str | None, str | None]] = set()
        scopes: dict[str, list[tuple[str | None, str | None]]] = {
            "tenant": [(name, None) for name in "abc"],
            "type": [(None, "x")],
            "both": [(name, "x") for name in "abc"],
        }
        self.bounded: dict[tuple[str | None, str | None], int] = {}
        if bound is not None:
            self.bounded = {scope: bound for scope in scopes[kind]}
        self.caps = dict(self.bounded)
        self.was_over: set[tuple[str | None, str | None]] = set()

    # ---------------------------------------------------------------- the model

    def runs(self, *tiers: Tier) -> int:
        return sum(self.items[ident].tier in tiers for ident in self.running)

    def has_slot(self, tier: Tier) -> bool:
        if len(self.running) >= self.slots:
            return False
        if tier is Tier.INTERACTIVE:
            return True
        if self.runs(Tier.STANDARD, Tier.BULK) >= self.shared:
            return False
        return tier is Tier.STANDARD or self.runs(Tier.BULK) < max(1, self.shared - 1)

    def used(self, scope: tuple[str | None, str | None]) -> int:
        return sum(binds(scope, self.items[ident]) for ident in self.running)

    def may_start(self, ident: int) -> bool:
        item = self.items[ident]
        if not self.has_slot(item.tier):
            return False
        for tier, tenant, type_ in self.paused:
            if tier in (None, item.tier) and tenant in (None, item.tenant) and type_ in (None, item.type):
                return False
        return all(self.used(scope) < most for scope, most in self.caps.items() if binds(scope, item))

    # ---------------------------------------------------------------- what happens

    @rule(tier=TIERS, tenant=TENANTS, type_=TYPES, cost=st.integers(1, 5), times=st.integers(1, 4))
    def offer(self, tier: Tier, tenant: str, type_: str, cost: int, times: int) -> None:
        for _ in range(times):
            item = Item(
                ident=len(self.items), tier=tier, tenant=tenant, type=type_, lane=f"{tier.label}.{tenant}", cost=cost
            )
            self.items[len(self.items)] = item
            self.waiting.append(len(self.items) - 1)
            self.scheduler.offer(item)

    @rule()
    def take(self) -> None:
        could = [ident for ident in self.waiting if self.may_start(ident)]
        grant = self.scheduler.take()
        if grant is None:
            assert not could, f"a slot idles while {self.items[could[0]]} could run"
            return
        ident = grant.item.ident
        assert ident in could
        heads = {_line(self.items[i]): i for i in reversed(could) if self.items[i].lane == grant.item.lane}
        # At a cap the order is that of waiting there, which what was held meanwhile has missed.
        assert self.caps or ident == min(heads.values()), (
            "an older item of the same lane that could run was passed over"
        )
        assert grant.is_reserved == (
            grant.item.tier is Tier.INTERACTIVE and self.runs(Tier.INTERACTIVE) < self.reserved
        )
        if self.runs(Tier.INTERACTIVE) < self.reserved and any(self.items[i].tier is Tier.INTERACTIVE for i in could):
            assert grant.item.tier is Tier.INTERACTIVE
        self.waiting.remove(ident)
        self.running.append(ident)

    @rule()
    def take_all(self) -> None:
        before = -1
        while before != len(self.running):
            before = len(self.running)
            self.take()
        for tier in Tier:
            lanes = self.scheduler.hungry(tier, most=100)
            assert self.has_slot(tier) or not lanes
            for lane in lanes:
                assert not [i for i in self.waiting if self.items[i].lane == lane and self.may_start(i)]
                assert [i for i in self.waiting + self.running + self.held if self.items[i].lane == lane]

    @precondition(lambda self: self.running)
    @rule(data=st.data(), cost=st.none() | st.integers(0, 9))
    def done(self, data: st.DataObject, cost: int | None) -> None:
        ident = data.draw(st.sampled_from(self.running))
        self.running.remove(ident)
        self.scheduler.done(ident, cost=cost)

    @precondition(lambda self: self.running + self.waiting)
    @rule(data=st.data())
    def hold(self, data: st.DataObject) -> None:
        ident = data.draw(st.sampled_from(self.running + self.waiting))
        (self.running if ident in self.running else self.waiting).remove(ident)
        self.held.append(ident)
        self.scheduler.hold(ident, cost=0 if ident in self.running else None)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        ident = data.draw(st.sampled_from(self.held))
        self.held.remove(ident)
        alike = [_line(self.items[other]) == _line(self.items[ident]) for other in self.waiting]
        self.waiting.insert(alike.index(True) if True in alike else len(alike), ident)
        self.scheduler.release(ident)

    @precondition(lambda self: self.waiting + self.held)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        ident = data.draw(st.sampled_from(self.waiting + self.held))
        (self.held if ident in self.held else self.waiting).remove(ident)
        self.scheduler.withdraw(ident)

    @rule(tier=st.none() | TIERS, tenant=st.none() | TENANTS, type_=st.none() | TYPES)
    def pause(self, tier: Tier | None, tenant: str | None, type_: str | None) -> None:
        self.paused.add((tier, tenant, type_))
        self.scheduler.pause(tier=tier, tenant=tenant, type=type_)

    @precondition(lambda self: self.paused)
    @rule(data=st.data())
    def resume(self, data: st.DataObject) -> None:
        scope = data.draw(st.sampled_from(sorted(self.paused, key=str)))
        self.paused.remove(scope)
        tier, tenant, type_ = scope
        self.scheduler.resume(tier=tier, tenant=tenant, type=type_)

    @rule(tenant=TENANTS, type_=TYPES, most=st.none() | st.integers(1, 3))
    def cap(self, tenant: str, type_: str, most: int | None) -> None:
        scope = {"tenant": (tenant, None), "type": (None, type_), "both": (tenant, type_)}[self.kind]
        if most is None:
            self.caps.pop(scope, None)
            self.caps |= {scope: self.bounded[scope]} if scope in self.bounded else {}
        else:
            self.caps[scope] = most
        self.scheduler.cap(most, tenant=scope[0], type=scope[1])

    # ---------------------------------------------------------------- what always holds

    @invariant()
    def room_is_what_the_model_says(self) -> None:
        for tier in Tier:
            assert (self.scheduler.room(tier) > 0) == self.has_slot(tier)

    def teardown(self) -> None:
        """Everything ends, limits are lifted, and nothing stays behind."""
        if not hasattr(self, "scheduler"):
            return
        self.lift()
        for ident in self.held:
            self.scheduler.withdraw(ident)
        self.drain()
        for tier in Tier:
            self.pay_debts(tier)
            assert self.scheduler.tenants(tier) == 0
            assert self.scheduler.waiting(tier) == 0
            assert not self.scheduler.hungry(tier, most=100)
        assert not self.scheduler._limits._rooms

    def lift(self) -> None:
        for tier, tenant, type_ in self.paused:
            self.scheduler.resume(tier=tier, tenant=tenant, type=type_)
        for tenant, type_ in self.caps:
            self.scheduler.cap(None, tenant=tenant, type=type_)
        self.paused.clear()
        self.caps = dict(self.bounded)

    def drain(self) -> None:
        while self.waiting or self.running:
            self.take_all()
            assert self.running, "something waits though nothing holds it back"
            for ident in self.running:
                self.scheduler.done(ident)
            self.running.clear()

    def pay_debts(self, tier: Tier) -> None:
        """Let rounds pass: while somebody else pays a larger debt the tenants' own are paid, and they are forgotten."""
        for ident, cost in (("first", 100_000), ("second", 1)):
            self.scheduler.offer(Item(ident=ident, tier=tier, tenant="else", type="x", lane="else", cost=cost))
            assert self.scheduler.take() is not None
            self.scheduler.done(ident)
        for _ in range(3):
            assert self.scheduler.take() is None


def bound_of(kind: str, most: int) -> Bound:
    return Bound(is_per_tenant=kind != "type", type=None if kind == "tenant" else "x", kind=Kind.CAP, most=most)


def binds(scope: tuple[str | None, str | None], item: Item) -> bool:
    tenant, type_ = scope
    if type_ is None and item.tier is Tier.INTERACTIVE:
        return False
    return tenant in (None, item.tenant) and type_ in (None, item.type)


def _line(item: Item) -> tuple[str, str]:
    return item.lane, item.type


SchedulerMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestSchedulerMachine = SchedulerMachine.TestCase
