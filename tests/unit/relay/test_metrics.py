"""Whatever the engine writes into its gauges is shown, once, by the field's conventions."""

from dataclasses import fields

from prometheus_client import CollectorRegistry

from relay import metrics
from relay.gauges import Gauges
from tests.support.metric_names import complaints

# Readiness alone reads the first; the others are shown together, by reason.
_ELSEWHERE = {
    "stepped_at",
    "slots_kept_unpublished",
    "slots_kept_busy",
    "slots_kept_foreign",
    "oldest_unpublished_s",
    "deferred_rows",
}


def test_every_gauge_is_shown() -> None:
    shown = [*metrics.LEVELS, *metrics.COUNTS, *metrics.TIMES, *metrics.HISTOGRAMS]
    assert sorted([*shown, *_ELSEWHERE]) == sorted(field.name for field in fields(Gauges))


def test_names_and_help_texts_are_as_the_field_has_them() -> None:
    gauges = Gauges(oldest_unpublished_s=3.0, deferred_rows={"dead": 1}, polled_at=1.0, heard_at=1.0)
    registry = CollectorRegistry()
    metrics.register(gauges, registry)
    assert complaints(registry.collect()) == []
    assert registry.get_sample_value("outbox_relay_deferred_events", {"state": "dead"}) == 1


def test_what_is_not_known_yet_is_not_shown_as_a_value() -> None:
    registry = CollectorRegistry()
    metrics.register(Gauges(), registry)
    assert registry.get_sample_value("outbox_relay_published_total") == 0
    for name in ("last_poll_timestamp_seconds", "last_confirm_timestamp_seconds", "oldest_unpublished_seconds"):
        assert registry.get_sample_value(f"outbox_relay_{name}") is None
