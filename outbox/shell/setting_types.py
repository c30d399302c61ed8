"""The types of settings that several processes have, each with what it says of itself and what it refuses."""

import ipaddress
import re
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, SecretStr, ValidationInfo
from pydantic_core import PydanticCustomError

from outbox.shell.secrets import shown_url
from outbox.topology import QueueKind

_DATABASE_SCHEME: Final = re.compile(r"postgres(ql)?(\+\w+)?")  # an app's driver is its own business
_BROKER_SCHEMES: Final = ("amqp", "amqps")
_CONNINFO: Final = re.compile(r"\s*\w+\s*=")
_DATABASE_FORM: Final = "postgresql://user:password@host:port/database"
_BROKER_FORM: Final = "amqp://user:password@host:port/vhost"


def _database_url(value: SecretStr) -> SecretStr:
    text = value.get_secret_value()
    scheme, mark, _ = text.partition("://")
    if (mark and _DATABASE_SCHEME.fullmatch(scheme)) or (not mark and _CONNINFO.match(text)):
        return value
    raise ValueError(f"want {_DATABASE_FORM}, got {shown_url(text)!r}")


def _broker_url(value: SecretStr) -> SecretStr:
    text = value.get_secret_value()
    scheme, mark, _ = text.partition("://")
    if mark and scheme in _BROKER_SCHEMES:
        return value
    raise ValueError(f"want {_BROKER_FORM}, got {shown_url(text)!r}")


DatabaseUrl = Annotated[SecretStr, AfterValidator(_database_url), Field(examples=[_DATABASE_FORM])]
"""A PostgreSQL URL, SQLAlchemy's with any driver's name too, or a libpq ``key=value`` string."""

BrokerUrl = Annotated[SecretStr, AfterValidator(_broker_url), Field(examples=[_BROKER_FORM])]
"""An AMQP 0-9-1 URL."""

BrokerName = Literal["rabbitmq", "postgres"]
"""Where queues are. A field of this type stands before those whose types ask for it below, and is named ``broker``."""


def _rabbitmq_url(value: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
    if value is None and info.data.get("broker") == "rabbitmq":
        raise PydanticCustomError("missing", "missing")
    return value


def _queues_url(value: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
    if value is not None and info.data.get("broker") == "rabbitmq":
        raise ValueError("want OUTBOX_BROKER=postgres with it, got rabbitmq")
    return value


def _queue_kind(value: QueueKind, info: ValidationInfo) -> QueueKind:
    if info.data.get("broker") == "postgres":
        raise ValueError(f"want OUTBOX_BROKER=rabbitmq with {value}, got postgres, whose queues are of one kind")
    return value


Broker = Annotated[
    BrokerName,
    Field(
        description="Where queues are: in RabbitMQ, or in PostgreSQL alone. Must be the same in every process."
        " `postgres` needs no RabbitMQ address, and has no kinds of queue."
    ),
]
RabbitUrl = Annotated[
    BrokerUrl | None,
    AfterValidator(_rabbitmq_url),
    Field(
        validate_default=True,
        description="Where RabbitMQ is, `amqps://` with TLS. Required with the broker `rabbitmq`, not read with"
        " `postgres`.",
    ),
]
"""Where RabbitMQ is: required where ``broker`` says so, and not read where it does not."""

QueuesUrl = Annotated[
    DatabaseUrl | None,
    AfterValidator(_queues_url),
    Field(
        description="With the broker `postgres`: the database with the `outbox_broker` tables, where it is not this"
        " process's own."
    ),
]
"""The database that queues are in, if it is not the process's own."""

KindOfQueue = Annotated[
    QueueKind,
    AfterValidator(_queue_kind),
    Field(
        description="The kind of the queues in RabbitMQ. A queue's arguments cannot change once it exists, so this must"
        " be the same in every process from the first start on."
    ),
]


def _address(value: str) -> str:
    try:
        return str(ipaddress.ip_address(value))
    except ValueError:
        raise ValueError(f"want an IP address, as 127.0.0.1, or 0.0.0.0 for all, got {value[:40]!r}") from None


Address = Annotated[
    str,
    AfterValidator(_address),
    Field(
        examples=["an IP address, as 127.0.0.1"],
        description="The address at which `/live`, `/ready` and `/metrics` answer, without a password; `0.0.0.0` is all"
        " addresses of the machine, only where a network keeps others out, as in a container.",
    ),
]
"""An IP address of this machine; ``0.0.0.0`` and ``::`` are all of them."""

Port = Annotated[int, Field(ge=0, le=65535, description="The port of health and metrics; 0 lets the system choose.")]
"""A TCP port; 0 lets the system choose one."""

LogLevel = Annotated[
    Literal["debug", "info", "warning", "error"], Field(description="The least urgent log records that are written.")
]
LogFormat = Annotated[
    Literal["auto", "json", "console"],
    Field(
        description="How log records are written: `json`, `console` for people, or `auto`: `console` on a terminal and"
        " `json` elsewhere."
    ),
]
StartS = Annotated[
    float,
    Field(
        ge=0,
        le=3_600,
        description="Seconds that database and broker may be away when the process starts; later it waits for them.",
    ),
]
