"""An app that only emits installs SQLAlchemy and pydantic, and nothing of the processes'."""

import subprocess
import sys

_EXTRAS = (
    "psycopg",
    "aio_pika",
    "aiormq",
    "pamqp",
    "alembic",
    "dotenv",
    "pydantic_settings",
    "structlog",
    "typer",
    "rich",
    "greenlet",
)
_SCRIPT = f"""
import sys
for name in {_EXTRAS!r}:
    sys.modules[name] = None  # an import of it fails, as where it is not installed
import outbox, outbox.autogenerate, outbox.wire, outbox.backoff, outbox.topology
from sqlalchemy.orm import Session
from outbox import Outbox
Outbox("/svc/shop")
"""


def test_the_app_side_runs_without_any_extra() -> None:
    done = subprocess.run([sys.executable, "-W", "error", "-c", _SCRIPT], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
