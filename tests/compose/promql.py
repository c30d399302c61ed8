"""What dashboard and alerts ask for, and whether it was served."""

import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import promql_parser
import yaml
from prometheus_client.core import Metric

from tests.compose.deployment import COMPOSE

DASHBOARD: dict[str, Any] = json.loads((COMPOSE / "grafana" / "dashboards" / "fairpost.json").read_text())
RULES = [
    rule
    for group in yaml.safe_load((COMPOSE / "prometheus" / "alerts.yml").read_text())["groups"]
    for rule in group["rules"]
]
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
#: What Prometheus adds to whatever it reads.
_OWN = {"job", "instance"}
_LABEL = re.compile(r"\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}")


def expressions() -> Iterator[tuple[str, str, str]]:
    """Where each stands, what it is, and the text that shows its labels."""
    for rule in RULES:
        yield rule["alert"], rule["expr"], " ".join(rule["annotations"].values())
    for panel in PANELS:
        for target in panel["targets"]:
            yield panel["title"], target["expr"], target["legendFormat"]


@dataclass(slots=True)
class Asked:
    """*metrics* has the labels that each is chosen by, and the value if it is exact; *kept* are those grouped by."""

    metrics: dict[str, dict[str, str | None]] = field(default_factory=dict)
    kept: set[str] = field(default_factory=set)


def asked_by(expression: str) -> Asked:
    """What *expression* asks for. Raises ValueError: it is no PromQL."""
    # Grafana puts a duration there.
    asked = Asked()
    for node in _nodes(promql_parser.parse(expression.replace("$__rate_interval", "5m"))):
        match node:
            case promql_parser.VectorSelector():
                chosen = asked.metrics.setdefault(node.name or "", {})
                for matcher in node.matchers.matchers:
                    is_exact = matcher.op == promql_parser.MatchOp.Equal
                    chosen[matcher.name] = matcher.value if is_exact else None
            case promql_parser.AggregateExpr() if node.modifier is not None:
                asked.kept |= set(node.modifier.labels)
    return asked


def _nodes(node: Any) -> Iterator[Any]:
    yield node
    for name in ("lhs", "rhs", "expr", "param", "vector_selector"):
        below = getattr(node, name, None)
        if below is not None and type(below).__module__ == type(node).__module__:
            yield from _nodes(below)
    for argument in getattr(node, "args", ()):
        yield from _nodes(argument)


class Served:
    """What was served: by name the values of each label."""

    def __init__(self, families: Iterable[Metric], *, jobs: Collection[str]) -> None:
        """*jobs* are those that Prometheus has."""
        self._jobs = set(jobs)
        self.samples: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
        for family in families:
            for sample in family.samples:
                labels = self.samples[sample.name]
                for label, value in sample.labels.items():
                    labels[label].add(value)

    def problems(self, expression: str, shown: str) -> list[str]:
        """What *expression*, and the text *shown* beside it, ask for and is not served."""
        asked, found = asked_by(expression), []
        known = set(_OWN)
        for name, chosen in asked.metrics.items():
            labels = self._labels(name)
            if labels is None:
                found.append(f"{name}: not served")
                continue
            known |= labels.keys()
            found += [f"{name}: has no label {label}" for label in chosen if label not in {*labels, *_OWN}]
            found += [
                f'{name}: {label}="{value}" is not served'
                for label, value in chosen.items()
                if value is not None and label in labels and value not in labels[label]
            ]
        found += [f"{label}: a label of nothing asked for" for label in asked.kept - known]
        return found + [f"{label}: shown, and not there" for label in _LABEL.findall(shown) if label not in known]

    def _labels(self, name: str) -> dict[str, set[str]] | None:
        if name == "up":
            return {"job": self._jobs, "instance": set()}
        return dict(self.samples[name]) if name in self.samples else None
