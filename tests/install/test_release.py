"""The two files of a release, before anybody installs them."""

import tarfile
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest

from tests.support.installs import PYTHONS, Built, build, unpacked_sdist

PACKAGES = {"outbox", "relay", "consumer", "outbox_admin", "migrations"}
_BYTES_MAX = 700_000


@pytest.fixture(scope="module")
def contents(release: Built) -> dict[str, bytes]:
    with zipfile.ZipFile(release.wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture(scope="module")
def metadata(contents: dict[str, bytes]) -> Message:
    (name,) = (name for name in contents if name.endswith(".dist-info/METADATA"))
    return message_from_bytes(contents[name])


def test_the_wheel_holds_our_typed_packages_and_nothing_else(contents: dict[str, bytes]) -> None:
    tops = {name.split("/")[0] for name in contents}
    (dist_info,) = tops - PACKAGES
    assert dist_info.endswith(".dist-info")
    assert tops - {dist_info} == PACKAGES
    assert {f"{package}/py.typed" for package in PACKAGES} <= contents.keys()
    assert f"{dist_info}/licenses/LICENSE" in contents
    kinds = {Path(name).suffix for name in contents if not name.startswith(dist_info)}
    assert kinds == {".py", ".typed"}
    assert not [name for name in contents if "test" in Path(name).name and "pytest_plugin" not in name]


def test_the_wheel_is_small(release: Built) -> None:
    assert release.wheel.stat().st_size < _BYTES_MAX


def test_an_app_that_only_emits_depends_on_sqlalchemy_pydantic_and_uuids_alone(metadata: Message) -> None:
    base = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert {line.split(">")[0] for line in base} == {"sqlalchemy", "pydantic", "uuid-utils"}


def test_the_readme_is_the_long_description(metadata: Message) -> None:
    assert metadata["Description-Content-Type"] == "text/markdown"
    payload = metadata.get_payload()
    assert isinstance(payload, str)
    assert payload.strip().startswith("# Fairpost")


def test_every_python_that_the_metadata_names_is_allowed_by_it(metadata: Message) -> None:
    named = [line for line in metadata.get_all("Classifier", []) if " :: Python :: 3." in line]
    assert tuple(line.rpartition(" ")[2] for line in named) == PYTHONS
    assert metadata["Requires-Python"] == ">=3.11"


def test_the_sdist_builds_the_same_wheel(
    release: Built, contents: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory
) -> None:
    source = unpacked_sdist(release.sdist, tmp_path_factory.mktemp("sdist"))
    again = build(tmp_path_factory.mktemp("again"), source=source)
    with zipfile.ZipFile(again.wheel) as archive:
        assert {name: archive.read(name) for name in archive.namelist()} == contents


def test_the_sdist_has_what_it_takes_to_test_it_and_nothing_private(release: Built) -> None:
    with tarfile.open(release.sdist) as archive:
        paths = {name.split("/", 1)[1] for name in archive.getnames()}
    assert {"Makefile", "constraints.txt", "tests/conftest.py", "docs/tutorial.md"} <= paths
    assert not [path for path in paths if path.startswith((".venv", ".git/")) or path.endswith((".pyc", ".env"))]
