"""Who is next: a free slot, many tenants, and what one of them may not do to the others.

No clock, no I/O, no lock, no randomness; one Scheduler, owned by one engine. ``slots`` splits the slots among
tiers, ``rounds`` takes turns among the tenants of a tier, ``limits`` holds back what is paused or at its cap or rate,
which are ``rooms``, ``lanes`` counts what each lane has in hand, and ``scheduler`` puts them together.
"""

from consumer.decide.fairness.rooms import Bound, Kind
from consumer.decide.fairness.scheduler import Scheduler
from consumer.decide.fairness.values import FleetNeed, Grant, Item, PauseScope, Scope

__all__ = ["Bound", "FleetNeed", "Grant", "Item", "Kind", "PauseScope", "Scheduler", "Scope"]
