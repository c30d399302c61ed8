"""``metrics.md``: what relay and consumer serve to Prometheus."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from prometheus_client.core import Metric

from consumer import metrics as of_consumer
from consumer.engine.tally import Tally
from outbox.shell.metrics import build_info
from reference.markdown import code, page, table
from relay import metrics as of_relay
from relay.gauges import Gauges

_CONSUMER: Final = "outbox_consumer_"
_INTRODUCTION: Final = """
Both processes serve `/metrics` beside `/live` and `/ready`: the relay on port 8081, the consumer on 8082, on loopback
unless `OUTBOX_RELAY_HEALTH_HOST` and `OUTBOX_CONSUMER_HEALTH_HOST` say otherwise. What to look at, and what to be
called for, is in [Watch it with Prometheus](../how-to/metrics.md).

No tenant is a label: there may be thousands. `outbox-relay status`, `outbox-consumer status` and
`outbox tenant show ID` tell of tenants. Counters are since the start of the process. What Python's client adds, such as
`process_cpu_seconds_total` and `process_resident_memory_bytes`, is served too.
"""
_OF_A_FLEET: Final = """
With `--processes 2` or more each metric has one more label, `worker`, with the worker's number; the two of workers come
from the process that watches them.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One metric. *name* is what a query asks for, without a histogram's endings."""

    name: str
    kind: str
    labels: tuple[str, ...]
    what: str


def rows_of_relay() -> list[Row]:
    """The relay's, in the order in which they are served."""
    gauges = Gauges(polled_at=1.0, heard_at=1.0, oldest_unpublished_s=0.0, deferred_rows={"dead": 0})
    return [_row(family) for family in of_relay.GaugeCollector(gauges).collect()]


def rows_of_consumer() -> list[Row]:
    """The consumer's, in the order in which they are served; those of a fleet last."""
    tally = Tally(settled_at=1.0, renewed_at=1.0, work_rows={"retry": 0}, overdue_s=0.0)
    tally.attempts["bill", "done"] += 1
    tally.attempt_time["bill"].observe(0.0)
    rows = [
        Row(name="settled_total", kind="counter", labels=("outcome",), what=of_consumer.SETTLED),
        Row(name="long_transactions_total", kind="counter", labels=(), what=of_consumer.LONG),
        *(Row(name=name, kind="gauge", labels=(), what=what) for name, what in of_consumer.LEVELS.items()),
    ]
    fleet = [
        Row(name="worker_restarts_total", kind="counter", labels=("worker",), what=of_consumer.RESTARTS),
        Row(name="worker_up", kind="gauge", labels=("worker",), what=of_consumer.UP),
    ]
    return [
        _row(build_info("outbox_consumer", {"group": "", "build": ""})),
        *(_prefixed(row) for row in rows),
        *(_row(family) for family in of_consumer.of_tally(tally)),
        *(_prefixed(row) for row in fleet),
    ]


def render() -> str:
    """The page."""
    return page(
        "Metrics",
        _INTRODUCTION,
        "## outbox-relay",
        _table(rows_of_relay()),
        "## outbox-consumer",
        _table(rows_of_consumer()),
        _OF_A_FLEET,
    )


def _table(rows: Iterable[Row]) -> str:
    cells = ([code(row.name), row.kind, ", ".join(map(code, row.labels)), row.what] for row in rows)
    return table(["metric", "kind", "labels", "what it is"], cells)


def _row(family: Metric) -> Row:
    ending = {"counter": "_total", "info": "_info"}.get(family.type, "")
    labels = dict.fromkeys(label for sample in family.samples for label in sample.labels if label != "le")
    kind = "gauge" if family.type == "info" else family.type
    return Row(name=family.name + ending, kind=kind, labels=tuple(labels), what=family.documentation)


def _prefixed(row: Row) -> Row:
    return Row(name=_CONSUMER + row.name, kind=row.kind, labels=row.labels, what=row.what)
