"""What is observed is counted as Prometheus counts it."""

import math

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client import Histogram as Reference
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.parser import text_string_to_metric_families

from outbox.shell.histogram import DELAY_S, DURATION_S, Histogram
from outbox.shell.metrics import add_histogram


@given(st.lists(st.one_of(st.floats(min_value=0, max_value=5000), st.sampled_from(DELAY_S)), max_size=50))
def test_it_says_the_same_as_the_client_library(values: list[float]) -> None:
    ours, registry = Histogram(DELAY_S), CollectorRegistry()
    theirs = Reference("t", "t", buckets=DELAY_S, registry=registry)
    for value in values:
        ours.observe(value)
        theirs.observe(value)
    told = {
        float(sample.labels["le"]): sample.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
        if sample.name == "t_bucket"
    }
    assert dict(ours.buckets()) == told
    assert math.isclose(ours.sum, registry.get_sample_value("t_sum") or 0.0)
    assert ours.count == registry.get_sample_value("t_count")


def test_what_is_earlier_by_another_clock_counts_as_nothing_and_never_lowers_the_sum() -> None:
    histogram = Histogram(DURATION_S)
    histogram.observe(-3.0)
    assert (histogram.sum, histogram.count, histogram.buckets()[0]) == (0.0, 1, (0.001, 1))


def test_it_is_shown_under_its_labels() -> None:
    histogram, family = Histogram((0.5, 1.0)), HistogramMetricFamily("t", "t", labels=["tier"])
    histogram.observe(0.7)
    add_histogram(family, histogram, "bulk")
    told = {(one.name, one.labels.get("le"), one.labels["tier"]): one.value for one in family.samples}
    assert told == {
        ("t_bucket", "0.5", "bulk"): 0,
        ("t_bucket", "1.0", "bulk"): 1,
        ("t_bucket", "+Inf", "bulk"): 1,
        ("t_count", None, "bulk"): 1,
        ("t_sum", None, "bulk"): 0.7,
    }
