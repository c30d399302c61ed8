"""The gauges as Prometheus reads them."""

from collections.abc import Iterable
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from outbox.shell.metrics import add_histogram, build_info
from relay.gauges import Gauges

_PREFIX: Final = "outbox_relay_"

# Names and help texts, by the gauges' own names. Levels first, then what only rises, whose names end in ``_total``.
LEVELS: Final = {
    "is_store_up": ("database_up", "Whether the database answers: 1 or 0."),
    "is_broker_up": ("broker_up", "Whether the broker is connected: 1 or 0."),
    "is_blocked": ("broker_blocked", "Whether the broker has asked for silence, by an alarm of its own: 1 or 0."),
    "is_listening": ("listening", "Whether apps can wake this relay: 1 or 0; 0 where that is not wanted."),
    "owned": ("buckets_owned", "Buckets under this relay's leases, over all groups."),
    "share": ("buckets_share", "Buckets that are fair for this relay."),
    "relays": ("relays", "Relays that live and reach the broker, this one included."),
    "in_flight": ("in_flight", "Messages with the broker that are not settled."),
    "unpersisted": ("unpersisted", "Events published since the positions were last stored."),
    "streams": ("lanes_active", "Lanes with something unsettled or unread."),
    "held_lanes": ("lanes_held", "Lanes that nothing is published to now, as they failed or are being declared."),
    "faulty_lanes": ("lanes_faulty", "Lanes whose confirms are missing though others arrive."),
    "oldest_event_s": ("oldest_retained_event_seconds", "Age of the oldest event in the log, published or not."),
}
COUNTS: Final = {
    "published": ("published", "Messages handed to the broker, those sent again included."),
    "confirmed": ("confirmed", "Messages that the broker has confirmed."),
    "nacked": ("nacked", "Messages that the broker has refused to take for now."),
    "returned": ("returned", "Messages that the broker could not route."),
    "resent": ("resent", "Messages sent again after a lost connection or a refusal."),
    "deferred": ("deferred", "Times that an event could not be published and was written down for later."),
    "dead": ("dead", "Events given up: they wait for an operator in outbox deferred list."),
    "retried": ("retried", "Deferred events that were published at last."),
    "voids": ("voids", "Messages published in place of discarded events."),
    "scheduled_moved": ("scheduled_moved", "Scheduled events that came due."),
    "replayed": ("replayed", "Events published again because somebody asked for it."),
    "wakes": ("wakes", "Times that an app woke this relay."),
    "surveys": ("surveys", "Windows of the log that were too large to bring along, and read beside."),
    "set_aside": ("set_aside", "Windows brought along without the few tenants who made them too large."),
    "persists": ("persists", "Times that positions were stored."),
    "takeovers": ("takeovers", "Times that this relay took buckets."),
    "given_up": ("buckets_given_up", "Buckets left to relays that had less than their share."),
    "leases_lost": ("leases_lost", "Times that another relay had taken this one's buckets."),
    "store_losses": ("database_losses", "Times that the database was lost."),
    "broker_losses": ("broker_losses", "Times that the broker's connection was lost."),
    "slots_truncated": ("slots_truncated", "Slots of the log that were emptied after their retention."),
    "positions_rewritten": ("positions_rewritten", "Times that a position table was rewritten."),
    "positions_busy": ("positions_busy", "Times that a position table had grown and was in use."),
    "keys_pruned": ("keys_pruned", "Idempotency keys removed after they expired."),
    "counters_pruned": ("counters_pruned", "Ordering keys forgotten after their retention."),
}
TIMES: Final = {
    "polled_at": ("last_poll_timestamp_seconds", "When the log was last read, in seconds since 1970."),
    "heard_at": ("last_confirm_timestamp_seconds", "When the broker last confirmed, in seconds since 1970."),
}
HISTOGRAMS: Final = {
    "publish_delay": (
        "publish_delay_seconds",
        "From an event's emit or due time, by the database's clock, to the broker's confirm, by this machine's.",
    ),
    "confirm_time": ("confirm_seconds", "From handing a message to the broker to its confirm."),
}


class GaugeCollector(Collector):
    """Reads *gauges* whenever it is scraped."""

    def __init__(self, gauges: Gauges) -> None:
        self._gauges = gauges

    def collect(self) -> Iterable[Metric]:
        """A family per gauge; what is not known yet has none."""
        gauges = self._gauges
        yield build_info("outbox_relay")
        for field, (name, what) in LEVELS.items():
            yield GaugeMetricFamily(_PREFIX + name, what, value=float(getattr(gauges, field)))
        for field, (name, what) in COUNTS.items():
            yield CounterMetricFamily(_PREFIX + name, what, value=float(getattr(gauges, field)))
        for field, (name, what) in TIMES.items():
            if at := getattr(gauges, field):
                yield GaugeMetricFamily(_PREFIX + name, what, value=at)
        for field, (name, what) in HISTOGRAMS.items():
            family = HistogramMetricFamily(_PREFIX + name, what)
            add_histogram(family, getattr(gauges, field))
            yield family
        yield from self._standing()

    def _standing(self) -> Iterable[Metric]:
        gauges = self._gauges
        kept = GaugeMetricFamily(
            f"{_PREFIX}slots_kept", "Slots of the log past their retention, by what keeps them.", labels=["reason"]
        )
        kept.add_metric(["unpublished"], gauges.slots_kept_unpublished)
        kept.add_metric(["busy"], gauges.slots_kept_busy)
        kept.add_metric(["foreign"], gauges.slots_kept_foreign)
        yield kept
        if gauges.oldest_unpublished_s is not None:
            yield GaugeMetricFamily(
                f"{_PREFIX}oldest_unpublished_seconds",
                "Age of the oldest event that some group was not sent, whichever relay is to; 0 if there is none.",
                value=gauges.oldest_unpublished_s,
            )
        if gauges.deferred_rows:
            deferred = GaugeMetricFamily(
                f"{_PREFIX}deferred_events",
                "Events that could not be published, whichever relay tried, by state; counted up to 100,000.",
                labels=["state"],
            )
            for state, rows in gauges.deferred_rows.items():
                deferred.add_metric([state], rows)
            yield deferred


def register(gauges: Gauges, registry: CollectorRegistry) -> None:
    """Show *gauges* wherever *registry* is served."""
    registry.register(GaugeCollector(gauges))
