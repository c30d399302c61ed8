"""What the engine counts, as Prometheus reads it."""

from collections.abc import Iterable
from typing import Final

from prometheus_client import REGISTRY
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from consumer.engine.run import Readiness

_PREFIX: Final = "outbox_consumer_"


class EngineCollector(Collector):
    """Reads the engine whenever it is scraped; there is nothing to tell before it runs."""

    def __init__(self, readiness: Readiness) -> None:
        self._readiness = readiness

    def collect(self) -> Iterable[Metric]:
        """Outcomes since the start, and what is in hand now."""
        engine, controls = self._readiness.engine, self._readiness.controls
        settled = CounterMetricFamily(f"{_PREFIX}settled", "Deliveries settled since the start.", labels=["outcome"])
        for outcome, count in engine.outcomes.items() if engine is not None else ():
            settled.add_metric([outcome], count)
        # Only now: what is yielded is written out before the next line runs.
        yield settled
        if engine is None:
            return
        gauges = {
            "running": (engine.hands.running, "Handlers that run."),
            "in_hand": (len(engine.hands), "Events that are unsettled here, running ones included."),
            "lanes": (engine.lanes.attached, "Lanes that are consumed from."),
            "pauses": (0 if controls is None else controls.pauses, "Pauses that hold here."),
            "store_up": (engine.store_ok.is_set(), "Whether the database answers."),
            "broker_up": (engine.is_connected, "Whether the broker is connected."),
        }
        for name, (value, what) in gauges.items():
            yield GaugeMetricFamily(_PREFIX + name, what, value=float(value))


def register(readiness: Readiness) -> None:
    """Show what runs behind *readiness* wherever metrics are served."""
    REGISTRY.register(EngineCollector(readiness))
