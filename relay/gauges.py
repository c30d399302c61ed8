"""What a running relay shows of itself: whether it works, and how often what has happened."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from outbox.event import Event
from outbox.shell.histogram import DELAY_S, DURATION_S, Histogram


@dataclass(slots=True, eq=False)
class Gauges:
    """Written by the engine, read by health, metrics and tests. Counts are since the start of the process."""

    is_store_up: bool = False
    is_broker_up: bool = False
    is_blocked: bool = False
    """The broker has asked for silence."""
    stepped_at: float = 0.0
    """Monotonic time of the engine's last step."""
    polled_at: float = 0.0
    """Unix time at which the log was last read; 0 before that."""
    heard_at: float = 0.0
    """Unix time of the broker's last confirm; 0 before that."""
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
    voids: int = 0
    """Those published in place of discarded events."""
    scheduled_moved: int = 0
    replayed: int = 0
    """Events that were published again because somebody asked for it."""
    wakes: int = 0
    surveys: int = 0
    """Windows that were too large to bring along, and read beside."""
    set_aside: int = 0
    """Windows that were brought along without the few tenants who made them too large."""
    persists: int = 0
    takeovers: int = 0
    given_up: int = 0
    """Buckets left to relays that had less than their share."""
    leases_lost: int = 0
    store_losses: int = 0
    broker_losses: int = 0
    slots_truncated: int = 0
    slots_kept_unpublished: int = 0
    """Slots of the log past their retention that not every group was sent all of."""
    slots_kept_busy: int = 0
    """Slots past their retention that somebody holds a lock on, or whose positions are never at rest."""
    slots_kept_foreign: int = 0
    """Slots past their retention in a database that the stored positions are not of."""
    oldest_event_s: int = 0
    """The age of the oldest event in the log."""
    positions_rewritten: int = 0
    positions_busy: int = 0
    """Times that a position table had grown, and was in use or being dumped."""
    keys_pruned: int = 0
    """Idempotency keys removed after they expired."""
    counters_pruned: int = 0
    """Ordering keys forgotten after their retention."""

    publish_delay: Histogram = field(default_factory=lambda: Histogram(DELAY_S))
    """Seconds from an event's emit, or due time, to the confirm. Replays, which are late on purpose, are left out."""
    confirm_time: Histogram = field(default_factory=lambda: Histogram(DURATION_S))
    """Seconds from handing a message to the broker to the confirm."""
    oldest_unpublished_s: float | None = None
    """The age of the oldest event that some group was not sent, of any relay's buckets; None before it is known."""
    deferred_rows: Mapping[str, int] = field(default_factory=dict)
    """Events that could not be published, by state."""

    def confirmed_one(self, event: Event, *, took_s: float, at: float) -> None:
        """The broker has confirmed *event* at the Unix time *at*, *took_s* seconds after it was sent."""
        self.heard_at = at
        self.confirm_time.observe(took_s)
        if event.replay is None:
            self.publish_delay.observe(at - event.ledger_time.timestamp())

    @property
    def is_ready(self) -> bool:
        """Whether events would flow now. A relay that owns nothing is ready: it waits to take over."""
        return self.is_store_up and self.is_broker_up and not self.is_blocked
