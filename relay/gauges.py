"""What a running relay shows of itself: whether it works, and how often what has happened."""

from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Gauges:
    """Written by the engine, read by health, metrics and tests. Counts are since the start of the process."""

    is_store_up: bool = False
    is_broker_up: bool = False
    is_blocked: bool = False
    """The broker has asked for silence."""
    stepped_at: float = 0.0
    """Monotonic time of the engine's last step."""
    is_listening: bool = False
    """Apps can wake it; false where that is not wanted."""
    owned: int = 0
    """Buckets under this relay's leases, over all groups."""
    relays: int = 0
    """Relays that live and reach the broker, this one included, when they were last counted."""
    share: int = 0
    """Buckets that are fair for this one."""
    in_flight: int = 0
    unpersisted: int = 0
    streams: int = 0
    """Lanes with something unsettled or unread."""
    held_lanes: int = 0
    faulty_lanes: int = 0
    published: int = 0
    """Messages handed to the broker, those sent again included."""
    confirmed: int = 0
    nacked: int = 0
    returned: int = 0
    resent: int = 0
    deferred: int = 0
    dead: int = 0
    retried: int = 0
    """Deferred events that were published at last."""
    scheduled_moved: int = 0
    wakes: int = 0
    surveys: int = 0
    persists: int = 0
    takeovers: int = 0
    given_up: int = 0
    """Buckets left to relays that had less than their share."""
    leases_lost: int = 0
    store_losses: int = 0
    broker_losses: int = 0

    @property
    def is_ready(self) -> bool:
        """Whether events would flow now. A relay that owns nothing is ready: it waits to take over."""
        return self.is_store_up and self.is_broker_up and not self.is_blocked
