"""Pauses, caps and rates: who waits for them, and who is woken.

What fits a paused scope, of tier, tenant and type whichever it names, does not start. A cap bounds what runs of a
tenant, a type, a type within a tenant, or everything, and a rate what starts of it; interactive work neither counts
against a tenant's nor waits for it. A line that is refused is parked in the queue of what refused it. A release, or a
token that comes, wakes only as many lines as there is room for, in the order in which they were parked and the more
urgent tier first, and keeps the room until their turn comes: only a more urgent tier may use it before them. So
nobody is overtaken by its like, no crowd is woken for one room, and no interactive item waits for a bulk one that has
no slot to start in.

A line under two full caps needs room in both at once, which may never come by itself. So once it has waited its
turn at a cap it goes to the front there, and while it waits there it keeps its room in the caps before that one,
in the order tenant, type within tenant, type, everything. Room is always taken in that order, so no two lines wait
for each other; and what is kept idle meanwhile is of use only to those who wait for the same.
"""

import heapq
import sys
from collections import OrderedDict
from collections.abc import Iterable
from itertools import count, islice, product
from typing import Final

from consumer.decide.fairness.rooms import Bound, Kind, Room
from consumer.decide.fairness.values import FleetNeed, Line, PauseScope, Scope
from outbox.event import Tier

# Rates looked at per tick: more than can become unused meanwhile.
_SWEEP: Final = 4


def pause_scopes(line: Line) -> Iterable[PauseScope]:
    """Return the scopes whose pauses bind *line*."""
    return product((None, line.flow.tier), (None, line.flow.tenant), (None, line.type))


