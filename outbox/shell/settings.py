"""Settings: read once from sources that are handed in, checked together, refused in one message.

A setting named ``lease_s`` of a process with the prefix ``OUTBOX_RELAY_`` is the variable ``OUTBOX_RELAY_LEASE_S``, in
the environment or a ``.env`` file, and the key ``lease_s`` under ``[relay]`` in a TOML file. The few that all processes
have (``SHARED``) may also be given for all of them, as ``OUTBOX_LOG_LEVEL`` or under ``[outbox]``; the two addresses
also by the names that platforms give them. The first source that has any of its names wins; in one source the more
special name.

Not pydantic-settings: it merges its sources before anybody can ask which of them, under which name, gave a value, and
ignores variables that nothing reads. Its own parts do the work here: pydantic, python-dotenv, tomllib.
"""

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from outbox.errors import ConfigError
from outbox.shell.secrets import masked
from outbox.shell.setting_sources import (
    COMMON_PREFIX,
    PREFIXES,
    Source,
    Sources,
    collect,
    section_of,
)
from outbox.shell.setting_table import READ_ELSEWHERE, SHARED, Setting, settings_of

M = TypeVar("M", bound=BaseModel)

DEFAULT: Final = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One name in one source; *value* is None where it is not given there."""

    place: str
    origin: str
    value: object


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A setting and every place that it is read from, the one that wins first."""

    setting: Setting
    candidates: tuple[Candidate, ...]

    @property
    def winner(self) -> Candidate | None:
        """Where its value comes from; None is its default."""
        return next((one for one in self.candidates if one.value is not None), None)

    @property
    def origin(self) -> str:
        """The same in words."""
        return DEFAULT if self.winner is None else self.winner.origin

    @property
    def value(self) -> object:
        """As it was written, or the default."""
        return self.setting.default if self.winner is None else self.winner.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading(Generic[M]):
    """What a process's settings are, or what is wrong with them."""

    settings: M | None
    rows: tuple[Row, ...]
    problems: tuple[str, ...]
    missing: tuple[str, ...]
    """Of its settings those that nobody gives and that have no default."""

    def required(self) -> M:
        """The settings. Raises ConfigError: something is missing, wrong or unknown; the message names all of it."""
        if self.settings is None or self.problems:
            raise ConfigError("; ".join(self.problems))
        return self.settings

    @property
    def lines(self) -> list[str]:
        """Every setting by its variable, with its value and where that is from; no secret in it."""
        return [f"{row.setting.variable}={row.setting.shown(row.value)}  # {row.origin}" for row in self.rows]


def load(
    model: type[M],
    *,
    prefix: str,
    environment: Mapping[str, str],
    directory: Path | None = None,
    options: Mapping[str, object] | None = None,
    is_partial: bool = False,
) -> M:
    """The settings of *model*; see ``read`` and ``outbox.shell.setting_sources.collect``.

    Raises:
        ConfigError: something is missing, wrong or unknown; the message names all of it.
    """
    sources = collect(environment, directory=directory, options=options)
    return read(model, prefix=prefix, sources=sources, is_partial=is_partial).required()


def read(model: type[M], *, prefix: str, sources: Sources, is_partial: bool = False) -> Reading[M]:
    """What *sources* say of the settings of *model*, and all that is wrong with it.

    Args:
        model: a pydantic model with one field per setting.
        prefix: that of the process, such as ``OUTBOX_RELAY_``.
        is_partial: whether *model* has not all settings of the process, so that others may be given too.
    """
    table = settings_of(model, prefix=prefix)
    rows = {setting.field: Row(setting=setting, candidates=_candidates(setting, sources.found)) for setting in table}
    problems = list(sources.problems)
    if not is_partial:
        problems += [found for source in sources.found for found in _unknown(table, prefix, source)]
    missing: list[str] = []
    settings: M | None = None
    try:
        settings = model.model_validate({name: row.winner.value for name, row in rows.items() if row.winner})
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            row = rows[str(detail["loc"][0])]
            problems.append(_problem(row, detail))
            if detail["type"] == "missing":
                missing.append(row.setting.field)
    return Reading(
        settings=settings, rows=tuple(rows.values()), problems=tuple(sorted(problems)), missing=tuple(missing)
    )


def _candidates(setting: Setting, sources: tuple[Source, ...]) -> tuple[Candidate, ...]:
    return tuple(
        Candidate(place=source.place(name), origin=source.origin(name), value=source.values.get(name))
        for source in sources
        for name in setting.names
        if source.takes(name)
    )


def _unknown(table: list[Setting], prefix: str, source: Source) -> Iterator[str]:
    """A complaint for each name that is meant for this process, or for all, and that nothing reads."""
    if source.kind not in ("environment", "dotenv", "toml"):
        return
    is_file = source.kind == "toml"
    own, common = (f"[{section_of(prefix)}] ", "[outbox] ") if is_file else (prefix, COMMON_PREFIX)
    others = () if is_file else tuple(other for other in PREFIXES if other != prefix)
    cased = str.lower if is_file else str.upper
    ours = {setting.field: own + cased(setting.field) for setting in table}
    shared = {field: common + cased(field) for field in SHARED}
    known = {*ours.values(), *shared.values(), *(() if is_file else READ_ELSEWHERE)}
    for name in source.values:
        if name in known or not name.startswith((own, common)) or name.startswith(others):
            continue
        is_own = name.startswith(own)
        bare = name.removeprefix(own if is_own else common).lower()
        near = ours if is_own else ours | shared
        found = difflib.get_close_matches(bare, near, n=1, cutoff=0.75)
        yield f"{source.place(name)}: no such setting" + (f", did you mean {near[found[0]]}?" if found else "")


def _problem(row: Row, detail: ErrorDetails) -> str:
    setting, winner = row.setting, row.winner
    if detail["type"] == "missing":
        best, *others = setting.plain_names
        names = f"{best} (or {', '.join(others)})" if others else best
        also = ", or OUTBOX_BROKER=postgres for queues in PostgreSQL" if setting.field == "rabbitmq_url" else ""
        return f"{names}: missing, want {setting.wanted}{also}"
    place = f"{setting.variable} (default)" if winner is None else winner.place
    if detail["type"] == "value_error":
        return f"{place}: {detail['msg'].removeprefix('Value error, ')}"
    came = "a secret" if setting.is_secret else repr(detail["input"])
    return f"{place}: want {setting.wanted}, got {masked(came)}"
