"""The ``outbox-relay`` command."""

import asyncio
import logging
import os
from typing import Annotated, Final

import typer

from outbox.shell.exits import run_cli
from outbox.shell.settings import BrokerName, load, shown
from relay.settings import PREFIX, RelaySettings, StatusSettings

app: Final = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Publishes committed events from PostgreSQL to RabbitMQ, or to queues in PostgreSQL itself.",
    epilog="Settings are environment variables: OUTBOX_RELAY_*, DATABASE_URL and RABBITMQ_URL. `check` shows them all.",
)

Broker = Annotated[BrokerName | None, typer.Option(help="Where queues are; else by the setting.", show_default=False)]
_DATABASE_NAMES: Final = (f"{PREFIX}DATABASE_URL", "OUTBOX_DATABASE_URL", "DATABASE_URL")


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
    settings = _settings(broker)
    for name, value in shown(settings, prefix=PREFIX):
        typer.echo(f"{name}={value}")
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
    named = {name: os.environ[name] for name in _DATABASE_NAMES if name in os.environ}
    settings = load(StatusSettings, prefix=PREFIX, environment=named)
    found = asyncio.run(read(settings.database_url.get_secret_value()))
    if as_json:
        typer.echo(status_text.as_json(found))
    else:
        console().print(status_text.render(found))


def main() -> None:
    """Run the command; see ``outbox.shell.exits`` for how it ends."""
    run_cli(app, name="outbox-relay")


def _settings(broker: BrokerName | None) -> RelaySettings:
    chosen = {} if broker is None else {f"{PREFIX}BROKER": broker}
    return load(RelaySettings, prefix=PREFIX, environment=os.environ | chosen)
