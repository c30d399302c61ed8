"""Deficit round robin with a list for new flows: which tenant of a tier has the turn, and nothing else.

Sources: Shreedhar and Varghese, "Efficient Fair Queuing Using Deficit Round Robin", IEEE/ACM Transactions on
Networking 4(3), 1996; MacGregor and Shi, "Deficits for Bursty Latency-critical Flows: DRR++", ICON 2000; RFC 8290
(new and old flows). Ours differs:

- One item per call, and while a flow's deficit is positive it may take an item of any cost. What it took too
  much is a debt, paid with the quanta of coming rounds, so the cost need not be known beforehand.
- A round that finds nobody without debt is followed at once by the first one that does.
- A flow is active while anything of it is unsettled, even with nothing to take, and for one round after. Else a
  flow whose few buffered items all run would return as new, ahead of everybody, at each dispatch.
- A flow that ran out of items during its turn goes on with it if more arrive before the round is over: its share does
  not depend on how many are buffered. Else the rest of the turn is lost: idleness earns no credit.
- Rounds pay the debt of a flow that has left as they would have, had it stayed.
- A round lets in at most as many new flows as it found old ones, or a hundred; further ones go behind the old. So
  an endless stream of new tenants starves nobody.

Between two flows of equal weight that both always have something to take, the cost taken differs by at most
``quantum * weight + 2 * largest cost``, over any interval; where costs are corrected at the end, by twice the largest
correction more per item that runs at once. A flow that comes and goes never gets more than that, and one quantum, ahead
of one that stays. A decision visits ``1 + cost / quantum`` flows on average, however many there are: a quantum near the
common cost is best.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from consumer.decide.fairness.values import Flow
from outbox.event import Tier

_NEW_MIN: Final = 100
# Idle flows looked at per decision: more than can become idle meanwhile.
_SWEEP: Final = 4
_SWEEP_UNHURRIED: Final = 100


class Rounds:
    """The flows of one tier. *weight_of* a tenant is a positive integer, asked for at each turn."""

    def __init__(self, tier: Tier, *, quantum: int, weight_of: Callable[[str], int]) -> None:
        self.flows: dict[str, Flow] = {}
        self._tier = tier
        self._quantum = quantum
        self._weight_of = weight_of
        self._round = 0
        self._new: OrderedDict[Flow, None] = OrderedDict()
        self._new_left = _NEW_MIN  # how many more this round lets in
        # A ring: those not yet visited in this round, then those visited, and those that came, in that order.
        self._old: OrderedDict[Flow, None] = OrderedDict()
        self._idle: OrderedDict[Flow, None] = OrderedDict()
        self._last_idle = 0

    def flow(self, tenant: str) -> Flow:
        """Return the tenant's flow; one that was not known is as good as idle for long."""
        if (flow := self.flows.get(tenant)) is None:
            flow = self.flows[tenant] = Flow(
                tier=self._tier, tenant=tenant, credited=self._round, idle_since=self._round - 2
            )
        return flow

    def enter(self, flow: Flow) -> None:
        """*flow* has something to take. Idle till now and without debt, it is new; else it goes behind the old ones."""
        if flow.place is not None:
            return
        is_new = flow.idle_since is not None and self._is_forgotten(flow)
        flow.idle_since = None
        self._idle.pop(flow, None)
        if is_new and self._new_left > 0:
            self._new_left -= 1
            flow.deficit, flow.credited, flow.has_turn = self._turn(flow), self._round, True
            self._list(flow, self._new)
        elif flow.credited == self._round and flow.deficit + flow.spare > 0 < flow.spare:
            flow.deficit += flow.spare
            flow.has_turn = True
            self._list(flow, self._old)
            self._old.move_to_end(flow, last=False)
        else:
            if flow.deficit < 0:
                flow.deficit = min(0, flow.deficit + self._quanta(flow))
            flow.credited = self._round
            self._list(flow, self._old)

    def leave(self, flow: Flow) -> None:
        """*flow* has nothing to take for now. Its debt stays with it, and what is left of its turn for this round."""
        if flow.place is not None:
            del flow.place[flow]
            flow.place = None
            flow.spare = max(0, flow.deficit) if flow.has_turn else 0
            flow.deficit -= flow.spare
            flow.has_turn = False

    def retire(self, flow: Flow) -> None:
        """Nothing of *flow* is unsettled any more."""
        self.leave(flow)
        flow.idle_since = self._last_idle = self._round
        self._idle[flow] = None

    def current(self) -> Flow | None:
        """Return the flow whose turn it is, or None where no flow has anything to take."""
        self._sweep(_SWEEP)
        in_debt = 0  # how many flows in a row
        while self._new or self._old:
            flow = next(iter(self._new or self._old))
            if not flow.has_turn:
                self._visit(flow)
            if flow.deficit > 0:
                return flow
            self._pass_on(flow)
            in_debt += 1
            if in_debt >= len(self._old) and not self._new:
                self._skip()
                in_debt = 0
        # Every flow was visited and had nothing: the round is empty and over, and so is the one after.
        self._begin(self._last_idle + 2)
        self._sweep(_SWEEP_UNHURRIED)
        return None

    def serve(self, flow: Flow, cost: int) -> None:
        """*flow*, whose turn it was, took one item. It keeps the turn while it has credit and more to take."""
        flow.deficit -= cost
        if not flow.ready:
            self.leave(flow)
        elif flow.deficit <= 0:
            self._pass_on(flow)

    def charge(self, flow: Flow, cost: int) -> None:
        """*flow* owes *cost* more (or less, where negative) for what it took."""
        flow.deficit -= cost

    def _visit(self, flow: Flow) -> None:
        """Give *flow* its turn in this round; in the next, where it had its turn in this."""
        if flow.credited == self._round:
            self._begin(self._round + 1)
        # As ``_quanta``, without the calls: where events take long, there are several visits for each.
        flow.deficit += (self._round - flow.credited) * self._quantum * self._weight_of(flow.tenant)
        flow.credited = self._round
        flow.has_turn = True

    def _pass_on(self, flow: Flow) -> None:
        flow.has_turn = False
        if flow.place is self._new:
            del self._new[flow]
            self._list(flow, self._old)
        else:
            self._old.move_to_end(flow)

    def _skip(self) -> None:
        """Everybody is in debt: let the rounds pass in which everybody stays so. Who is ahead stays ahead."""
        rounds: int | None = None
        for flow in self._old:
            of_flow = -flow.deficit // self._turn(flow)
            if of_flow == 0:  # most often one is about to be out of it
                return
            rounds = of_flow if rounds is None else min(rounds, of_flow)
        if rounds is not None:
            for flow in self._old:
                flow.deficit += rounds * self._turn(flow)
                flow.credited += rounds
            self._begin(self._round + rounds)

    def _list(self, flow: Flow, place: OrderedDict[Flow, None]) -> None:
        flow.place = place
        place[flow] = None

    def _begin(self, number: int) -> None:
        if number > self._round:
            self._round = number
            self._new_left = max(_NEW_MIN, len(self._old))

    def _quanta(self, flow: Flow) -> int:
        """Return what the rounds since *flow* was last credited are worth to it."""
        return (self._round - flow.credited) * self._turn(flow)

    def _turn(self, flow: Flow) -> int:
        return self._quantum * self._weight_of(flow.tenant)

    def _is_forgotten(self, flow: Flow) -> bool:
        """Whether an idle flow is like one never seen: a whole round has passed, and it owes nothing."""
        if flow.idle_since is None or self._round <= flow.idle_since + 1:
            return False
        return flow.deficit + self._quanta(flow) >= 0

    def _sweep(self, most: int) -> None:
        for _ in range(min(most, len(self._idle))):
            flow = next(iter(self._idle))
            if self._is_forgotten(flow):
                del self._idle[flow]
                del self.flows[flow.tenant]
            else:
                self._idle.move_to_end(flow)