class Limits:
    """All pauses, caps and rates, and the lines parked at them. *now* is the time of the latest ``tick``.

    *wants_permits* is set when a line was parked at a fleet's cap; whoever gets permits clears it.
    """

    def __init__(self, bounds: Iterable[Bound] = ()) -> None:
        self.now = 0.0
        self.wants_permits = False
        self._bounds = tuple(bounds)
        self._paused: dict[PauseScope, OrderedDict[Line, None]] = {}
        self._rooms: dict[tuple[Scope, Kind], Room] = {}
        self._freed: list[Room] = []
        self._timed: list[tuple[float, int, Room]] = []  # a heap of rates with lines parked, by when a token comes
        self._resting: OrderedDict[Room, None] = OrderedDict()  # rates that bind nobody now, with tokens to come
        self._order = count()

    # ---------------------------------------------------------------- what bounds whom

    def bind(self, line: Line) -> None:
        """*line* is new: find the rooms that its items need."""
        if not (self._bounds or self._rooms):
            return
        keys = {(scope, bound.kind): bound for bound in self._bounds if (scope := bound.scope_of(line)) is not None}
        rooms = [self._rooms.get(key) or self._make(key, bound) for key, bound in keys.items()]
        made = ((scope, Kind.CAP) for scope in _scopes(line))
        rooms += [self._rooms[key] for key in made if key in self._rooms and key not in keys]
        for room in rooms:
            _bind(line, room)

    def unbind(self, line: Line) -> None:
        """*line* is gone."""
        for room in line.rooms:
            room.lines -= 1
            self._drop_unused(room)
        line.rooms = ()

    def cap(self, scope: Scope, most: int | None, *, lines: Iterable[Line], running: Iterable[Line]) -> None:
        """Set, change or (None) lift the cap of *scope*. *running* are the lines of all running items, one each."""
        room = self._rooms.get((scope, Kind.CAP))
        if room is None:
            used = sum(scope in _scopes(line) for line in running)
            bound = next((bound for bound in self._bounds if bound.kind is Kind.CAP and bound.makes(scope)), None)
            room = self._rooms[scope, Kind.CAP] = Room(scope=scope, kind=Kind.CAP, most=0, bound=bound, used=used)
            for line in lines:
                if scope in _scopes(line):
                    _bind(line, room)
        self._freed.append(room)
        room.is_set = most is not None
        if most is not None:
            room.most = most
        elif room.bound is not None:
            room.most = room.bound.most
            self._drop_unused(room)
        else:
            room.most = sys.maxsize  # it wakes all its lines and refuses none
            del self._rooms[scope, Kind.CAP]
            for line in lines:
                line.rooms = tuple(one for one in line.rooms if one is not room)

    # ---------------------------------------------------------------- pauses

    def pause(self, scope: PauseScope) -> None:
        """Let nothing of *scope* start from now on."""
        self._paused.setdefault(scope, OrderedDict())

    def resume(self, scope: PauseScope) -> list[Line]:
        """End the pause; return the lines that waited for it, parked no more."""
        lines = list(self._paused.pop(scope, ()))
        for line in lines:
            line.parked_in = None
        return lines

    def has_pauses(self) -> bool:
        """Whether there is any pause."""
        return bool(self._paused)

    def is_paused(self, tier: Tier, tenant: str | None, type_: str | None) -> bool:
        """Whether a pause binds all that fits this; None is what may be anyone's, or of any type."""
        return bool(self._paused) and not self._paused.keys().isdisjoint(
            product((None, tier), (None, tenant), (None, type_))
        )

    # ---------------------------------------------------------------- starts and ends

    def admit(self, line: Line) -> bool:
        """Keep room for one item of *line* wherever it needs some, or park the line where it was refused."""
        if self._paused:
            for paused in pause_scopes(line):
                if (queue := self._paused.get(paused)) is not None:
                    self._give_back(line, keep_below=0)
                    line.parked_in = queue
                    queue[line] = None
                    return False
        for room in line.rooms:
            if not self._keep(room, line):
                self._park(line, room)
                return False
        return True

    def lets_lane(self, tier: Tier, tenant: str | None) -> bool:
        """Whether a further item of a lane could start whatever its type. *tenant* is None where it may be anyone's."""
        if self.is_paused(tier, tenant, None):
            return False
        for scope, kind in product(((None, None), (tenant, None)), Kind) if self._rooms else ():
            room = self._rooms.get((scope, kind))
            if room is not None and not (tier is Tier.INTERACTIVE and scope[0] is not None):
                room.refill(self.now)
                if room.used >= room.most:
                    return False
        return True

    def start(self, line: Line) -> None:
        """An item of *line*, just admitted, runs: the room that was kept is used."""
        for room in line.holds:
            room.kept[line.flow.tier] -= 1
            room.use(self.now)
        line.holds.clear()
        line.queued_at.clear()

    def finish(self, line: Line, *, has_worked: bool = True) -> None:
        """An item of *line* runs no more. Unless it *has_worked*, its tokens were not spent."""
        for room in line.rooms:
            if room.kind is not Kind.RATE:
                room.used -= 1
            elif has_worked:
                continue
            elif room.used:
                room.used -= 1
            self._freed.append(room)

    def forget(self, line: Line) -> None:
        """*line* is empty: it waits for nothing and keeps no room."""
        if line.parked_in is not None:
            del line.parked_in[line]
            line.parked_in = None
        self._give_back(line, keep_below=0)
        line.queued_at.clear()

    # ---------------------------------------------------------------- waking

    def tick(self, now: float) -> None:
        """It is *now*: see which rates have tokens again."""
        self.now = now
        while self._timed and self._timed[0][0] <= now:
            _, _, room = heapq.heappop(self._timed)
            room.is_timed = False
            self._freed.append(room)
        for room in list(islice(self._resting, _SWEEP)) if self._resting else ():
            room.refill(now)
            self._drop_unused(room)  # or it goes to the end

    def wakes_at(self) -> float | None:
        """When the next token comes that somebody waits for."""
        return self._timed[0][0] if self._timed else None

    def woken(self) -> list[Line]:
        """Return the lines that what was freed is enough for: parked no more, with room kept wherever they need it."""
        if not self._freed:
            return []
        ready: list[Line] = []
        while self._freed:
            room = self._freed.pop()
            room.refill(self.now)
            for tier in Tier:
                queue = room.queues[tier]
                while queue and room.free(tier) > 0:
                    line, _nothing = queue.popitem(last=False)
                    line.parked_in = None
                    line.queued_at.add(room)
                    self._keep(room, line)
                    if self.admit(line):
                        ready.append(line)
            self._time(room)
        return ready

    # ---------------------------------------------------------------- permits

    def fleet_needs(self) -> list[FleetNeed]:
        """Return what this process holds and wants of each fleet's cap that anything of it comes under."""
        return [
            FleetNeed(
                scope=room.scope,
                most=0 if room.bound is None else room.bound.most,
                held=room.most,
                used=room.used + sum(room.kept),
                waiting=room.waiting(),
            )
            for room in self._rooms.values()
            if room.kind is Kind.FLEET
        ]

    def permit(self, scope: Scope, held: int) -> None:
        """Let *held* of *scope* run here. What runs already goes on."""
        room = self._rooms.get((scope, Kind.FLEET))
        if room is not None:
            room.most = held
            self._freed.append(room)
            self._drop_unused(room)

    # ---------------------------------------------------------------- inside

    def _make(self, key: tuple[Scope, Kind], bound: Bound) -> Room:
        scope, kind = key
        room = self._rooms[key] = Room(
            scope=scope, kind=kind, most=0 if kind is Kind.FLEET else bound.most, bound=bound, refilled_at=self.now
        )
        return room

    def _drop_unused(self, room: Room) -> None:
        """Forget *room* if it says nothing that making it anew would not; of a rate, what was used must be back."""
        self._resting.pop(room, None)
        if room.lines or room.is_set:
            return
        if room.kind is Kind.RATE and room.used:
            self._resting[room] = None
        elif not (room.kind is Kind.FLEET and room.most):
            self._rooms.pop((room.scope, room.kind), None)

    def _keep(self, room: Room, line: Line) -> bool:
        """Keep room for *line*; False where there is none, or where a more urgent tier has used what was kept."""
        room.refill(self.now)
        if room in line.holds:
            return room.used < room.most
        if room.free(line.flow.tier) <= 0:
            return False
        room.kept[line.flow.tier] += 1
        line.holds.append(room)
        return True

    def _park(self, line: Line, room: Room) -> None:
        has_waited = room in line.queued_at
        self._give_back(line, keep_below=room.rank if has_waited else 0)
        line.parked_in = room.queues[line.flow.tier]
        line.parked_in[line] = None
        if has_waited:
            line.parked_in.move_to_end(line, last=False)
        self._time(room)
        if room.kind is Kind.FLEET:
            self.wants_permits = True

    def _time(self, room: Room) -> None:
        if room.kind is Kind.RATE and not room.is_timed and any(room.queues):
            room.is_timed = True
            heapq.heappush(self._timed, (room.refills_at(), next(self._order), room))

    def _give_back(self, line: Line, *, keep_below: int) -> None:
        for room in line.holds:
            if room.rank >= keep_below:
                room.kept[line.flow.tier] -= 1
                self._freed.append(room)
        line.holds[:] = [room for room in line.holds if room.rank < keep_below]


def _scopes(line: Line) -> tuple[Scope, ...]:
    """Return the scopes that may bound *line*."""
    tenant = line.flow.tenant
    within: tuple[Scope, ...] = ((tenant, line.type), (None, line.type), (None, None))
    return within if line.flow.tier is Tier.INTERACTIVE else ((tenant, None), *within)


def _bind(line: Line, room: Room) -> None:
    room.lines += 1
    line.rooms = tuple(sorted((*line.rooms, room), key=lambda room: room.rank))
