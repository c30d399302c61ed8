"""What every process shows of itself as Prometheus reads it. Imported where prometheus-client is known to be there."""

import math
import platform
from collections.abc import Mapping
from importlib.metadata import version

from prometheus_client.core import HistogramMetricFamily, InfoMetricFamily

from outbox.shell.histogram import Histogram


def build_info(name: str, more: Mapping[str, str] | None = None) -> InfoMetricFamily:
    """``NAME_build_info``, which is 1: its labels say which version runs, on what, and *more*."""
    labels = {"version": version("fairpost"), "python": platform.python_version(), **(more or {})}
    return InfoMetricFamily(f"{name}_build", "What runs: 1, its labels tell.", value=labels)


def add_histogram(family: HistogramMetricFamily, histogram: Histogram, *labels: str) -> None:
    """Show *histogram* in *family*, under the values of its labels."""
    buckets = [("+Inf" if math.isinf(bound) else repr(bound), count) for bound, count in histogram.buckets()]
    family.add_metric(list(labels), buckets, histogram.sum)
