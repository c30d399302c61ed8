"""What users install: this tree's distributions, and clean environments of several Pythons for them."""

import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
#: Each distribution, and the folder that it is built from.
SOURCES = {"fairpost": ROOT, "fairpost-relay": ROOT / "relay", "fairpost-consumer": ROOT / "consumer"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """The two files of one distribution."""

    wheel: Path
    sdist: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """The files of every distribution, by its name, alone in *directory*.

    *constraints* tells pip which file is a process's distribution, whatever a registry may have under its name.
    """

    directory: Path
    built: Mapping[str, Built]
    constraints: Path

    @property
    def wheel(self) -> Path:
        """What is named to pip; it asks for the others, as an extra wants them."""
        return self.built["fairpost"].wheel


def make_release(directory: Path) -> Release:
    """Build every distribution of this tree into *directory*."""
    built = {name: build(directory, source=source) for name, source in SOURCES.items()}
    constraints = directory / "constraints.txt"
    parts = [(name, one.wheel) for name, one in built.items() if name != "fairpost"]
    constraints.write_text("".join(f"{name} @ {wheel.as_uri()}\n" for name, wheel in parts))
    return Release(directory=directory, built=built, constraints=constraints)


def build(directory: Path, *, source: Path) -> Built:
    """Build *source* into *directory*, without network, by the backend that is installed."""
    before = set(directory.iterdir())
    _run([sys.executable, "-m", "hatchling", "build", "-d", str(directory)], cwd=source)
    made = {path.suffix: path for path in set(directory.iterdir()) - before}
    return Built(wheel=made[".whl"], sdist=made[".gz"])


def unpacked_sdist(sdist: Path, directory: Path) -> Path:
    """Where the sdist's files are, below *directory*."""
    with tarfile.open(sdist) as archive:
        archive.extractall(directory, filter="data")
    (found,) = directory.iterdir()
    return found


def find_python(version: str) -> Path | None:
    """An interpreter of *version*, as ``3.12``, that starts: on PATH, or one of pyenv's; None if there is none."""
    on_path = shutil.which(f"python{version}")
    of_pyenv = sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python3"), reverse=True)
    for python in (*([] if on_path is None else [Path(on_path)]), *of_pyenv):
        # pyenv's shims are on PATH for versions that are not chosen, and then say so instead of starting.
        asked = subprocess.run([python, "-c", "import ensurepip"], capture_output=True, check=False)
        if asked.returncode == 0:
            return python
    return None


class Environment:
    """A virtual environment, with nothing in it at first; what runs there sees no other package and no setting."""

    def __init__(self, directory: Path, *, python: Path, constraints: Path | None = None) -> None:
        """Make it; *constraints* are obeyed beside our own."""
        self.directory = directory
        files = [ROOT / "constraints.txt", *([] if constraints is None else [constraints])]
        self._constraints = [word for file in files for word in ("-c", str(file))]
        _run([str(python), "-m", "venv", "--without-pip", str(directory)])

    @property
    def bin(self) -> Path:
        """Where its programs are."""
        return self.directory / "bin"

    @property
    def site_packages(self) -> Path:
        """Where its packages are."""
        (found,) = self.directory.glob("lib/python3.*/site-packages")
        return found

    def install(self, *requirements: str) -> None:
        """Install *requirements*, their dependencies at the versions that we test with."""
        self.pip("install", "--no-compile", *self._constraints, *requirements)

    def pip(self, *arguments: str) -> None:
        """Run this Python's pip on the environment, which has none of its own."""
        pip = [sys.executable, "-m", "pip", "--python", str(self.bin / "python"), "--quiet"]
        _run([*pip, "--disable-pip-version-check", *arguments])

    def run(
        self, program: str, *arguments: str, settings: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run one of its programs at the root of the file system; output and exit code are the caller's to judge."""
        return subprocess.run(
            [str(self.bin / program), *arguments],
            env={"PATH": f"{self.bin}:/usr/bin:/bin", "HOME": os.environ.get("HOME", "/"), **(settings or {})},
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
        )


def _run(command: list[str], *, cwd: Path | None = None) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
