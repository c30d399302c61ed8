"""What the ``outbox`` command reads from the environment."""

import os
from typing import Final

from pydantic import BaseModel

from outbox.errors import ConfigError
from outbox.shell.settings import BrokerName, BrokerUrl, DatabaseUrl, LogFormat, LogLevel, QueuesUrl, load

PREFIX: Final = "OUTBOX_"


class AdminSettings(BaseModel):
    """The database to work on, and how to log."""

    database_url: DatabaseUrl
    broker: BrokerName = "rabbitmq"
    rabbitmq_url: BrokerUrl | None = None
    broker_database_url: QueuesUrl = None
    log_level: LogLevel = "warning"
    log_format: LogFormat = "auto"


def database_url() -> str:
    """The address in the environment. Raises ConfigError naming everything that is wrong with it."""
    return settings().database_url.get_secret_value()


def broker_url() -> str:
    """The broker's address in the environment. Raises ConfigError if there is none, or something is wrong."""
    url = settings().rabbitmq_url
    if url is None:
        raise ConfigError(f"{PREFIX}RABBITMQ_URL: want the broker's address, got none")
    return url.get_secret_value()


def settings() -> AdminSettings:
    """What the environment says. Raises ConfigError naming everything that is wrong with it."""
    return load(AdminSettings, prefix=PREFIX, environment=os.environ)
