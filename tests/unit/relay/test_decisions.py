import random
from itertools import pairwise

import pytest

from outbox.errors import ConfigError
from outbox.shell.settings import load
from relay.decide.cadence import poll_interval_s
from relay.limits import Limits
from relay.log.deferred import State, fate
from relay.ports import Category
from relay.settings import PREFIX, RelaySettings

ADDRESSES = {"DATABASE_URL": "postgresql://app@db/shop", "RABBITMQ_URL": "amqp://app@broker/"}


def test_the_relay_looks_often_after_an_event_and_rarely_after_a_quiet_while() -> None:
    intervals = [poll_interval_s(quiet, busy_s=0.005, idle_s=0.5) for quiet in (0.0, 0.01, 0.8, 4.0, 1e9)]
    assert intervals == [0.005, 0.005, 0.1, 0.5, 0.5]


def test_looks_between_two_events_are_few_however_far_apart_they_are() -> None:
    quiet, looks = 0.0, 0
    while quiet < 3600.0:
        quiet += poll_interval_s(quiet, busy_s=0.005, idle_s=600.0)
        looks += 1
    assert looks < 120


def test_an_event_is_retried_with_growing_waits_and_dead_after_its_last_attempt() -> None:
    rng = random.Random(1)
    fates = [
        fate(Category.UNROUTABLE, attempts=number, attempts_max=5, is_void=False, rng=rng) for number in range(1, 6)
    ]
    assert [one.state for one in fates] == ["retry"] * 4 + ["dead"]
    assert all(low.delay_s < high.delay_s for low, high in pairwise(fates[:4]))


def test_an_event_that_is_too_large_is_dead_at_once_since_no_later_try_can_end_otherwise() -> None:
    assert fate(Category.TOO_LARGE, attempts=1, attempts_max=5, is_void=False, rng=random.Random(1)).is_dead


@pytest.mark.parametrize("category", Category)
def test_a_void_is_tried_again_until_it_is_published_since_nothing_else_moves_its_key(category: Category) -> None:
    again = fate(category, attempts=1_000, attempts_max=5, is_void=True, rng=random.Random(1))
    assert again.state is State.VOID
    assert 0 < again.delay_s <= 15 * 60


def test_the_settings_defaults_are_the_engines() -> None:
    settings = load(RelaySettings, prefix=PREFIX, environment=ADDRESSES)
    assert settings.limits == Limits()
    assert settings.retention_s == 7 * 86_400


def test_every_wrong_setting_is_named_at_once() -> None:
    wrong = {**ADDRESSES, "OUTBOX_RELAY_WINDOW": "0", "OUTBOX_RELAY_CHUNK": "many", "OUTBOX_RELAY_LEES_S": "3"}
    with pytest.raises(ConfigError) as caught:
        load(RelaySettings, prefix=PREFIX, environment=wrong)
    for name in ("OUTBOX_RELAY_WINDOW", "OUTBOX_RELAY_CHUNK", "OUTBOX_RELAY_LEES_S: no such setting, did you mean"):
        assert name in str(caught.value)


def test_a_busy_poll_slower_than_the_idle_one_is_refused() -> None:
    wrong = {**ADDRESSES, "OUTBOX_RELAY_BUSY_POLL_MS": "900", "OUTBOX_RELAY_IDLE_POLL_MS": "800"}
    with pytest.raises(
        ConfigError, match="OUTBOX_RELAY_IDLE_POLL_MS: want at least OUTBOX_RELAY_BUSY_POLL_MS, 900, got 800"
    ):
        load(RelaySettings, prefix=PREFIX, environment=wrong)
