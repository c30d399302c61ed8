"""Settings are read together and refused together."""

import pytest
from pydantic import BaseModel, ConfigDict, Field

from outbox.errors import ConfigError
from outbox.shell.setting_sources import collect
from outbox.shell.setting_types import Address, BrokerUrl, DatabaseUrl, LogLevel, Port
from outbox.shell.settings import load, read

PREFIX = "OUTBOX_RELAY_"
DATABASE = "postgresql://app:s3cret@db/app"


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True)

    database_url: DatabaseUrl
    rabbitmq_url: BrokerUrl | None = None
    log_level: LogLevel = "info"
    health_host: Address = "127.0.0.1"
    health_port: Port = 0
    chunk: int = Field(default=200, ge=1, le=10000)
    lease_s: float = Field(default=15.0, gt=0)


def _load(**environment: str) -> _Settings:
    return load(_Settings, prefix=PREFIX, environment=environment)


def _refusal(**environment: str) -> str:
    with pytest.raises(ConfigError) as caught:
        _load(**environment)
    return str(caught.value)


def test_the_most_special_name_of_a_variable_wins() -> None:
    names = ["OUTBOX_RELAY_DATABASE_URL", "OUTBOX_DATABASE_URL", "DATABASE_URL"]
    environment = {name: f"postgresql://{name.lower()}/d" for name in names}
    while environment:
        winner = names[-len(environment)]
        assert _load(**environment).database_url.get_secret_value() == f"postgresql://{winner.lower()}/d"
        del environment[winner]


def test_every_problem_is_told_in_one_message() -> None:
    told = _refusal(
        OUTBOX_RELAY_CHUNK="0", OUTBOX_RELAY_LEASE_S="0", OUTBOX_RELAY_HEALTH_PORT="http", OUTBOX_LOG_LEVEL="loud"
    )
    assert told.split("; ") == [
        "DATABASE_URL (or OUTBOX_DATABASE_URL, OUTBOX_RELAY_DATABASE_URL): missing,"
        " want postgresql://user:password@host:port/database",
        "OUTBOX_LOG_LEVEL: want debug, info, warning or error, got 'loud'",
        "OUTBOX_RELAY_CHUNK: want an integer, 1..10000, got '0'",
        "OUTBOX_RELAY_HEALTH_PORT: want an integer, 0..65535, got 'http'",
        "OUTBOX_RELAY_LEASE_S: want a number, more than 0, got '0'",
    ]


def test_an_unknown_variable_of_ours_is_refused_with_the_nearest_name() -> None:
    told = _refusal(DATABASE_URL=DATABASE, OUTBOX_RELAY_CHUNKS="5", OUTBOX_NONSENSE="1")
    assert told.split("; ") == [
        "OUTBOX_NONSENSE: no such setting",
        "OUTBOX_RELAY_CHUNKS: no such setting, did you mean OUTBOX_RELAY_CHUNK?",
    ]


def test_variables_of_the_other_process_and_of_other_programs_are_left_alone() -> None:
    assert _load(DATABASE_URL=DATABASE, OUTBOX_CONSUMER_SLOTS="8", PATH="/bin", HTTP_PROXY="x").chunk == 200


def test_a_setting_of_one_process_cannot_be_given_for_all() -> None:
    assert "OUTBOX_CHUNK: no such setting" in _refusal(DATABASE_URL=DATABASE, OUTBOX_CHUNK="5")


def test_an_empty_variable_is_not_given_and_a_zero_is() -> None:
    settings = _load(DATABASE_URL=DATABASE, OUTBOX_RELAY_CHUNK="", OUTBOX_RELAY_HEALTH_PORT="0")
    assert (settings.chunk, settings.health_port) == (200, 0)


@pytest.mark.parametrize(
    "address", ["mysql://app:s3cret@db/app", "app:s3cret@db", "amqp://app:s3cret@mq/", "nonsense", "://"]
)
def test_a_wrong_address_is_refused_without_its_password(address: str) -> None:
    told = _refusal(DATABASE_URL=address)
    assert "want postgresql://user:password@host:port/database" in told
    assert "://app:s3cret" not in told


@pytest.mark.parametrize("address", [DATABASE, "postgres://db/a", "postgresql+asyncpg://db/a", "host=db user='a b'"])
def test_every_way_to_write_a_database_is_taken(address: str) -> None:
    assert _load(DATABASE_URL=address).database_url.get_secret_value() == address


def test_no_secret_is_in_what_is_shown_or_printed() -> None:
    given = {"DATABASE_URL": DATABASE, "RABBITMQ_URL": "amqps://u:s3cret@mq/v"}
    reading = read(_Settings, prefix=PREFIX, sources=collect(given))
    assert reading.lines[:2] == [
        "OUTBOX_RELAY_DATABASE_URL=postgresql://app:***@db/app  # environment variable DATABASE_URL",
        "OUTBOX_RELAY_RABBITMQ_URL=amqps://u:***@mq/v  # environment variable RABBITMQ_URL",
    ]
    assert "OUTBOX_RELAY_CHUNK=200  # default" in reading.lines
    assert "s3cret" not in f"{reading.lines} {reading.settings} {reading.settings!r}"


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "::", "10.1.2.3"])
def test_an_address_to_listen_at_is_taken(address: str) -> None:
    assert _load(DATABASE_URL=DATABASE, OUTBOX_RELAY_HEALTH_HOST=address).health_host == address


@pytest.mark.parametrize("address", ["*", "localhost", "0.0.0.0:8081", "127.0.0.0/8"])
def test_what_is_no_address_of_a_machine_is_refused(address: str) -> None:
    told = _refusal(DATABASE_URL=DATABASE, OUTBOX_RELAY_HEALTH_HOST=address)
    assert told == f"OUTBOX_RELAY_HEALTH_HOST: want an IP address, as 127.0.0.1, or 0.0.0.0 for all, got {address!r}"
