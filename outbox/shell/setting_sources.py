"""Where settings are written: the command line, the environment, a ``.env`` file, a TOML file, libpq's own variables.

Each source holds values by name, in its own notation: ``--broker``, ``OUTBOX_RELAY_LEASE_S``, ``[relay] lease_s``. An
empty value counts as not given.
"""

import io
import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, Literal

from dotenv.parser import parse_stream
from dotenv.variables import parse_variables

COMMON_PREFIX: Final = "OUTBOX_"
PREFIXES: Final = ("OUTBOX_RELAY_", "OUTBOX_CONSUMER_")
ENV_FILE: Final = "OUTBOX_ENV_FILE"
CONFIG_FILE: Final = "OUTBOX_CONFIG"
LIBPQ: Final = "PG*"
# With none of these libpq would try a server on this machine and a database named as the user: that is not asked for.
_LIBPQ_STARTS: Final = ("PGHOST", "PGSERVICE", "PGDATABASE")

Kind = Literal["option", "environment", "dotenv", "toml", "libpq"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Values by name. *title* is what people call it, *lines* where in a file a name stands, where that is known."""

    kind: Kind
    title: str
    values: Mapping[str, object]
    lines: Mapping[str, int] = field(default_factory=dict)

    def takes(self, name: str) -> bool:
        """Whether *name* is in this source's notation."""
        if name == LIBPQ:
            return self.kind == "libpq"
        if name.startswith("--"):
            return self.kind == "option"
        return self.kind == "toml" if name.startswith("[") else self.kind in ("environment", "dotenv")

    def place(self, name: str) -> str:
        """*name* with its file, as a message begins."""
        file = f" ({self._file(name)})" if self.kind in ("dotenv", "toml") else ""
        return f"{name}{file}"

    def origin(self, name: str) -> str:
        """Where *name* stands, as a sentence ends."""
        return {
            "option": f"option {name}",
            "environment": f"environment variable {name}",
            "dotenv": f"{self._file(name)}, {name}",
            "toml": f"{self._file(name)} {name}",
            "libpq": self.title,
        }[self.kind]

    def _file(self, name: str) -> str:
        return f"{self.title} line {self.lines[name]}" if name in self.lines else self.title


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """All that was found, the source that wins first, and what is wrong with the files themselves."""

    found: tuple[Source, ...]
    problems: tuple[str, ...] = ()


class _Unusable(Exception):
    """A file cannot be read; the message says which and why."""


def collect(
    environment: Mapping[str, str], *, directory: Path | None = None, options: Mapping[str, object] | None = None
) -> Sources:
    """What is written where.

    Args:
        environment: the process's.
        directory: where ``.env`` and ``outbox.toml`` are looked for, if no variable names them; None reads no file.
        options: values from the command line by option, such as ``--broker``; None is not given.
    """
    given = _given(environment)
    sources = [
        Source(kind="option", title="command line", values=_given(options or {})),
        Source(kind="environment", title="environment", values=given),
    ]
    problems: list[str] = []
    if directory is not None:
        files: tuple[tuple[Kind, str, str, Callable[..., tuple[Source, list[str]]]], ...] = (
            ("dotenv", ENV_FILE, ".env", partial(_dotenv, environment=environment)),
            ("toml", CONFIG_FILE, "outbox.toml", _toml),
        )
        for kind, name, default, read in files:
            named = next((str(source.values[name]) for source in sources if name in source.values), None)
            path = directory / (named or default)
            # os.path, since pathlib's own raise where the directory may not be searched, as under sudo from one's home.
            is_there = os.path.exists(path) and not os.path.isdir(path)
            source = Source(kind=kind, title=named or default, values={})
            wrong: list[str] = []
            try:
                # A directory of that name is most often a virtual environment.
                if named or is_there:
                    source, wrong = read(path, title=named or default)
            except _Unusable as error:
                wrong = [f"{name}: {error}" if named else str(error)]
            sources.append(source)
            problems += wrong
    return Sources(found=(*sources, _libpq(sources)), problems=tuple(problems))


def section_of(prefix: str) -> str:
    """The table of a TOML file for the process whose variables start with *prefix*."""
    return prefix.removeprefix(COMMON_PREFIX).rstrip("_").lower() or "outbox"


def _given(values: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in values.items() if value is not None and value != ""}


def _text_of(path: Path, title: str) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise _Unusable(f"want a file that can be read, got {title}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise _Unusable(f"want a text in UTF-8, got {title} with byte {error.start} not of it") from error


def _dotenv(path: Path, *, title: str, environment: Mapping[str, str]) -> tuple[Source, list[str]]:
    bindings = list(parse_stream(io.StringIO(_text_of(path, title))))
    values: dict[str, str] = {}
    for binding in bindings:
        if binding.key is not None and binding.value is not None:
            # As an app's load_dotenv() has it, which overrides nothing: in ${NAME} too the environment counts first.
            parts = parse_variables(binding.value)
            values[binding.key] = "".join(part.resolve({**values, **environment}) for part in parts)
    source = Source(
        kind="dotenv",
        title=title,
        values=_given(values),
        lines={binding.key: binding.original.line for binding in bindings if binding.key is not None},
    )
    # What cannot be read and is not ours is the business of whoever else reads the file.
    return source, [
        f"{title} line {binding.original.line}: want NAME=value, got a line that cannot be read"
        for binding in bindings
        if binding.error and COMMON_PREFIX in binding.original.string
    ]


def _toml(path: Path, *, title: str) -> tuple[Source, list[str]]:
    try:
        tables = tomllib.loads(_text_of(path, title))
    except tomllib.TOMLDecodeError as error:
        raise _Unusable(f"want TOML, got {title}: {error}") from error
    sections = (section_of(COMMON_PREFIX), *map(section_of, PREFIXES))
    wanted = ", ".join(f"[{section}]" for section in sections)
    problems = [
        f"{title}: want the sections {wanted}, got {name!r}"
        for name, table in tables.items()
        if name not in sections or not isinstance(table, dict)
    ]
    values = {
        f"[{section}] {name}": value
        for section in sections
        if isinstance(table := tables.get(section), dict)
        for name, value in table.items()
    }
    return Source(kind="toml", title=title, values=_given(values)), problems


def _libpq(sources: list[Source]) -> Source:
    """The address that libpq's variables make, where they name at least a host, a database or a service.

    Those of the environment count as libpq itself would have them: below what a service file says. Those of a
    ``.env`` file it cannot see, and so they are said to it.
    """
    inherited, written = (
        {
            name: str(value)
            for source in sources
            if source.kind == kind
            for name, value in source.values.items()
            if name.startswith("PG") and name != "PGAPPNAME"  # sessions have names of our own
        }
        for kind in ("environment", "dotenv")
    )
    given = written | inherited
    if not any(name in given for name in _LIBPQ_STARTS):
        return Source(kind="libpq", title="libpq's PGHOST, PGSERVICE or PGDATABASE", values={})
    from psycopg.conninfo import make_conninfo  # noqa: PLC0415 - only who uses these variables pays for it
    from psycopg.pq import Conninfo  # noqa: PLC0415

    left_to_libpq = inherited.keys() - {"PGSERVICE"} if "PGSERVICE" in inherited else set()
    keywords = {(option.envvar or b"").decode(): option.keyword.decode() for option in Conninfo.get_defaults()}
    said = {keywords[name]: given[name] for name in given.keys() & keywords.keys() - left_to_libpq}
    return Source(
        kind="libpq", title=", ".join(sorted(given.keys() & keywords.keys())), values={LIBPQ: make_conninfo("", **said)}
    )
