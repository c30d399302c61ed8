"""The scheduler: what is offered waits, and for each free slot it names the item that starts."""

from collections.abc import Callable, Collection, Hashable, Iterable
from itertools import count

from consumer.decide.fairness.lanes import Lanes
from consumer.decide.fairness.limits import Limits
from consumer.decide.fairness.rooms import Bound
from consumer.decide.fairness.rounds import Rounds
from consumer.decide.fairness.slots import Slots
from consumer.decide.fairness.values import Entry, FleetNeed, Flow, Grant, Item, Line, Scope, State
from outbox.errors import ConfigError
from outbox.event import Tier


def _one(_tenant: str) -> int:
    return 1


class Scheduler:
    """Decides who is next; the caller runs it. Each decision takes amortised constant time, however many lanes wait.

    An item is unsettled from ``offer`` to ``done`` or ``withdraw``. In between it waits, runs (from ``take``) or is
    held (from ``hold`` to ``release``). Naming an item that is unknown or in another state is a ValueError.

    Args:
        slots: how many items may run at once, at least two.
        reserved_percent: the part of the slots that only interactive work uses, where other tiers are served too.
        tiers: those that are served; items of others never start.
        quantum: the cost a tenant of weight one may take per round, in the unit of cost.
        weight_of: a tenant's share in proportion to others of its tier, a positive integer.
        bounds: caps and rates, no two of one kind on the same.
    """

    def __init__(
        self,
        slots: int,
        *,
        reserved_percent: int = 30,
        tiers: Collection[Tier] = tuple(Tier),
        quantum: int = 1,
        weight_of: Callable[[str], int] = _one,
        bounds: Iterable[Bound] = (),
    ) -> None:
        if quantum < 1:
            raise ConfigError(f"quantum: want 1 or more, got {quantum}")
        self._slots = Slots(slots, reserved_percent=reserved_percent, tiers=tiers)
        self._rounds = [Rounds(tier, quantum=quantum, weight_of=weight_of) for tier in Tier]  # indexed by tier
        self._limits = Limits(bounds)
        self._lanes = Lanes()
        self._entries: dict[Hashable, Entry] = {}
        self._running: dict[Hashable, Entry] = {}
        self._arrivals = count()
        self._has_woken = False

    @property
    def tiers(self) -> tuple[Tier, ...]:
        """Those that are served."""
        return tuple(sorted(self._slots.tiers))

    # ---------------------------------------------------------------- items

    def offer(self, item: Item) -> None:
        """*item* waits from now on, behind what waits of its lane and type."""
        if item.ident in self._entries:
            raise ValueError(f"{item.ident!r}: want an item not offered yet")
        if item.cost < 1:
            raise ValueError(f"{item.ident!r}: want a cost of 1 or more, got {item.cost}")
        flow = self._rounds[item.tier].flow(item.tenant)
        line = flow.lines.get((item.lane, item.type))
        if line is None:
            line = flow.lines[item.lane, item.type] = Line(flow=flow, lane=item.lane, type=item.type)
            self._limits.bind(line)
        entry = Entry(item=item, line=line, arrival=next(self._arrivals))
        self._entries[item.ident] = entry
        flow.unsettled += 1
        self._lanes.came(item.lane, tier=item.tier, tenant=item.tenant)
        self._wait(entry)

    def take(self, now: float = 0.0) -> Grant | None:
        """Start the item whose turn it is, or return None: no slot is free for anything that may run.

        *now*, in seconds since any moment, is what rates go by.
        """
        self._limits.tick(now)
        self._wake()
        if not self._slots.has_free():
            return None
        # A line that is refused may give back room in a cap, and so wake a tier that was already asked.
        self._has_woken = True
        while self._has_woken:
            self._has_woken = False
            for tier in self._asked():
                if (line := self._next(tier)) is not None:
                    return self._start(line)
        return None

    def charge(self, ident: Hashable, *, cost: int) -> None:
        """What runs or has run as *ident* has cost *cost* so far: its tenant and tier pay the difference.

        A start is never free: what proves to have cost nothing is counted as one, or a turn might have no end.
        """
        self._charge(self._entry(ident, State.RUNNING, State.HELD), cost)

    def done(self, ident: Hashable, *, cost: int | None = None) -> None:
        """What ran is settled, its slot free. *cost* is what it took, where that was measured."""
        self._stop(ident, cost)
        self._settle(ident)

    def hold(self, ident: Hashable, *, cost: int | None = None) -> None:
        """What waited or ran stays unsettled, without a slot. *cost* as in ``done``; 0 where it never got to work."""
        entry = self._entry(ident, State.WAITING, State.RUNNING)
        if entry.state is State.RUNNING:
            self._stop(ident, cost)
        else:
            self._pull(entry)
        entry.state = State.HELD
        self._wake()

    def release(self, ident: Hashable) -> None:
        """What was held waits again, ahead of what waits of its lane and type."""
        entry = self._entry(ident, State.HELD)
        self._wait(entry)
        entry.line.queue.move_to_end(ident, last=False)

    def withdraw(self, ident: Hashable) -> None:
        """What waits or is held is settled, or gone from this process's hands."""
        entry = self._entry(ident, State.WAITING, State.HELD)
        if entry.state is State.WAITING:
            self._pull(entry)
        self._settle(ident)

    # ---------------------------------------------------------------- limits

    def pause(self, *, tier: Tier | None = None, tenant: str | None = None, type: str | None = None) -> None:
        """Let nothing start that fits all of what is given; with nothing given, nothing at all. What runs goes on."""
        self._limits.pause((tier, tenant, type))

    def resume(self, *, tier: Tier | None = None, tenant: str | None = None, type: str | None = None) -> None:
        """End exactly that pause, if there is one."""
        for line in self._limits.resume((tier, tenant, type)):
            self._ready(line)

    def has_pauses(self) -> bool:
        """Whether anything is paused."""
        return self._limits.has_pauses()

    def is_paused(self, *, tier: Tier, tenant: str, type: str | None = None) -> bool:
        """Whether a pause keeps this from starting; with no type, whatever its type."""
        return self._limits.is_paused(tier, tenant, type)

    def cap(self, most: int | None, *, tenant: str | None = None, type: str | None = None) -> None:
        """Let at most *most* of a tenant, a type, or a type within a tenant run at once; None lifts the cap.

        What runs already counts and goes on. Interactive work is outside a tenant's cap.
        """
        if most is not None and most < 1:
            raise ConfigError(f"cap: want 1 or more, or none (to stop something, pause it), got {most}")
        lines = [line for rounds in self._rounds for flow in rounds.flows.values() for line in flow.lines.values()]
        running = [entry.line for entry in self._running.values()]
        self._limits.cap(_scope(tenant, type), most, lines=lines, running=running)
        self._wake()

    def permit(self, scope: Scope, held: int) -> None:
        """Let *held* items under the fleet's cap of *scope* run here at once: none before this was called."""
        self._limits.permit(scope, held)
        self._wake()

    # ---------------------------------------------------------------- questions

    def room(self, tier: Tier) -> int:
        """Return how many more items of *tier* could start now, if they were there."""
        return self._slots.room(tier)

    def waiting(self, tier: Tier) -> int:
        """Return how many items of *tier* wait for nothing but a slot, as far as was found out."""
        return self._lanes.waiting(tier)

    def unsettled(self, lane: str) -> int:
        """Return how many items of *lane* are unsettled."""
        return self._lanes.unsettled(lane)

    def tenants(self, tier: Tier) -> int:
        """Return how many tenants of *tier* are active, were a round ago, or owe something."""
        return len(self._rounds[tier].flows)

    def hungry(self, tier: Tier, *, most: int, unsettled_min: int = 1) -> list[str]:
        """Return up to *most* lanes that could use a free slot and have nothing more in hand that could start.

        To be asked after ``take`` returned None. *unsettled_min* leaves out lanes with fewer deliveries in hand:
        a lane below its prefetch has given all it has. A lane is not hungry while it, or its tenant, may start
        nothing anyway.
        """
        lanes: list[str] = []
        if self.room(tier) > 0:
            for lane in self._lanes.hungry(tier):
                if len(lanes) == most:
                    break
                if lane.unsettled >= unsettled_min and self._limits.lets_lane(tier, lane.tenant):
                    lanes.append(lane.name)
        return lanes

    def blocked(self, ident: Hashable) -> bool:
        """Whether what waits was refused by a pause or a cap, and now waits for that."""
        return self._entry(ident, State.WAITING).line.parked_in is not None

    def fleet_needs(self) -> list[FleetNeed]:
        """Return what is held and wanted here of each fleet's cap that anything unsettled comes under."""
        self._limits.wants_permits = False
        return self._limits.fleet_needs()

    def wants_permits(self) -> bool:
        """Whether something was refused by a fleet's cap since ``fleet_needs`` was asked."""
        return self._limits.wants_permits

    def wakes_at(self) -> float | None:
        """When, by the clock of ``take``, something that a rate refused may start."""
        return self._limits.wakes_at()

    # ---------------------------------------------------------------- inside

    def _entry(self, ident: Hashable, *states: State) -> Entry:
        entry = self._entries.get(ident)
        if entry is None or entry.state not in states:
            found = "none" if entry is None else entry.state.name
            raise ValueError(f"{ident!r}: want one that is {' or '.join(s.name for s in states)}, got {found}")
        return entry

    def _asked(self) -> list[Tier]:
        """Return the tiers to ask for an item, in order. A free reserved slot makes interactive work the first."""
        used = [tier for tier in self._slots.tiers if self._rounds[tier].flows]
        if len(used) <= 1:  # most often: then there is no order
            return [tier for tier in used if self._slots.room(tier) > 0]
        turns = self._slots.turns()
        if self._slots.has_reserved():
            turns.remove(Tier.INTERACTIVE)
            turns.insert(0, Tier.INTERACTIVE)
        return turns

    def _next(self, tier: Tier) -> Line | None:
        rounds = self._rounds[tier]
        if not rounds.flows:  # most often nobody uses one tier or another
            return None
        while (flow := rounds.current()) is not None:
            if (line := self._admitted(flow)) is not None:
                return line
            rounds.leave(flow)
        return None

    def _admitted(self, flow: Flow) -> Line | None:
        """Return the line of *flow* that has waited longest among those no limit refuses; park the refused."""
        while flow.ready:
            line = min(flow.ready, key=Line.arrival) if len(flow.ready) > 1 else next(iter(flow.ready))
            if self._limits.admit(line):
                return line
            flow.ready.remove(line)
            self._lanes.ready(line.lane, -len(line.queue))
            self._wake()
        return None

    def _start(self, line: Line) -> Grant:
        self._limits.start(line)
        _ident, entry = line.queue.popitem(last=False)
        self._emptied(line)
        item = entry.item
        entry.state = State.RUNNING
        entry.charged = item.cost
        entry.is_shared = self._slots.start(item.tier, item.cost)
        self._running[item.ident] = entry
        self._lanes.ready(item.lane, -1)
        self._rounds[item.tier].serve(line.flow, item.cost)
        return Grant(item=item, is_reserved=not entry.is_shared)

    def _stop(self, ident: Hashable, cost: int | None) -> None:
        entry = self._entry(ident, State.RUNNING)
        if cost is not None:
            self._charge(entry, cost)
        del self._running[ident]
        self._slots.finish(entry.item.tier)
        self._limits.finish(entry.line, has_worked=cost != 0)

    def _charge(self, entry: Entry, cost: int) -> None:
        cost = max(1, cost)
        extra = cost - entry.charged
        entry.charged = cost
        if extra:
            self._rounds[entry.item.tier].charge(entry.line.flow, extra)
            if entry.is_shared:
                self._slots.charge(entry.item.tier, extra)

    def _settle(self, ident: Hashable) -> None:
        entry = self._entries.pop(ident)
        flow = entry.line.flow
        flow.unsettled -= 1
        if flow.unsettled == 0:
            for line in flow.lines.values():
                self._limits.unbind(line)
            flow.lines.clear()
            self._rounds[flow.tier].retire(flow)
        self._lanes.settled(entry.item.lane)
        self._wake()

    def _wait(self, entry: Entry) -> None:
        line = entry.line
        entry.state = State.WAITING
        line.queue[entry.item.ident] = entry
        if line.parked_in is None:
            self._lanes.ready(line.lane, 1)
            line.flow.ready.add(line)
            self._rounds[line.flow.tier].enter(line.flow)

    def _pull(self, entry: Entry) -> None:
        """Take what waits out of its line."""
        line = entry.line
        del line.queue[entry.item.ident]
        if line.parked_in is None:
            self._lanes.ready(line.lane, -1)
        self._emptied(line)
        if not line.flow.ready:
            self._rounds[line.flow.tier].leave(line.flow)

    def _emptied(self, line: Line) -> None:
        if not line.queue:
            line.flow.ready.discard(line)
            self._limits.forget(line)

    def _ready(self, line: Line) -> None:
        """*line* waits for nothing but a slot."""
        self._lanes.ready(line.lane, len(line.queue))
        line.flow.ready.add(line)
        self._rounds[line.flow.tier].enter(line.flow)

    def _wake(self) -> None:
        for line in self._limits.woken():
            self._has_woken = True
            self._ready(line)


def _scope(tenant: str | None, type_: str | None) -> Scope:
    if tenant is None and type_ is None:
        raise ValueError("want a tenant, a type or both, got none")
    return tenant, type_
