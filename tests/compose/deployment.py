"""compose/compose.yaml as Compose reads it: variables put in from a file of them, and each service's own words."""

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from dotenv import dotenv_values

from tests.compose.dockerfile import Image, read_images

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "compose"
FILE = COMPOSE / "compose.yaml"
EXAMPLE_VALUES = COMPOSE / ".env.example"
# $$ is a dollar sign; ${NAME}, ${NAME:-default} and ${NAME:?complaint} are all that is used here.
_VARIABLE = re.compile(r"\$(?:(?P<escaped>\$)|\{(?P<name>\w+)(?::(?P<kind>[-?])(?P<rest>[^}]*))?\})")


class MissingVariable(Exception):
    """A variable that has no default is not given: Compose refuses to start anything."""


def given() -> dict[str, str]:
    """What the example file gives."""
    return {name: value or "" for name, value in dotenv_values(EXAMPLE_VALUES).items()}


def raw() -> dict[str, Any]:
    """The file as it is written, its anchors resolved."""
    content: dict[str, Any] = yaml.safe_load(FILE.read_text())
    return content


def interpolated(value: Any, variables: Mapping[str, str]) -> Any:
    """*value* with *variables* put in, at any depth. Raises MissingVariable."""
    match value:
        case str():
            return _VARIABLE.sub(lambda found: _value_of(found, variables), value)
        case dict():
            return {key: interpolated(one, variables) for key, one in value.items()}
        case list():
            return [interpolated(one, variables) for one in value]
        case _:
            return value


def variables_in(value: Any) -> Iterator[str]:
    """The names of the variables that *value* has anywhere in it."""
    yield from (found["name"] for found in _VARIABLE.finditer(json.dumps(value)) if found["name"])


def _value_of(found: re.Match[str], variables: Mapping[str, str]) -> str:
    if found["escaped"]:
        return "$"
    value = variables.get(found["name"], "")
    if value or found["kind"] is None:
        return value
    if found["kind"] == "?":
        raise MissingVariable(found["name"])
    return found["rest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """One service, variables put in."""

    name: str
    content: Mapping[str, Any]
    image: Image | None
    """What our Dockerfile makes for it; None where the image is somebody else's."""

    @property
    def environment_of_its_own(self) -> dict[str, str]:
        """What it is told here."""
        return {name: str(value) for name, value in self.content.get("environment", {}).items()}

    @property
    def environment(self) -> dict[str, str]:
        """What its process is told, the image's own variables included."""
        return {**(self.image.environment if self.image else {}), **self.environment_of_its_own}

    @property
    def command(self) -> list[str]:
        """What its container runs: entry point and command, of the service where it has them, else of the image."""
        entrypoint, command = self.content.get("entrypoint"), self.content.get("command")
        from_image = self.image or Image(target="", base="", environment={}, instructions=())
        # As Docker does it: another entry point takes the image's command with it.
        default = from_image.command if entrypoint is None else []
        start = from_image.entrypoint if entrypoint is None else _words(entrypoint)
        return [*start, *(default if command is None else _words(command))]

    @property
    def healthcheck(self) -> list[str] | None:
        """The command that says whether it is well; None if there is none."""
        own = self.content.get("healthcheck")
        if own is None:
            return self.image.healthcheck if self.image else None
        if own.get("disable"):
            return None
        kind, *words = map(str, own["test"])
        assert kind == "CMD", f"{self.name}: want CMD, which needs no shell, got {kind}"
        return words

    @property
    def mounts(self) -> list[tuple[Path, str, str]]:
        """The files and folders it sees of ours: where each lies here, where there, and how."""
        found = []
        for volume in self.content.get("volumes", ()):
            source, target, *mode = volume.split(":")
            if source.startswith("."):
                found.append(((COMPOSE / source).resolve(), target, mode[0] if mode else "rw"))
        return found


def services(variables: Mapping[str, str] | None = None) -> dict[str, Service]:
    """Every service, by name. Raises MissingVariable."""
    content = interpolated(raw(), given() if variables is None else variables)
    images = read_images(COMPOSE / "Dockerfile")
    return {
        name: Service(name=name, content=one, image=images[one["build"]["target"]] if "build" in one else None)
        for name, one in content["services"].items()
    }


def _words(command: str | list[str]) -> list[str]:
    return shlex.split(command) if isinstance(command, str) else command
