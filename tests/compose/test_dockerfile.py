"""The Dockerfile makes images that are small, pinned, and run as nobody in particular."""

import re
import tomllib
from pathlib import PurePosixPath

import pytest

from tests.compose.deployment import COMPOSE, ROOT
from tests.compose.dockerfile import Image, pairs, read_images, read_stages
from tests.support.installs import SOURCES

FILE = COMPOSE / "Dockerfile"
STAGES = {stage.name: stage for stage in read_stages(FILE)}
IMAGES = read_images(FILE)
TARGETS = ("admin", "relay", "consumer", "example")
EVERY = pytest.mark.parametrize("image", [IMAGES[name] for name in TARGETS], ids=TARGETS)
_PINNED = re.compile(r"python:3\.\d+\.\d+-slim-[a-z]+")


def test_there_is_one_base_and_it_is_pinned() -> None:
    bases = {stage.base for stage in STAGES.values() if stage.base not in STAGES}
    assert len(bases) == 1
    assert _PINNED.fullmatch(bases.pop())


@EVERY
def test_it_runs_as_a_number_and_ends_by_sigterm(image: Image) -> None:
    user, stop = image.last("USER"), image.last("STOPSIGNAL")
    assert user is not None
    assert user.value == "10001:10001"
    assert stop is not None
    assert stop.value == "SIGTERM"


@EVERY
def test_its_program_is_started_by_no_shell(image: Image) -> None:
    """A shell in between would not pass the signal on."""
    assert image.entrypoint[0] in {"outbox", "outbox-relay", "outbox-consumer"}
    assert all(isinstance(word, str) for word in image.command)


@EVERY
def test_what_only_a_build_needs_is_not_in_it(image: Image) -> None:
    assert [one.value for one in image.instructions if one.name == "RUN"] == []
    copied = [one.value.split() for one in image.instructions if one.name == "COPY"]
    sources = {(words[0], words[1]) if words[0].startswith("--from=") else (words[0],) for words in copied}
    assert sources <= {
        ("--from=build", "/opt/venv"),
        ("--from=example-build", "/opt/venv"),
        ("examples/shop",),
    }
    made = next(one.value for one in STAGES["build"].instructions if "-m venv" in one.value)
    assert "--without-pip" in made


@pytest.mark.parametrize("name", ["relay", "consumer", "example"])
def test_what_lasts_has_a_health_check_that_needs_no_shell_and_no_other_program(name: str) -> None:
    check = IMAGES[name].healthcheck
    assert check is not None
    assert check[0] == "python"
    compile(check[2], name, "exec")


@EVERY
def test_it_says_what_it_is(image: Image) -> None:
    labels = {name for one in image.instructions if one.name == "LABEL" for name in pairs(one.value)}
    assert {f"org.opencontainers.image.{name}" for name in ("title", "description", "licenses")} <= labels


def test_every_package_is_copied_every_distribution_built_and_every_install_constrained() -> None:
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    processes = {path.name for path in SOURCES.values() if path != ROOT}
    copied = {one.value.split()[0] for one in STAGES["build"].instructions if one.name == "COPY"}
    assert {*packages["packages"], *processes} <= copied
    (made,) = (one.value.split() for one in STAGES["build"].instructions if " wheel " in one.value)
    assert {".", *(f"./{name}" for name in processes)} <= set(made)
    installs = [
        one.value
        for stage in STAGES.values()
        for one in stage.instructions
        if one.name == "RUN" and " install " in one.value
    ]
    assert len(installs) == 2
    assert all("--constraint constraints.txt" in line for line in installs)
    # A name, unlike a file, could be answered by anybody's registry.
    assert not any(re.search(r"(?<![\w/-])fairpost", line) for line in installs)


def test_the_context_holds_what_is_copied_and_no_secret() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    kept = {rule.removeprefix("!") for rule in rules if rule.startswith("!")}
    sources = {
        source
        for stage in STAGES.values()
        for one in stage.instructions
        if one.name == "COPY" and not one.value.startswith("--from=")
        for source in one.value.split()[:-1]
    }
    for source in sources:
        assert (ROOT / source).exists()
        assert {str(path) for path in (PurePosixPath(source), *PurePosixPath(source).parents)} & kept, source
    assert kept <= {source if source != "examples/shop/requirements.txt" else "examples/shop" for source in sources}
    assert "**/.env" in rules
