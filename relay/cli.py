"""The ``outbox-relay`` command."""

import asyncio
import logging
import os
from pathlib import Path
from typing import Annotated, Final

import typer

from outbox.shell.exits import run_cli
from outbox.shell.setting_sources import collect
from outbox.shell.setting_types import BrokerName
from outbox.shell.settings import Reading, load, read
from relay.settings import PREFIX, RelaySettings, StatusSettings

app: Final = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Publishes committed events from PostgreSQL to RabbitMQ, or to queues in PostgreSQL itself.",
    epilog="Settings are environment variables: OUTBOX_RELAY_*, DATABASE_URL and RABBITMQ_URL. `check` shows them all.",
)

Broker = Annotated[BrokerName | None, typer.Option(help="Where queues are; else by the setting.", show_default=False)]


@app.command()
def run(*, broker: Broker = None) -> int:
    """Publish until SIGTERM, then wait for confirms, hand over, and end; a second SIGTERM ends it at once."""
    from relay.process import run_process

    return asyncio.run(run_process(_settings(broker)))


@app.command()
def check(*, broker: Broker = None) -> None:
    """Say whether settings, database and broker would do. Makes our exchanges if need be, and publishes nothing."""
    from relay.process import check_services

    # What libraries log of a failed connection says less than our one sentence.
    logging.disable()
    reading = _reading(broker)
    settings = reading.required()
    for line in reading.lines:
        typer.echo(line)
    asyncio.run(check_services(settings))
    typer.echo("settings, database and broker are in order")


@app.command()
def status(
    *, as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of tables.")] = False
) -> None:
    """Show what is not published yet, of whom and since when; which relays share the work; what is deferred."""
    from outbox.shell.console import console
    from relay import status_text
    from relay.status import read

    # Of the relay's settings it needs the address alone, and the others may be wrong or missing.
    settings = load(StatusSettings, prefix=PREFIX, environment=os.environ, directory=Path(), is_partial=True)
    found = asyncio.run(read(settings.database_url.get_secret_value()))
    if as_json:
        typer.echo(status_text.as_json(found))
    else:
        console().print(status_text.render(found))


def main() -> None:
    """Run the command; see ``outbox.shell.exits`` for how it ends."""
    run_cli(app, name="outbox-relay")


def _settings(broker: BrokerName | None) -> RelaySettings:
    return _reading(broker).required()


def _reading(broker: BrokerName | None) -> Reading[RelaySettings]:
    sources = collect(os.environ, directory=Path(), options={"--broker": broker})
    return read(RelaySettings, prefix=PREFIX, sources=sources)
