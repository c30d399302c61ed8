"""Settings: read once from an environment that is handed in, checked together, refused in one message.

A setting named ``lease_s`` of a process with the prefix ``OUTBOX_RELAY_`` is the variable
``OUTBOX_RELAY_LEASE_S``. The few that all processes have (``SHARED``) may also be given for all of them,
as ``OUTBOX_LOG_LEVEL``; the two addresses also by the names that platforms give them. The more special name wins.
"""

import difflib
import ipaddress
import json
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Final, Literal, TypeVar, get_origin

from pydantic import AfterValidator, BaseModel, Field, SecretStr, ValidationError, ValidationInfo
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from outbox.errors import ConfigError
from outbox.shell.secrets import masked, shown_url
from outbox.topology import QueueKind

M = TypeVar("M", bound=BaseModel)

SHARED: Final = (
    "database_url",
    "broker",
    "rabbitmq_url",
    "broker_database_url",
    "log_level",
    "log_format",
    "queue_kind",
)
_COMMON_PREFIX: Final = "OUTBOX_"
_PREFIXES: Final = ("OUTBOX_RELAY_", "OUTBOX_CONSUMER_")
_PLATFORM_NAMES: Final = {"database_url": "DATABASE_URL", "rabbitmq_url": "RABBITMQ_URL"}
_DATABASE_SCHEMES: Final = ("postgresql", "postgres", "postgresql+psycopg")
_BROKER_SCHEMES: Final = ("amqp", "amqps")
_CONNINFO: Final = re.compile(r"\s*\w+\s*=")
_COLLECTIONS: Final = (list, tuple, set, frozenset, dict)
_BOUNDS: Final = {"ge": "{} or more", "gt": "more than {}", "le": "{} or less", "lt": "less than {}"}


def _database_url(value: SecretStr) -> SecretStr:
    text = value.get_secret_value()
    scheme, mark, _ = text.partition("://")
    if (mark and scheme in _DATABASE_SCHEMES) or (not mark and _CONNINFO.match(text)):
        return value
    raise ValueError(f"want postgresql://user:password@host:port/database, got {shown_url(text)!r}")


def _broker_url(value: SecretStr) -> SecretStr:
    text = value.get_secret_value()
    scheme, mark, _ = text.partition("://")
    if mark and scheme in _BROKER_SCHEMES:
        return value
    raise ValueError(f"want amqp://user:password@host:port/vhost, got {shown_url(text)!r}")


def _address(value: str) -> str:
    try:
        return str(ipaddress.ip_address(value))
    except ValueError:
        raise ValueError(f"want an IP address, as 127.0.0.1, or 0.0.0.0 for all, got {value[:40]!r}") from None


DatabaseUrl = Annotated[SecretStr, AfterValidator(_database_url)]
"""A PostgreSQL URL, SQLAlchemy's ``postgresql+psycopg`` too, or a libpq ``key=value`` string."""

BrokerUrl = Annotated[SecretStr, AfterValidator(_broker_url)]
"""An AMQP 0-9-1 URL."""

BrokerName = Literal["rabbitmq", "postgres"]
"""Where queues are. A field of this type stands before those whose types ask for it below, and is named ``broker``."""


