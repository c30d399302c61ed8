"""What Prometheus's own guides ask of metrics: names, units, help texts, labels that cannot grow without bound."""

import re
from collections.abc import Iterable

from prometheus_client.core import Metric

_NAME = re.compile(r"outbox_(relay|consumer)_[a-z][a-z_]*[a-z]")
#: Other units than seconds and bytes, and times that are not told to be so.
_UNITS = re.compile(r"_(s|ms|us|min|minutes|hours|milliseconds|kb|mb|kib|mib|age|duration|delay|latency|time)$")
LABELS = {"outcome", "handler", "result", "source", "tier", "reason", "category", "state", "worker", "le"} | {
    *("version", "python", "group", "build")
}


def complaints(families: Iterable[Metric]) -> list[str]:
    """A sentence for each rule that one of *families*, ours alone, does not keep."""
    found: list[str] = []
    names: set[str] = set()
    for family in families:
        if not family.name.startswith("outbox_"):
            continue
        found += [f"{family.name}: {what}" for what in _of(family)]
        if family.name in names:
            found.append(f"{family.name}: shown twice")
        names.add(family.name)
    return found


def _of(family: Metric) -> Iterable[str]:
    if not _NAME.fullmatch(family.name):
        yield "want a lower-case name with the process's prefix"
    if _UNITS.search(family.name):
        yield "want a base unit, seconds or bytes, at its end"
    if not family.documentation.endswith(".") or len(family.documentation) < len("Whether 1."):
        yield "want a sentence of help"
    for sample in family.samples:
        if family.type == "counter" and not sample.name.endswith("_total"):
            yield f"want _total at the end of a counter, got {sample.name}"
        if family.type == "gauge" and sample.name.endswith("_total"):
            yield f"want _total at the end of counters alone, got {sample.name}"
        if strange := sample.labels.keys() - LABELS:
            yield f"want none but known labels, which are bounded, got {sorted(strange)}"
