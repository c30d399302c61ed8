"""``outbox dev`` as a developer starts and ends it."""

import os
import signal
from pathlib import Path

import psycopg
import pytest

from outbox.shell.exits import CONFIGURATION, DONE
from tests.support.processes import Processes


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])  # Ctrl-C, and a terminal that is closed
async def test_a_database_runs_until_it_is_asked_to_end_and_a_file_says_where(
    processes: Processes, tmp_path: Path, number: signal.Signals
) -> None:
    dev = processes.start("outbox", "dev", cwd=tmp_path)
    await dev.line("runs until Ctrl-C", deadline_s=90.0)
    file = tmp_path / "dev.env"
    assert file.stat().st_mode & 0o777 == 0o600
    told = dict(line.removeprefix("export ").split("=", 1) for line in file.read_text().splitlines())
    assert told["OUTBOX_BROKER"] == "postgres"
    url = told["DATABASE_URL"].replace("+psycopg", "")
    with psycopg.connect(url) as connection:
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
