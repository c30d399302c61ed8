"""Pauses, and caps on how much runs at once: who waits for them, and who is woken.

What fits a paused scope, of tier, tenant and type whichever it names, does not start. A cap bounds what runs of a
tenant, a type, or a type within a tenant; interactive work neither counts against a tenant's cap nor waits for it.
A line that is refused is parked in the queue of what refused it. A release wakes only as many lines as there is
room for, in the order in which they were parked and the more urgent tier first, and keeps the room until their
turn comes: only a more urgent tier may use it before them. So nobody is overtaken by its like, no crowd is woken
for one room, and no interactive item waits for a bulk one that has no slot to start in.

A line under two full caps needs room in both at once, which may never come by itself. So once it has waited its
turn at a cap it goes to the front there, and while it waits there it keeps its room in the caps before that one,
in the order tenant, type within tenant, type. Room is always taken in that order, so no two lines wait for each
other; and what is kept idle meanwhile is the tenant's own, never another's.
"""

import sys
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import product

from consumer.decide.fairness.values import Line, PauseScope, Scope
from outbox.event import Tier


@dataclass(slots=True, eq=False, kw_only=True)
class Cap:
    """At most *most* of a scope at once; *used* of it runs. Room is taken in the caps with the lowest *rank* first."""

    most: int
    rank: int
    used: int
    # Indexed by tier: how many lines room is kept for, and which lines are parked.
    kept: list[int] = field(default_factory=lambda: [0 for _ in Tier])
    queues: list[OrderedDict[Line, None]] = field(default_factory=lambda: [OrderedDict() for _ in Tier])

    def free(self, tier: Tier) -> int:
        """Return how much room there is for *tier*: what is kept for it and for more urgent tiers is gone."""
        return self.most - self.used - sum(self.kept[: tier + 1])


def cap_scopes(line: Line) -> tuple[Scope, ...]:
    """Return the scopes whose caps bind *line*, in the order in which room is taken."""
    tenant = line.flow.tenant
    within: tuple[Scope, ...] = ((tenant, line.type, None), (None, line.type, None))
    return within if line.flow.tier is Tier.INTERACTIVE else ((tenant, None, None), *within)


def pause_scopes(line: Line) -> Iterable[PauseScope]:
    """Return the scopes whose pauses bind *line*."""
    return product((None, line.flow.tier), (None, line.flow.tenant), (None, line.type))


class Limits:
    """All pauses and caps, and the lines parked at them."""

    def __init__(self) -> None:
        self._paused: dict[PauseScope, OrderedDict[Line, None]] = {}
        self._caps: dict[Scope, Cap] = {}
        self._freed: list[Cap] = []

    def pause(self, scope: PauseScope) -> None:
        """Let nothing of *scope* start from now on."""
        self._paused.setdefault(scope, OrderedDict())

    def resume(self, scope: PauseScope) -> list[Line]:
        """End the pause; return the lines that waited for it, parked no more."""
        lines = list(self._paused.pop(scope, ()))
        for line in lines:
            line.parked_in = None
        return lines

    def cap(self, scope: Scope, most: int | None, *, running: Iterable[Line]) -> None:
        """Set, change or (None) lift the cap of *scope*. *running* are the lines of all running items, one each."""
        cap = self._caps.get(scope)
        if cap is None:
            used = sum(scope in cap_scopes(line) for line in running)
            cap = self._caps[scope] = Cap(most=0, rank=_rank(scope), used=used)
        cap.most = sys.maxsize if most is None else most
        self._freed.append(cap)
        if most is None:
            del self._caps[scope]  # it wakes all its lines and refuses none

    def admit(self, line: Line) -> bool:
        """Keep room for one item of *line* in every cap, or park the line where it was refused."""
        if not self._paused and not self._caps:
            return True
        for paused in pause_scopes(line):
            if (queue := self._paused.get(paused)) is not None:
                self._give_back(line, keep_below=0)
                line.parked_in = queue
                queue[line] = None
                return False
        for scope in cap_scopes(line):
            if (cap := self._caps.get(scope)) is not None and not _keep(cap, line):
                self._park(line, cap)
                return False
        return True

    def is_paused(self, tier: Tier, tenant: str | None, type_: str | None) -> bool:
        """Whether a pause binds all that fits this; None is what may be anyone's, or of any type."""
        return bool(self._paused) and not self._paused.keys().isdisjoint(
            product((None, tier), (None, tenant), (None, type_))
        )

    def lets_lane(self, tier: Tier, tenant: str | None) -> bool:
        """Whether a further item of a lane could start whatever its type. *tenant* is None where it may be anyone's."""
        if self.is_paused(tier, tenant, None):
            return False
        cap = None if tenant is None or tier is Tier.INTERACTIVE else self._caps.get((tenant, None, None))
        return cap is None or cap.used < cap.most

    def start(self, line: Line) -> None:
        """An item of *line*, just admitted, runs: the room that was kept is used."""
        for cap in line.holds:
            cap.kept[line.flow.tier] -= 1
            cap.used += 1
        line.holds.clear()
        line.queued_at.clear()

    def finish(self, line: Line) -> None:
        """An item of *line* runs no more."""
        for scope in cap_scopes(line) if self._caps else ():
            if (cap := self._caps.get(scope)) is not None:
                cap.used -= 1
                self._freed.append(cap)

    def forget(self, line: Line) -> None:
        """*line* is empty: it waits for nothing and keeps no room."""
        if line.parked_in is not None:
            del line.parked_in[line]
            line.parked_in = None
        self._give_back(line, keep_below=0)
        line.queued_at.clear()

    def woken(self) -> list[Line]:
        """Return the lines that what was freed is enough for: parked no more, with room kept in every cap."""
        ready: list[Line] = []
        while self._freed:
            cap = self._freed.pop()
            for tier in Tier:
                queue = cap.queues[tier]
                while queue and cap.free(tier) > 0:
                    line, _nothing = queue.popitem(last=False)
                    line.parked_in = None
                    line.queued_at.add(cap)
                    _keep(cap, line)
                    if self.admit(line):
                        ready.append(line)
        return ready

    def _park(self, line: Line, cap: Cap) -> None:
        has_waited = cap in line.queued_at
        self._give_back(line, keep_below=cap.rank if has_waited else 0)
        line.parked_in = cap.queues[line.flow.tier]
        line.parked_in[line] = None
        if has_waited:
            line.parked_in.move_to_end(line, last=False)

    def _give_back(self, line: Line, *, keep_below: int) -> None:
        for cap in line.holds:
            if cap.rank >= keep_below:
                cap.kept[line.flow.tier] -= 1
                self._freed.append(cap)
        line.holds[:] = [cap for cap in line.holds if cap.rank < keep_below]


def _keep(cap: Cap, line: Line) -> bool:
    """Keep room in *cap* for *line*; False where there is none, or where a more urgent tier has used what was kept."""
    if cap in line.holds:
        return cap.used < cap.most
    if cap.free(line.flow.tier) <= 0:
        return False
    cap.kept[line.flow.tier] += 1
    line.holds.append(cap)
    return True


def _rank(scope: Scope) -> int:
    tenant, type_, _lane = scope
    if tenant is None:
        return 2
    return 1 if type_ is not None else 0
