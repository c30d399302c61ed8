"""compose/Dockerfile, stage by stage, as Docker would follow it."""

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import IO, cast

from dockerfile_parse import DockerfileParser

_STAGE = re.compile(r"(?P<base>\S+) AS (?P<name>\S+)")
_PAIR = re.compile(r"(?P<name>[\w.]+)=(?P<value>\"[^\"]*\"|\S+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """One line, continued ones joined: ``RUN`` and what is run."""

    name: str
    value: str

    @property
    def words(self) -> list[str]:
        """The words of a form that no shell reads."""
        return [str(word) for word in json.loads(self.value)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """What a target makes; *instructions* are all that lead to it from *base*, which is not ours."""

    target: str
    base: str
    environment: Mapping[str, str]
    instructions: tuple[Instruction, ...]

    def last(self, name: str) -> Instruction | None:
        """The one that holds of those that replace each other."""
        return next((one for one in reversed(self.instructions) if one.name == name), None)

    @property
    def entrypoint(self) -> list[str]:
        """Which program starts."""
        return [] if (found := self.last("ENTRYPOINT")) is None else found.words

    @property
    def command(self) -> list[str]:
        """With which arguments, where nobody gives others."""
        return [] if (found := self.last("CMD")) is None else found.words

    @property
    def healthcheck(self) -> list[str] | None:
        """The command that says whether it is well."""
        found = self.last("HEALTHCHECK")
        return None if found is None else [str(word) for word in json.loads(found.value.partition(" CMD ")[2])]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What stands under one FROM."""

    name: str
    base: str
    instructions: tuple[Instruction, ...]


def read_stages(path: Path) -> list[Stage]:
    """The stages in their order."""
    stages: list[Stage] = []
    # Given as text, since the parser would write a file beside ours.
    parser = DockerfileParser(fileobj=cast("IO[str]", BytesIO(path.read_bytes())))
    for line in parser.structure:
        name, value = line["instruction"], line["value"]
        if name == "COMMENT":
            continue
        if name == "FROM":
            found = _STAGE.fullmatch(value)
            assert found, f"want FROM image AS name, got {value!r}"
            stages.append(Stage(name=found["name"], base=found["base"], instructions=()))
            continue
        last = stages.pop()
        one = Instruction(name=name, value=value)
        stages.append(Stage(name=last.name, base=last.base, instructions=(*last.instructions, one)))
    return stages


def read_images(path: Path) -> dict[str, Image]:
    """What each stage makes, by its name."""
    images: dict[str, Image] = {}
    for stage in read_stages(path):
        below = images.get(stage.base)
        instructions = (*(below.instructions if below else ()), *stage.instructions)
        images[stage.name] = Image(
            target=stage.name,
            base=below.base if below else stage.base,
            environment=_environment(instructions),
            instructions=instructions,
        )
    return images


def pairs(value: str) -> dict[str, str]:
    """The names and values of an ENV or LABEL."""
    return {found["name"]: "".join(shlex.split(found["value"])) for found in _PAIR.finditer(value)}


def _environment(instructions: tuple[Instruction, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for one in instructions:
        if one.name == "ENV":
            found |= {
                name: value.replace("$PATH", found.get("PATH", "$PATH")) for name, value in pairs(one.value).items()
            }
    return found
