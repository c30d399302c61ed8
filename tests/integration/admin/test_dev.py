"""``outbox dev`` as a developer starts and ends it."""

import os
import re
import signal
from pathlib import Path
from typing import Any

import psycopg
import pytest

from outbox.shell.exits import CONFIGURATION, DONE, TRY_AGAIN
from tests.support.processes import Processes


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])  # Ctrl-C, and a terminal that is closed
async def test_a_database_runs_until_it_is_asked_to_end_and_a_file_says_where(
    processes: Processes, tmp_path: Path, number: signal.Signals
) -> None:
    dev = processes.start("outbox", "dev", cwd=tmp_path)
    await dev.line("runs until Ctrl-C", deadline_s=90.0)
    file = tmp_path / "dev.env"
    assert file.stat().st_mode & 0o777 == 0o600
    told = _told(tmp_path)
    assert told["OUTBOX_BROKER"] == "postgres"
    with _connect(told) as connection:
        assert connection.execute("select 1").fetchone() == (1,)

    os.kill(dev.pid, number)
    assert await dev.ended(deadline_s=30.0) == DONE
    assert not file.exists()


async def test_a_second_one_in_a_directory_leaves_the_firsts_file_alone(processes: Processes, tmp_path: Path) -> None:
    file = tmp_path / "dev.env"
    file.write_text("export DATABASE_URL=mine\n")
    dev = processes.start("outbox", "dev", cwd=tmp_path)
    assert await dev.ended(deadline_s=30.0) == CONFIGURATION
    assert dev.output.startswith("outbox: dev.env: want no such file here, got one")
    assert file.read_text() == "export DATABASE_URL=mine\n"


async def test_it_says_so_and_ends_when_its_server_has_died(processes: Processes, tmp_path: Path) -> None:
    dev = processes.start("outbox", "dev", cwd=tmp_path)
    await dev.line("runs until Ctrl-C", deadline_s=90.0)
    with _connect(_told(tmp_path)) as connection:
        (lines,) = connection.execute("select pg_read_file('postmaster.pid')").fetchone() or ("",)
    os.kill(int(lines.splitlines()[0]), signal.SIGKILL)

    assert await dev.ended(deadline_s=30.0) == TRY_AGAIN
    assert re.search(r"^outbox: want PostgreSQL \S+ to run, got exit code -9: .+$", dev.output, re.MULTILINE)
    assert not (tmp_path / "dev.env").exists()


def _told(directory: Path) -> dict[str, str]:
    """What the file says."""
    exports = (directory / "dev.env").read_text().splitlines()
    return dict(line.removeprefix("export ").split("=", 1) for line in exports)


def _connect(told: dict[str, str]) -> psycopg.Connection[tuple[Any, ...]]:
    return psycopg.connect(told["DATABASE_URL"].replace("+psycopg", ""))
