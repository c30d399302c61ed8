"""The consumer's settings: defaults that hold, and every problem told at once."""

import pytest

from consumer import event_loop
from consumer.limits import Limits
from consumer.settings import PREFIX, ConsumerSettings
from outbox.errors import ConfigError
from outbox.event import Tier
from outbox.shell.setting_sources import collect
from outbox.shell.settings import load, read

SERVICES = {"DATABASE_URL": "postgresql://shop@db/shop", "RABBITMQ_URL": "amqp://shop:secret@mq/"}


def test_the_defaults_are_those_of_the_engine() -> None:
    settings = load(ConsumerSettings, prefix=PREFIX, environment=SERVICES)
    assert settings.limits == Limits()


def test_a_setting_reaches_the_engine() -> None:
    given = {**SERVICES, "OUTBOX_CONSUMER_SLOTS": "20", "OUTBOX_CONSUMER_HORIZON_DAYS": "7.5"}
    limits = load(ConsumerSettings, prefix=PREFIX, environment=given).limits
    assert limits.slots == 20
    assert limits.horizon.total_seconds() == 7.5 * 86_400


def test_tiers_are_named_in_any_order_and_those_that_do_not_exist_are_refused() -> None:
    given = {**SERVICES, "OUTBOX_CONSUMER_TIERS": "bulk, interactive"}
    assert load(ConsumerSettings, prefix=PREFIX, environment=given).limits.tiers == (Tier.INTERACTIVE, Tier.BULK)
    for wrong in (",", "interactive,,bulk", "urgent"):
        with pytest.raises(ConfigError, match="want some of interactive,standard,bulk, got"):
            load(ConsumerSettings, prefix=PREFIX, environment={**SERVICES, "OUTBOX_CONSUMER_TIERS": wrong})


def test_every_problem_is_told_at_once_and_no_secret_with_it() -> None:
    given = {
        "DATABASE_URL": "mysql://shop:hunter2@db/shop",
        "OUTBOX_CONSUMER_SLOTS": "1",
        "OUTBOX_CONSUMER_PREFETC": "2",
        "OUTBOX_CONSUMER_DRAIN_S": "soon",
    }
    with pytest.raises(ConfigError) as refused:
        load(ConsumerSettings, prefix=PREFIX, environment=given)
    told = str(refused.value)
    for name in (
        "DATABASE_URL",
        "RABBITMQ_URL",
        "SLOTS",
        "PREFETC",
        "did you mean OUTBOX_CONSUMER_PREFETCH",
        "DRAIN_S",
    ):
        assert name in told
    assert "hunter2" not in told


@pytest.mark.parametrize(
    "url",
    ["hooks.chat.example/s3cret", "file:///s3cret", "https:///s3cret", "https://u:s3cret@h/", "https://h/s3cret x"],
)
def test_an_alert_target_that_cannot_be_one_is_refused_without_being_repeated(url: str) -> None:
    with pytest.raises(ConfigError, match="ALERT_URL: want ") as refused:
        load(ConsumerSettings, prefix=PREFIX, environment={**SERVICES, "OUTBOX_CONSUMER_ALERT_URL": url})
    assert "s3cret" not in str(refused.value)


def test_an_alert_target_is_shown_by_its_host_alone() -> None:
    given = {**SERVICES, "OUTBOX_CONSUMER_ALERT_URL": "https://hooks.chat.example/s3cret"}
    lines = read(ConsumerSettings, prefix=PREFIX, sources=collect(given)).lines
    name = "OUTBOX_CONSUMER_ALERT_URL"
    assert f"{name}=https://hooks.chat.example/***  # environment variable {name}" in lines


def test_a_loop_that_is_not_installed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {**SERVICES, "OUTBOX_CONSUMER_LOOP": "uvloop"}
    assert load(ConsumerSettings, prefix=PREFIX, environment=given).loop == "uvloop"
    monkeypatch.setattr(event_loop, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match="LOOP: want uvloop installed, got none of it: pip install uvloop"):
        load(ConsumerSettings, prefix=PREFIX, environment=given)
