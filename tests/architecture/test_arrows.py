"""The arrows between packages, and what an import may bring along."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# What an app that only emits must never load: it has none of it installed.
_NOT_FOR_APPS = (
    "aio_pika",
    "aiormq",
    "alembic",
    "pamqp",
    "prometheus_client",
    "psycopg",
    "rich",
    "structlog",
    "tenacity",
    "typer",
    "relay",
    "consumer",
    "outbox_admin",
    "migrations",
    "outbox.shell",
)


def test_every_import_points_down_the_floors() -> None:
    linter = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([linter, "--no-logo", "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_app_that_emits_loads_no_client_no_driver_and_no_process() -> None:
    script = f"import sys, outbox; print([name for name in {_NOT_FOR_APPS!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(("package", "other"), [("relay", "consumer"), ("consumer", "relay")])
def test_a_process_loads_nothing_of_the_other(package: str, other: str) -> None:
    loaded = f"[name for name in sys.modules if name.split('.')[0] in {(other, 'outbox_admin')!r}]"
    script = f"import sys, {package}.cli; print({loaded})"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
