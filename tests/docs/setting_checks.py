"""Settings in pages, held against the reader that the processes read theirs with."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pydantic import BaseModel

from consumer.settings import PREFIX as CONSUMER_PREFIX
from consumer.settings import ConsumerSettings
from outbox.shell.setting_sources import Sources, collect
from outbox.shell.setting_table import READ_ELSEWHERE, SHARED
from outbox.shell.settings import read
from outbox_admin.settings import PREFIX as ADMIN_PREFIX
from outbox_admin.settings import AdminSettings
from relay.settings import PREFIX as RELAY_PREFIX
from relay.settings import RelaySettings

_MODELS: Final[dict[str, type[BaseModel]]] = {
    ADMIN_PREFIX: AdminSettings,
    RELAY_PREFIX: RelaySettings,
    CONSUMER_PREFIX: ConsumerSettings,
}
_NAMES: Final = frozenset(
    [
        *READ_ELSEWHERE,
        *(ADMIN_PREFIX + field.upper() for field in SHARED),
        *(prefix + field.upper() for prefix, model in _MODELS.items() for field in model.model_fields),
    ]
)
# What every process needs and no page has to repeat; a page's own goes before it.
_ADDRESSES: Final = {"DATABASE_URL": "postgresql://user@host/database", "RABBITMQ_URL": "amqp://user@host/vhost"}


def name_problems(name: str) -> list[str]:
    """One sentence if *name* looks like a setting of ours and is none."""
    return [f"{name}: no such setting"] if name.startswith("OUTBOX_") and name not in _NAMES else []


def variable_problems(values: Mapping[str, str]) -> list[str]:
    """What is wrong with *values* as an environment. Values that a shell or a reader fills in are not looked at."""
    found = [problem for name in values for problem in name_problems(name)]
    plain = {name: value for name, value in values.items() if name in _NAMES - READ_ELSEWHERE.keys()}
    plain |= {name: value for name, value in values.items() if name in _ADDRESSES}
    if any(mark in value for value in plain.values() for mark in ("$", "...", "<")):
        return found
    return found + _problems(collect(_ADDRESSES | plain))


def toml_problems(text: str) -> list[str]:
    """What is wrong with *text* as ``outbox.toml``."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "outbox.toml").write_text(text)
        return _problems(collect(_ADDRESSES, directory=Path(directory)))


def _problems(sources: Sources) -> list[str]:
    readings = [read(model, prefix=prefix, sources=sources) for prefix, model in _MODELS.items()]
    return sorted({problem for reading in readings for problem in reading.problems})
