"""What the ``outbox`` command reads: the same sources as the processes."""

import os
from pathlib import Path
from typing import Annotated, Final

from pydantic import BaseModel, Field

from outbox.errors import ConfigError
from outbox.shell.setting_types import Broker, BrokerUrl, DatabaseUrl, LogFormat, LogLevel, QueuesUrl
from outbox.shell.settings import load

PREFIX: Final = "OUTBOX_"


class AdminSettings(BaseModel):
    """The database to work on, the broker, and how to log."""

    database_url: Annotated[DatabaseUrl, Field(description="The database to migrate, to look at or to mend.")]
    broker: Broker = "rabbitmq"
    rabbitmq_url: Annotated[
        BrokerUrl | None,
        Field(description="Where RabbitMQ is; only commands that ask for a tenant's or a group's queues need it."),
    ] = None
    broker_database_url: QueuesUrl = None
    log_level: LogLevel = "warning"
    log_format: LogFormat = "auto"


def database_url() -> str:
    """The database's address. Raises ConfigError naming everything that is wrong with the settings."""
    return settings().database_url.get_secret_value()


def broker_url() -> str:
    """The broker's address. Raises ConfigError if there is none, or something is wrong with the settings."""
    url = settings().rabbitmq_url
    if url is None:
        raise ConfigError("RABBITMQ_URL: missing, want the broker's address, or OUTBOX_BROKER=postgres")
    return url.get_secret_value()


def settings() -> AdminSettings:
    """What is set. Raises ConfigError naming everything that is wrong with it."""
    return load(AdminSettings, prefix=PREFIX, environment=os.environ, directory=Path())
