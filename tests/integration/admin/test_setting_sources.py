"""Commands, in a directory with settings: each finds its servers by what stands there."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict

from outbox.shell.exits import CONFIGURATION, DONE, run_cli
from outbox_admin.cli import app

Migrated = Callable[..., tuple[int, str]]


@pytest.fixture
def is_migrated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Migrated:
    """Ask ``outbox migrate --check`` with these variables; the exit code and what it printed."""
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith(("PG", "OUTBOX_")) or name == "DATABASE_URL":
            monkeypatch.delenv(name)

    def ask(**variables: str) -> tuple[int, str]:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(SystemExit) as ended:
            run_cli(app, arguments=["migrate", "--check"], name="outbox")
        told = capsys.readouterr()
        return int(ended.value.code or 0), told.out + told.err

    return ask


def _relay(directory: Path, *arguments: str) -> tuple[int, str]:
    """Run the real ``outbox-relay`` in *directory*, with nothing in its environment; exit code and what it printed."""
    done = subprocess.run(
        [str(Path(sys.executable).with_name("outbox-relay")), *arguments],
        env={"PATH": os.environ["PATH"], "HOME": str(directory)},
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def address(migrated_database: str) -> dict[str, str]:
    """The parts of a migrated database's address, as libpq calls them."""
    return {name: str(value) for name, value in conninfo_to_dict(migrated_database).items() if value is not None}


def test_a_database_is_found_by_libpqs_variables(
    is_migrated: Migrated, address: dict[str, str], tmp_path: Path
) -> None:
    password = address.get("password", "")
    (tmp_path / ".env").write_text(f"PGDATABASE={address['dbname']}\nPGHOST=nobody.invalid\nAPP=shop\n")
    variables = {"PGHOST": address["host"], "PGPORT": address.get("port", "5432"), "PGUSER": address["user"]}
    code, told = is_migrated(**variables, PGPASSWORD=password)
    assert code == DONE, told


def test_a_service_file_goes_before_the_variables_as_it_does_for_psql(
    is_migrated: Migrated, address: dict[str, str], tmp_path: Path
) -> None:
    service = "".join(f"{name}={value}\n" for name, value in address.items())
    (tmp_path / "services").write_text(f"[shop]\n{service}")
    named = {"PGSERVICE": "shop", "PGSERVICEFILE": str(tmp_path / "services")}
    code, told = is_migrated(**named, PGPORT="1", PGDATABASE="nobody_made_this")
    assert code == DONE, told


def test_a_relay_runs_by_an_env_file_and_a_toml_file(migrated_database: str, tmp_path: Path) -> None:
    (tmp_path / ".env").write_text(f"DATABASE_URL={migrated_database}\nOUTBOX_CONSUMER_SLOTS=not the relay's\n")
    (tmp_path / "outbox.toml").write_text('[outbox]\nbroker = "postgres"\n[relay]\nlease_s = 20\n')
    code, told = _relay(tmp_path, "check")
    assert code == DONE, told
    assert "OUTBOX_RELAY_LEASE_S=20  # outbox.toml [relay] lease_s" in told.splitlines()
    (tmp_path / "outbox.toml").write_text('[outbox]\nbroker = "postgres"\n[relay]\nlease_s = 0\nlees_s = 1\n')
    code, told = _relay(tmp_path, "check")
    assert (code, told) == (
        CONFIGURATION,
        "outbox-relay: [relay] lease_s (outbox.toml): want a number, 3..600, got 0;"
        " [relay] lees_s (outbox.toml): no such setting, did you mean [relay] lease_s?\n",
    )
