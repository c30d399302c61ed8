"""What the engine counts, as Prometheus reads it; of several workers, each one's numbers with its label."""

from collections.abc import Iterable, Mapping
from typing import Final

from prometheus_client import GC_COLLECTOR, PLATFORM_COLLECTOR, PROCESS_COLLECTOR, REGISTRY
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from consumer.engine.loop import Engine
from consumer.engine.run import Readiness
from consumer.engine.tally import Tally
from consumer.outcome import DeadCategory
from consumer.supervisor import Supervisor
from outbox.shell.metrics import add_histogram, build_info

_PREFIX: Final = "outbox_consumer_"


class EngineCollector(Collector):
    """Reads the engine whenever it is scraped; before it runs there is only the build to tell of."""

    def __init__(self, readiness: Readiness, *, group: str, build: str, slots: int) -> None:
        self._readiness = readiness
        self._labels = {"group": group, "build": build}
        self._slots = slots

    def collect(self) -> Iterable[Metric]:
        """What came, what is in hand now and what became of it."""
        yield build_info("outbox_consumer", self._labels)
        engine = self._readiness.engine
        settled = CounterMetricFamily(f"{_PREFIX}settled", "Events settled, by outcome.", labels=["outcome"])
        for outcome, count in engine.outcomes.items() if engine is not None else ():
            settled.add_metric([outcome], count)
        # Only now: what is yielded is written out before the next line runs.
        yield settled
        if engine is None:
            return
        yield from self._levels(engine)
        yield from _counts(engine.tally)
        yield from _attempts(engine.tally)
        yield from _times(engine.tally)
        yield from _standing(engine.tally)

    def _levels(self, engine: Engine) -> Iterable[Metric]:
        controls, transactions = self._readiness.controls, self._readiness.transactions
        yield CounterMetricFamily(
            f"{_PREFIX}long_transactions",
            "Attempts whose transaction was open for longer than OUTBOX_CONSUMER_TRANSACTION_WARN_S.",
            value=0.0 if transactions is None else float(transactions.long),
        )
        gauges = {
            "slots": (self._slots, "Handlers that may run at once."),
            "running": (engine.hands.running, "Handlers that run."),
            "in_hand": (len(engine.hands), "Events that are unsettled here, running ones included."),
            "lanes": (engine.lanes.attached, "Lanes that are consumed from."),
            "pauses": (0 if controls is None else controls.pauses, "Pauses that hold here."),
            "oldest_transaction_seconds": (
                0.0 if transactions is None else transactions.oldest_s,
                "For how long the oldest transaction of an attempt is open.",
            ),
            "abandoned": (self._readiness.abandoned_alive, "Handlers past their deadline that could not be stopped."),
            "breakers_open": (len(engine.restraint), "Circuit breakers that are not closed."),
            "database_up": (engine.store_ok.is_set(), "Whether the database answers: 1 or 0."),
            "broker_up": (engine.is_connected, "Whether the broker is connected: 1 or 0."),
        }
        for name, (value, what) in gauges.items():
            yield GaugeMetricFamily(_PREFIX + name, what, value=float(value))


def _counts(tally: Tally) -> Iterable[Metric]:
    taken = CounterMetricFamily(f"{_PREFIX}taken", "Events taken in hand, by where from.", labels=["source"])
    taken.add_metric(["queue"], tally.from_queues)
    taken.add_metric(["work"], tally.from_work)
    yield taken


def _attempts(tally: Tally) -> Iterable[Metric]:
    attempts = CounterMetricFamily(
        f"{_PREFIX}attempts",
        "Attempts to handle an event, by handler and how they ended.",
        labels=["handler", "result"],
    )
    for (handler, result), count in tally.attempts.items():
        attempts.add_metric([handler, result], count)
    yield attempts
    durations = HistogramMetricFamily(
        f"{_PREFIX}attempt_seconds", "What an attempt took: claim, handler and commit.", labels=["handler"]
    )
    for handler, histogram in tally.attempt_time.items():
        add_histogram(durations, histogram, handler)
    yield durations


def _times(tally: Tally) -> Iterable[Metric]:
    delays = HistogramMetricFamily(
        f"{_PREFIX}start_delay_seconds",
        "From an event's emit or due time to its first attempt, by the database's clock; without replays.",
        labels=["tier"],
    )
    for tier, histogram in tally.start_delay.items():
        add_histogram(delays, histogram, tier.label)
    yield delays
    for name, at, what in (
        ("last_settled", tally.settled_at, "When an event was last settled, in seconds since 1970."),
        ("last_lease_renewal", tally.renewed_at, "When the database last took this process's lease, since 1970."),
    ):
        if at:
            yield GaugeMetricFamily(f"{_PREFIX}{name}_timestamp_seconds", what, value=at)


def _standing(tally: Tally) -> Iterable[Metric]:
    if tally.overdue_s is None:  # not looked at yet
        return
    work = GaugeMetricFamily(
        f"{_PREFIX}work_rows",
        "Events of the group that wait in the database, all processes together.",
        labels=["reason"],
    )
    for reason, rows in tally.work_rows.items():
        work.add_metric([reason], rows)
    yield work
    dead = GaugeMetricFamily(
        f"{_PREFIX}dead_letters", "Open dead letters of the group, all processes together.", labels=["category"]
    )
    for category in DeadCategory:
        dead.add_metric([category.value], tally.dead_letters.get(category, 0))
    yield dead
    yield GaugeMetricFamily(
        f"{_PREFIX}work_overdue_seconds",
        "For how long the group's longest due work row has waited to be taken; 0 if none is due.",
        value=tally.overdue_s,
    )


def register(readiness: Readiness, *, group: str, build: str, slots: int) -> None:
    """Show what runs behind *readiness* wherever metrics are served."""
    REGISTRY.register(EngineCollector(readiness, group=group, build=build, slots=slots))


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
