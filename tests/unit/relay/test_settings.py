"""Settings that are wrong only together."""

import pytest

from outbox.errors import ConfigError
from outbox.shell.settings import load
from relay.settings import PREFIX, RelaySettings

ADDRESSES = {"DATABASE_URL": "postgresql://localhost/shop", "RABBITMQ_URL": "amqp://localhost"}


def test_counters_are_kept_for_longer_than_an_event_can_wait_to_be_handled() -> None:
    """A key that is forgotten sooner begins anew while its last event still waits, and overtakes it."""
    settings = {"OUTBOX_RELAY_RETENTION_DAYS": "5", "OUTBOX_RELAY_ORDERING_RETENTION_DAYS": "18.9"}
    with pytest.raises(ConfigError, match=r"OUTBOX_RELAY_ORDERING_RETENTION_DAYS: want at least .* 19, got 18.9"):
        load(RelaySettings, prefix=PREFIX, environment=ADDRESSES | settings)
    settings["OUTBOX_RELAY_ORDERING_RETENTION_DAYS"] = "19"
    assert (
        load(RelaySettings, prefix=PREFIX, environment=ADDRESSES | settings).upkeep.ordering_retention_s == 19 * 86_400
    )
