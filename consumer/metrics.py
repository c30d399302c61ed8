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

# Help texts; of levels by their names.
SETTLED: Final = "Events settled, by outcome."
LONG: Final = "Attempts whose transaction was open for longer than OUTBOX_CONSUMER_TRANSACTION_WARN_S."
RESTARTS: Final = "Workers that were replaced."
UP: Final = "Whether the worker runs: 1 or 0."
LEVELS: Final = {
    "slots": "Handlers that may run at once.",
    "running": "Handlers that run.",
    "in_hand": "Events that are unsettled here, running ones included.",
    "lanes": "Lanes that are consumed from.",
    "pauses": "Pauses that hold here.",
    "oldest_transaction_seconds": "For how long the oldest transaction of an attempt is open.",
    "abandoned": "Handlers past their deadline that could not be stopped.",
    "breakers_open": "Circuit breakers that are not closed.",
    "database_up": "Whether the database answers: 1 or 0.",
    "broker_up": "Whether the broker is connected: 1 or 0.",
}


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
        settled = CounterMetricFamily(f"{_PREFIX}settled", SETTLED, labels=["outcome"])
        for outcome, count in engine.outcomes.items() if engine is not None else ():
            settled.add_metric([outcome], count)
        # Only now: what is yielded is written out before the next line runs.
        yield settled
        if engine is None:
            return
        yield from self._levels(engine)
        yield from of_tally(engine.tally)

    def _levels(self, engine: Engine) -> Iterable[Metric]:
        controls, transactions = self._readiness.controls, self._readiness.transactions
        yield CounterMetricFamily(
            f"{_PREFIX}long_transactions", LONG, value=0.0 if transactions is None else float(transactions.long)
        )
        levels = {
            "slots": self._slots,
            "running": engine.hands.running,
            "in_hand": len(engine.hands),
            "lanes": engine.lanes.attached,
            "pauses": 0 if controls is None else controls.pauses,
            "oldest_transaction_seconds": 0.0 if transactions is None else transactions.oldest_s,
            "abandoned": self._readiness.abandoned_alive,
            "breakers_open": len(engine.restraint),
            "database_up": engine.store_ok.is_set(),
            "broker_up": engine.is_connected,
        }
        for name, what in LEVELS.items():
            yield GaugeMetricFamily(_PREFIX + name, what, value=float(levels[name]))


def of_tally(tally: Tally) -> Iterable[Metric]:
    """What *tally* has."""
    yield from _counts(tally)
    yield from _attempts(tally)
    yield from _times(tally)
    yield from _standing(tally)


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
        ("last_settled_timestamp_seconds", tally.settled_at, "When an event was last settled, in seconds since 1970."),
        (
            "last_lease_renewal_timestamp_seconds",
            tally.renewed_at,
            "When the database last took this process's lease, in seconds since 1970.",
        ),
    ):
        if at:
            yield GaugeMetricFamily(_PREFIX + name, what, value=at)


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
        restarts = CounterMetricFamily(f"{_PREFIX}worker_restarts", RESTARTS, labels=["worker"])
        up = GaugeMetricFamily(f"{_PREFIX}worker_up", UP, labels=["worker"])
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
