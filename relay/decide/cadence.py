"""How often to look for new events. A pure function of how long there were none."""

_FRACTION = 8


def poll_interval_s(quiet_s: float, *, busy_s: float, idle_s: float) -> float:
    """Return how long to wait before the next look, after *quiet_s* without an event.

    An eighth of that time, so an event is found late by an eighth of its own rarity and the looks between two
    events are few, however far apart they are; never under *busy_s* nor over *idle_s*.
    """
    return min(idle_s, max(busy_s, quiet_s / _FRACTION))
