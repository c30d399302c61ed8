"""What the engine counts, as Prometheus reads it; of several workers, each one's numbers with its label."""

from collections.abc import Iterable, Mapping
from typing import Final

from prometheus_client import GC_COLLECTOR, PLATFORM_COLLECTOR, PROCESS_COLLECTOR, REGISTRY
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from consumer.engine.run import Readiness
from consumer.supervisor import Supervisor

_PREFIX: Final = "outbox_consumer_"


class EngineCollector(Collector):
    """Reads the engine whenever it is scraped; there is nothing to tell before it runs."""

    def __init__(self, readiness: Readiness) -> None:
        self._readiness = readiness

    def collect(self) -> Iterable[Metric]:
        """Outcomes since the start, and what is in hand now."""
        engine, controls, transactions = self._readiness.engine, self._readiness.controls, self._readiness.transactions
        settled = CounterMetricFamily(f"{_PREFIX}settled", "Deliveries settled since the start.", labels=["outcome"])
        for outcome, count in engine.outcomes.items() if engine is not None else ():
            settled.add_metric([outcome], count)
        # Only now: what is yielded is written out before the next line runs.
        yield settled
        if engine is None:
            return
        yield CounterMetricFamily(
            f"{_PREFIX}long_transactions",
            "Attempts whose transaction was open for longer than OUTBOX_CONSUMER_TRANSACTION_WARN_S.",
            value=0.0 if transactions is None else float(transactions.long),
        )
        gauges = {
            "running": (engine.hands.running, "Handlers that run."),
            "in_hand": (len(engine.hands), "Events that are unsettled here, running ones included."),
            "lanes": (engine.lanes.attached, "Lanes that are consumed from."),
            "pauses": (0 if controls is None else controls.pauses, "Pauses that hold here."),
            "transaction_open_s": (
                0.0 if transactions is None else transactions.oldest_s,
                "For how long the oldest transaction of an attempt is open.",
            ),
            "abandoned": (self._readiness.abandoned_alive, "Handlers past their deadline that could not be stopped."),
            "store_up": (engine.store_ok.is_set(), "Whether the database answers."),
            "breakers_open": (
                len(engine.restraint),
                "Circuit breakers that are not closed.",
            ),
            "broker_up": (engine.is_connected, "Whether the broker is connected."),
        }
        for name, (value, what) in gauges.items():
            yield GaugeMetricFamily(_PREFIX + name, what, value=float(value))


def register(readiness: Readiness) -> None:
    """Show what runs behind *readiness* wherever metrics are served."""
    REGISTRY.register(EngineCollector(readiness))


class FleetCollector(Collector):
    """What the workers have last told of themselves, labelled with their numbers, and how they are."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    def collect(self) -> Iterable[Metric]:
        """A family of each name, with the samples of every worker."""
        families: dict[str, Metric] = {}
        restarts = CounterMetricFamily(f"{_PREFIX}worker_restarts", "Workers that were replaced.", labels=["worker"])
        up = GaugeMetricFamily(f"{_PREFIX}worker_up", "Whether the worker runs.", labels=["worker"])
        for worker in self._supervisor.workers:
            number = str(worker.number)
            restarts.add_metric([number], worker.restarts)
            up.add_metric([number], float(worker.child is not None))
            for family in text_string_to_metric_families(worker.metrics):
                known = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                for sample in family.samples:
                    known.add_sample(sample.name, _labelled(sample.labels, number), sample.value)
        yield from families.values()
        yield restarts
        yield up


def register_fleet(supervisor: Supervisor) -> None:
    """Show the workers of *supervisor* wherever metrics are served, and nothing of this process, which does nothing."""
    for collector in (PROCESS_COLLECTOR, PLATFORM_COLLECTOR, GC_COLLECTOR):
        REGISTRY.unregister(collector)
    REGISTRY.register(FleetCollector(supervisor))


def _labelled(labels: Mapping[str, str], number: str) -> dict[str, str]:
    return {**labels, "worker": number}
