"""The gauges as Prometheus reads them."""

from collections.abc import Iterable
from dataclasses import fields
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from relay.gauges import Gauges

_PREFIX: Final = "outbox_relay_"
_LEVELS: Final = frozenset(
    {
        "is_store_up",
        "is_broker_up",
        "is_blocked",
        "is_listening",
        "owned",
        "relays",
        "share",
        "in_flight",
        "unpersisted",
        "streams",
        "held_lanes",
        "faulty_lanes",
        "slots_kept_unpublished",
        "slots_kept_busy",
        "slots_kept_foreign",
        "oldest_event_s",
    }
)
_HIDDEN: Final = frozenset({"stepped_at"})


class GaugeCollector(Collector):
    """Reads *gauges* whenever it is scraped."""

    def __init__(self, gauges: Gauges) -> None:
        self._gauges = gauges

    def collect(self) -> Iterable[Metric]:
        """One metric per gauge; the names of those that only rise end in ``_total``."""
        for field in fields(self._gauges):
            if field.name in _HIDDEN:
                continue
            value = float(getattr(self._gauges, field.name))
            words = field.name.replace("_", " ")
            if field.name in _LEVELS:
                yield GaugeMetricFamily(_PREFIX + field.name, f"Now: {words}.", value=value)
            else:
                yield CounterMetricFamily(_PREFIX + field.name, f"Since the start: {words}.", value=value)


def register(gauges: Gauges, registry: CollectorRegistry) -> None:
    """Show *gauges* wherever *registry* is served."""
    registry.register(GaugeCollector(gauges))
