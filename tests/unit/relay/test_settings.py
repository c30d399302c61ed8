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


def test_queues_in_postgresql_need_no_broker_of_their_own() -> None:
    given = {"DATABASE_URL": "postgresql://localhost/shop", "OUTBOX_BROKER": "postgres"}
    settings = load(RelaySettings, prefix=PREFIX, environment=given | {"RABBITMQ_URL": "amqp://for/others"})
    assert (settings.broker, settings.broker_database_url) == ("postgres", None)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            {"RABBITMQ_URL": ""},
            "RABBITMQ_URL (or OUTBOX_RABBITMQ_URL, OUTBOX_RELAY_RABBITMQ_URL): missing,"
            " want amqp://user:password@host:port/vhost, or OUTBOX_BROKER=postgres for queues in PostgreSQL",
        ),
        (
            {"OUTBOX_BROKER_DATABASE_URL": "postgresql://localhost/queues"},
            "OUTBOX_BROKER_DATABASE_URL: want OUTBOX_BROKER=postgres with it, got rabbitmq",
        ),
        (
            {"OUTBOX_RELAY_BROKER": "postgres", "OUTBOX_QUEUE_KIND": "classic"},
            "OUTBOX_QUEUE_KIND: want OUTBOX_BROKER=rabbitmq with classic, got postgres, whose queues are of one kind",
        ),
        ({"OUTBOX_BROKER": "nats"}, "OUTBOX_BROKER: want rabbitmq or postgres, got 'nats'"),
    ],
)
def test_what_does_not_go_with_the_broker_is_one_sentence(given: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(RelaySettings, prefix=PREFIX, environment=ADDRESSES | given)
    assert str(refused.value) == told
