"""The files of a release, before anybody installs them: three distributions of one version."""

import tarfile
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest

from tests.support.installs import PYTHONS, ROOT, Built, Release, build, unpacked_sdist

PACKAGES = {
    "fairpost": {"outbox", "outbox_admin", "migrations"},
    "fairpost-relay": {"relay"},
    "fairpost-consumer": {"consumer"},
}
_BYTES_MAX = 400_000


@pytest.fixture(scope="module", params=PACKAGES)
def name(request: pytest.FixtureRequest) -> str:
    """Which distribution."""
    found: str = request.param
    return found


@pytest.fixture(scope="module")
def built(release: Release, name: str) -> Built:
    return release.built[name]


@pytest.fixture(scope="module")
def contents(built: Built) -> dict[str, bytes]:
    return _contents(built.wheel)


@pytest.fixture(scope="module")
def metadata(built: Built) -> Message:
    return _metadata(built.wheel)


def test_the_wheel_holds_our_typed_packages_and_nothing_else(name: str, contents: dict[str, bytes]) -> None:
    tops = {path.split("/")[0] for path in contents}
    (dist_info,) = tops - PACKAGES[name]
    assert dist_info.endswith(".dist-info")
    assert tops - {dist_info} == PACKAGES[name]
    assert {f"{package}/py.typed" for package in PACKAGES[name]} <= contents.keys()
    assert contents[f"{dist_info}/licenses/LICENSE"] == (ROOT / "LICENSE").read_bytes()
    kinds = {Path(path).suffix for path in contents if not path.startswith(dist_info)}
    assert kinds == {".py", ".typed"}
    assert not [path for path in contents if "test" in Path(path).name and "pytest_plugin" not in path]


def test_every_module_is_in_the_wheel(name: str, contents: dict[str, bytes]) -> None:
    files = {path for package in PACKAGES[name] for path in (ROOT / package).rglob("*.py")}
    assert {path.relative_to(ROOT).as_posix() for path in files} == {path for path in contents if path.endswith(".py")}


def test_the_wheel_is_small(built: Built) -> None:
    assert built.wheel.stat().st_size < _BYTES_MAX


def test_the_three_have_one_version_and_want_each_other_at_it(release: Release) -> None:
    metadata = {name: _metadata(one.wheel) for name, one in release.built.items()}
    (version,) = {one["Version"] for one in metadata.values()}
    wanted = {name: {line.partition(";")[0] for line in _required(one)} for name, one in metadata.items()}
    ours = {name: {line for line in lines if line.startswith("fairpost")} for name, lines in wanted.items()}
    processes = {name for name in PACKAGES if name != "fairpost"}
    assert ours.pop("fairpost") == {f"{name}=={version}" for name in processes}
    assert ours == {name: {f"fairpost=={version}"} for name in processes}


def test_an_app_that_only_emits_depends_on_sqlalchemy_pydantic_and_uuids_alone(release: Release) -> None:
    base = [line for line in _required(_metadata(release.wheel)) if "extra ==" not in line]
    assert {line.split(">")[0] for line in base} == {"sqlalchemy", "pydantic", "uuid-utils"}


def test_the_readme_is_the_long_description(name: str, metadata: Message) -> None:
    assert metadata["Description-Content-Type"] == "text/markdown"
    payload = metadata.get_payload()
    assert isinstance(payload, str)
    assert payload.strip().lower().startswith(f"# {name}\n")


def test_every_python_that_the_metadata_names_is_allowed_by_it(metadata: Message) -> None:
    named = [line for line in metadata.get_all("Classifier", []) if " :: Python :: 3." in line]
    assert tuple(line.rpartition(" ")[2] for line in named) == PYTHONS
    assert metadata["Requires-Python"] == ">=3.11"


def test_the_sdist_builds_the_same_wheel(
    built: Built, contents: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory
) -> None:
    source = unpacked_sdist(built.sdist, tmp_path_factory.mktemp("sdist"))
    again = build(tmp_path_factory.mktemp("again"), source=source)
    assert _contents(again.wheel) == contents


def test_an_sdist_has_nothing_private(built: Built) -> None:
    paths = _paths(built.sdist)
    assert not [path for path in paths if path.startswith((".venv", ".git/")) or path.endswith((".pyc", ".env"))]


def test_the_sdist_has_what_it_takes_to_test_it_and_to_build_the_processes(release: Release) -> None:
    wanted = {"Makefile", "constraints.txt", "tests/conftest.py", "docs/tutorial.md"}
    assert wanted | {"relay/pyproject.toml", "consumer/pyproject.toml"} <= _paths(release.built["fairpost"].sdist)


def _contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {path: archive.read(path) for path in archive.namelist()}


def _metadata(wheel: Path) -> Message:
    (found,) = (data for path, data in _contents(wheel).items() if path.endswith(".dist-info/METADATA"))
    return message_from_bytes(found)


def _required(metadata: Message) -> list[str]:
    return metadata.get_all("Requires-Dist", [])


def _paths(sdist: Path) -> set[str]:
    with tarfile.open(sdist) as archive:
        return {path.split("/", 1)[1] for path in archive.getnames()}
