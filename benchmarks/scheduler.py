"""NAME=scheduler: the time of one decision with 10 and with 100,000 lanes that all have something waiting.

A decision is what the engine does per event: one ends with its measured cost, one comes, the next is started. Costs
are slot time in milliseconds, and differ per event.
"""

import os
import random
import statistics
import sys
import time
from dataclasses import dataclass, field
from itertools import count

from consumer.decide.costs import QUANTUM
from consumer.decide.fairness import Grant, Item, Scheduler
from outbox.event import Tier

_DECISIONS = int(os.environ.get("BENCH_EVENTS", "100000"))
_FEW, _MANY = 10, 100_000
_ROUNDS = 5
_SLOTS = 10


@dataclass(slots=True)
class Lanes:
    """A scheduler with *lanes* of a tenant each, two items in hand of each, and every slot taken."""

    lanes: int
    scheduler: Scheduler = field(default_factory=lambda: Scheduler(_SLOTS, quantum=QUANTUM))
    idents: "count[int]" = field(default_factory=count)
    running: list[Grant] = field(default_factory=list)
    dice: random.Random = field(default_factory=lambda: random.Random(1))

    def __post_init__(self) -> None:
        for _ in range(2):
            for number in range(self.lanes):
                self._offer(f"tenant-{number}")
        while (grant := self.scheduler.take()) is not None:
            self.running.append(grant)

    def decide(self, decisions: int) -> float:
        """Take so many decisions; return the CPU seconds that one took."""
        costs = [self.dice.choice((1, 5, 20, 50)) for _ in range(decisions)]
        began = time.process_time()
        for cost in costs:
            ended = self.running.pop(0).item
            self.scheduler.done(ended.ident, cost=cost)
            self._offer(ended.tenant)
            grant = self.scheduler.take()
            assert grant is not None
            self.running.append(grant)
        return (time.process_time() - began) / decisions

    def _offer(self, tenant: str) -> None:
        self.scheduler.offer(
            Item(ident=next(self.idents), tier=Tier.STANDARD, tenant=tenant, type="t", lane=tenant, cost=QUANTUM)
        )


def main() -> dict[str, float]:
    """Take turns between few lanes and many; return the medians."""
    few, many = Lanes(_FEW), Lanes(_MANY)
    for lanes in (few, many):
        lanes.decide(3 * _MANY)
    times: dict[int, list[float]] = {_FEW: [], _MANY: []}
    for number in range(_ROUNDS):
        for lanes in (few, many):
            times[lanes.lanes].append(lanes.decide(_DECISIONS) * 1e6)
        print(f"round {number + 1}: {times}", file=sys.stderr)
    few_us, many_us = statistics.median(times[_FEW]), statistics.median(times[_MANY])
    return {"few_us": round(few_us, 2), "many_us": round(many_us, 2), "ratio": round(many_us / few_us, 2)}
