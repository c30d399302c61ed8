"""The ``outbox`` command from the wheels that are shipped, unpacked where nothing else of the repository is."""

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from outbox.shell.exits import CONFIGURATION, DONE
from tests.support.installs import Release

_RUN = "from {package}.cli import main; main()"


@pytest.fixture(scope="module")
def unpacked(release: Release, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the wheels' files are."""
    where = tmp_path_factory.mktemp("unpacked")
    for one in release.built.values():
        with zipfile.ZipFile(one.wheel) as archive:
            archive.extractall(where)
    return where


def _python(unpacked: Path, *arguments: str, database_url: str = "") -> tuple[int, str]:
    """Run Python where the wheels' packages hide those of the repository; the exit code and what it printed."""
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(unpacked), "DATABASE_URL": database_url}
    done = subprocess.run(
        [sys.executable, *arguments], env=environment, cwd="/", capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


def test_migrate_works_from_the_installed_wheel(unpacked: Path, database: str) -> None:
    where = _python(unpacked, "-c", "import migrations.environment as found; print(found.__file__)")
    assert where == (DONE, f"{unpacked}/migrations/environment.py\n")

    def outbox(*arguments: str) -> tuple[int, str]:
        return _python(unpacked, "-c", _RUN.format(package="outbox_admin"), *arguments, database_url=database)

    code, script = outbox("migrate", "--sql")
    assert code == DONE
    assert "CREATE TABLE outbox.event" in script
    assert outbox("migrate", "--check")[0] == CONFIGURATION
    code, output = outbox("migrate")
    assert (code, re.sub(r"\d{4}", "n", output)) == (DONE, "outbox: on\nconsumer: cn\nbroker: bn\n")
    assert outbox("migrate", "--check")[0] == DONE
    assert outbox("migrate", "--down", "--yes") == (DONE, "outbox: nothing\nconsumer: nothing\nbroker: nothing\n")


@pytest.mark.parametrize("package", ["relay", "consumer"])
def test_both_processes_start_from_their_installed_wheels(unpacked: Path, package: str) -> None:
    code, output = _python(unpacked, "-c", _RUN.format(package=package), "--help")
    assert code == DONE, output
    assert "Usage:" in output
