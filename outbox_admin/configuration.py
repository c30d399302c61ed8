"""What is set, for all processes: which of them are meant, what is wrong, and the story of one setting."""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import BaseModel

from consumer.settings import PREFIX as CONSUMER_PREFIX
from consumer.settings import ConsumerSettings
from outbox.shell.logs import harmless
from outbox.shell.setting_sources import COMMON_PREFIX, collect, section_of
from outbox.shell.setting_table import Setting, settings_of
from outbox.shell.settings import Candidate, Reading, Row, read
from outbox_admin.settings import PREFIX as ADMIN_PREFIX
from outbox_admin.settings import AdminSettings
from relay.settings import PREFIX as RELAY_PREFIX
from relay.settings import RelaySettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One that reads settings; *command* starts it."""

    name: str
    command: str
    model: type[BaseModel]
    prefix: str


PROCESSES: Final = (
    Process(name="relay", command="outbox-relay", model=RelaySettings, prefix=RELAY_PREFIX),
    Process(name="consumer", command="outbox-consumer", model=ConsumerSettings, prefix=CONSUMER_PREFIX),
    Process(name="admin", command="outbox", model=AdminSettings, prefix=ADMIN_PREFIX),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A process and what its settings are."""

    process: Process
    reading: Reading[BaseModel]

    @property
    def is_configured(self) -> bool:
        """Whether it is meant to run here: nothing that it must have is missing, or something is said to it alone."""
        own = (f"[{section_of(self.process.prefix)}] ", self.process.prefix)
        said = [*(one.place for row in self.reading.rows for one in _given(row)), *self.reading.problems]
        is_named = self.process.prefix != COMMON_PREFIX and any(place.startswith(own) for place in said)
        return is_named or not self.reading.missing

    @property
    def lacks(self) -> str:
        """The plainest names of what is missing."""
        return " and ".join(
            row.setting.plain_names[0] for row in self.reading.rows if row.setting.field in self.reading.missing
        )


def find(environment: Mapping[str, str], *, directory: Path, names: Sequence[str]) -> list[Found]:
    """What is set for the processes *names*, or for all if there are none."""
    sources = collect(environment, directory=directory)
    return [
        Found(process=process, reading=read(process.model, prefix=process.prefix, sources=sources))
        for process in PROCESSES
        if process.name in names or not names
    ]


def meant(found: Sequence[Found]) -> list[Found]:
    """Those of *found* that are configured; where none is, all."""
    return [one for one in found if one.is_configured] or list(found)


def problems(found: Iterable[Found]) -> list[str]:
    """All that is wrong, each said once, with the processes that it is wrong for."""
    wrong: dict[str, list[str]] = {}
    for one in found:
        for problem in one.reading.problems:
            wrong.setdefault(problem, []).append(one.process.command)
    return [f"{', '.join(commands)}: {problem}" for problem, commands in wrong.items()]


def called(name: str, found: Iterable[Found]) -> list[tuple[Found, Row]]:
    """The settings that *name* may mean: a variable, an option, a key, a field, or one of libpq's variables."""
    wanted = name.strip().lower()
    return [
        (one, row)
        for one in found
        for row in one.reading.rows
        if wanted in _names(row.setting)
        or (wanted.startswith("pg") and wanted.isalpha() and row.setting.field == "database_url")
    ]


def near(name: str) -> str | None:
    """The setting whose name is most like *name*."""
    by_name = {
        alias: alias if alias == setting.field else alias.upper()
        for process in PROCESSES
        for setting in settings_of(process.model, prefix=process.prefix)
        for alias in _names(setting)
        if not alias.startswith(("[", "-"))
    }
    close = difflib.get_close_matches(name.strip().lower(), by_name, n=1, cutoff=0.6)
    return by_name[close[0]] if close else None


def story(one: Found, row: Row) -> str:
    """Everything there is to say of a setting, in lines."""
    setting, winner, mark = row.setting, row.winner, "  <- this one"
    now = "missing" if winner is None and setting.field in one.reading.missing else harmless(setting.shown(row.value))
    width = max(len(place.origin) for place in row.candidates)
    default = "none, it is required" if setting.is_required else setting.shown(setting.default)
    lines = [
        f"{setting.variable}, of {one.process.command}",
        f"  {setting.description}",
        f"  value    {setting.wanted}",
        f"  default  {default}",
        f"  now      {now}, from {row.origin}" if winner else f"  now      {now}",
        *(f"  wrong    {problem}" for problem in _wrong(one, row)),
        "  read from these, the first that is given wins:",
        *(
            f"    {place.origin:{width}}  {_said(setting, place)}{mark if place is winner else ''}"
            for place in row.candidates
        ),
        f"    {'default':{width}}  {default}{'' if winner or setting.is_required else mark}",
    ]
    return "\n".join(lines)


def plain(one: Found, row: Row) -> dict[str, object]:
    """A setting as JSON has it; a secret in it is masked."""
    setting = row.setting
    value = row.value if one.reading.settings is None else getattr(one.reading.settings, setting.field)
    return {
        "name": setting.variable,
        "value": setting.shown(row.value) if setting.is_secret and value is not None else value,
        "from": row.origin,
        "is_missing": setting.field in one.reading.missing,
    }


def _said(setting: Setting, place: Candidate) -> str:
    return "not given" if place.value is None else harmless(setting.shown(place.value))


def _given(row: Row) -> list[Candidate]:
    return [one for one in row.candidates if one.value is not None]


def _wrong(one: Found, row: Row) -> list[str]:
    places = [place.place for place in row.candidates]
    return [problem for problem in one.reading.problems if any(problem.startswith(f"{place}: ") for place in places)]


def _names(setting: Setting) -> set[str]:
    dotted = f"{setting.section}.{setting.field}"
    return {setting.field, dotted, dotted.replace(".", "_"), *(name.lower() for name in setting.names)}