def _rabbitmq_url(value: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
    if value is None and info.data.get("broker") == "rabbitmq":
        raise ValueError("missing, and so is OUTBOX_BROKER=postgres for queues in PostgreSQL")
    return value


def _queues_url(value: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
    if info.data.get("broker") == "rabbitmq":
        raise ValueError("want OUTBOX_BROKER=postgres with it, got rabbitmq")
    return value


def _queue_kind(value: QueueKind, info: ValidationInfo) -> QueueKind:
    if info.data.get("broker") == "postgres":
        raise ValueError(f"want OUTBOX_BROKER=rabbitmq with {value}, got postgres, whose queues are of one kind")
    return value


RabbitUrl = Annotated[BrokerUrl | None, AfterValidator(_rabbitmq_url), Field(validate_default=True)]
"""Where RabbitMQ is: required where ``broker`` says so, and not read where it does not."""

QueuesUrl = Annotated[DatabaseUrl | None, AfterValidator(_queues_url)]
"""The database that queues are in, if it is not the process's own."""

KindOfQueue = Annotated[QueueKind, AfterValidator(_queue_kind)]

Port = Annotated[int, Field(ge=0, le=65535)]
"""A TCP port; 0 lets the system choose one."""

Address = Annotated[str, AfterValidator(_address)]
"""An IP address of this machine; ``0.0.0.0`` and ``::`` are all of them."""

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["auto", "json", "console"]


def load(model: type[M], *, prefix: str, environment: Mapping[str, str]) -> M:
    """The settings that *environment* gives to *model*.

    An empty variable counts as not given. A collection is written as JSON.

    Args:
        model: a pydantic model with one field per setting.
        prefix: that of the process, such as ``OUTBOX_RELAY_``.

    Raises:
        ConfigError: something is missing, wrong or unknown; the message names all of it.
    """
    given = {name: value for name, value in environment.items() if value != ""}
    problems: list[str] = list(_unknown(model, prefix, given))
    values, found = _collected(model, prefix, given)
    try:
        settings = model.model_validate(values)
    except ValidationError as error:
        problems += [_problem(model, prefix, found, detail) for detail in error.errors(include_url=False)]
    if problems:
        raise ConfigError("; ".join(sorted(problems)))
    return settings


def shown(settings: BaseModel, *, prefix: str) -> list[tuple[str, str]]:
    """Every setting by its variable's name, with its value as it may be printed: no secret in it."""
    lines = []
    for field in type(settings).model_fields:
        value = getattr(settings, field)
        text = shown_url(value.get_secret_value()) if isinstance(value, SecretStr) else str(value)
        lines.append((_names(field, prefix)[0], text))
    return lines


def _names(field: str, prefix: str) -> list[str]:
    """The variables that give *field*, the one that wins first."""
    names = [prefix + field.upper()]
    if field in SHARED:
        names.append(_COMMON_PREFIX + field.upper())
    if field in _PLATFORM_NAMES:
        names.append(_PLATFORM_NAMES[field])
    return list(dict.fromkeys(names))


def _collected(
    model: type[BaseModel], prefix: str, given: Mapping[str, str]
) -> tuple[dict[str, object], dict[str, str]]:
    """The values by field, and the name of the variable that gave each."""
    values: dict[str, object] = {}
    found: dict[str, str] = {}
    for field, info in model.model_fields.items():
        name = next((name for name in _names(field, prefix) if name in given), None)
        if name is not None:
            values[field] = _parsed(given[name], info)
            found[field] = name
    return values, found


def _parsed(text: str, info: FieldInfo) -> object:
    """*text*, or what it says as JSON where the field is a collection."""
    if get_origin(info.annotation) not in _COLLECTIONS:
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


def _unknown(model: type[BaseModel], prefix: str, given: Mapping[str, str]) -> Iterator[str]:
    """A complaint for each variable that is meant for this process, or for all, and that nothing reads."""
    own = {prefix + field.upper() for field in model.model_fields}
    known = own | {_COMMON_PREFIX + field.upper() for field in SHARED}
    others = tuple(other for other in _PREFIXES if other != prefix)
    for name in given:
        if name.startswith(_COMMON_PREFIX) and not name.startswith(others) and name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
            yield f"{name}: no such setting" + (f", did you mean {near[0]}?" if near else "")


def _problem(model: type[BaseModel], prefix: str, found: Mapping[str, str], detail: ErrorDetails) -> str:
    if not detail["loc"]:
        return _reason(detail)
    field = str(detail["loc"][0])
    info = model.model_fields[field]
    if detail["type"] == "missing":
        return f"{' or '.join(_names(field, prefix))}: missing"
    if detail["type"] == "value_error":
        return f"{found.get(field) or ' or '.join(_names(field, prefix))}: {_reason(detail)}"
    came = "a secret" if info.annotation is SecretStr else repr(detail["input"])
    return f"{found[field]}: want {_wanted(info, detail)}, got {masked(came)}"


def _reason(detail: ErrorDetails) -> str:
    """What a validator of ours said, without pydantic's preface."""
    return detail["msg"].removeprefix("Value error, ")


def _wanted(info: FieldInfo, detail: ErrorDetails) -> str:
    if detail["type"] == "literal_error":
        return str(detail.get("ctx", {}).get("expected", "another value"))
    bounds = {name: getattr(part, name) for part in info.metadata for name in _BOUNDS if hasattr(part, name)}
    kind = "" if info.annotation not in (int, float) else "an integer" if info.annotation is int else "a number"
    if {"ge", "le"} <= bounds.keys():
        limits = f"{bounds['ge']}..{bounds['le']}"
    else:
        limits = " and ".join(_BOUNDS[name].format(bound) for name, bound in bounds.items())
    known = f"{kind}, {limits}" if kind and limits else kind or limits
    return known or detail["msg"].removeprefix("Input should be ")
