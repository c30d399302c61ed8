"""The ``outbox-relay`` command."""

import asyncio
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from outbox.shell.commands import AsJson, command, extended, root
from outbox.shell.exits import run_cli
from outbox.shell.options import Broker

if TYPE_CHECKING:
    from outbox.shell.setting_types import BrokerName
    from outbox.shell.settings import Reading
    from relay.settings import RelaySettings

_commands: Final = root(
    help="Publishes committed events from PostgreSQL to RabbitMQ, or to queues in PostgreSQL itself.",
    epilog="Settings: OUTBOX_RELAY_*, DATABASE_URL and RABBITMQ_URL, from env, .env or outbox.toml: see `check`.",
)


@command(_commands, examples=("outbox-relay run", "outbox-relay run --broker postgres"))
def run(*, broker: Broker = None) -> int:
    """Publish until SIGTERM, then wait for confirms, hand over, and end; a second SIGTERM ends it at once.

    Use it as a service; several of them share the work, and take over from one that dies.
    """
    from relay.process import run_process

    return asyncio.run(run_process(_settings(broker)))


@command(_commands, examples=("outbox-relay check", "outbox-relay check --json"))
def check(*, broker: Broker = None, as_json: AsJson = False) -> None:
    """Say whether settings, database and broker would do. Makes our exchanges if need be, and publishes nothing.

    Use it before the first start, and after a change of settings; `outbox doctor` looks closer.
    """
    from outbox.shell.console import print_json
    from relay.process import check_services

    # What libraries log of a failed connection says less than our one sentence.
    logging.disable()
    reading = _reading(broker)
    settings = reading.required()
    if not as_json:
        for line in reading.lines:
            typer.echo(line)
    asyncio.run(check_services(settings))
    if as_json:
        shown = {row.setting.variable: row.setting.shown(row.value) for row in reading.rows}
        print_json({"settings": shown, "is_in_order": True})
    else:
        typer.echo("settings, database and broker are in order")


@command(_commands, examples=("outbox-relay status", "outbox-relay status --json"))
def status(*, as_json: AsJson = False) -> None:
    """Show what is not published yet, of whom and since when; which relays share the work; what is deferred.

    Use it first when events are late: problems stand at the top.
    """
    from outbox.shell.console import console
    from outbox.shell.settings import load
    from relay import status_text
    from relay.settings import PREFIX, StatusSettings
    from relay.status import read

    # Of the relay's settings it needs the address alone, and the others may be wrong or missing.
    settings = load(StatusSettings, prefix=PREFIX, environment=os.environ, directory=Path(), is_partial=True)
    found = asyncio.run(read(settings.database_url.get_secret_value()))
    if as_json:
        typer.echo(status_text.as_json(found))
    else:
        console().print(status_text.render(found))


app: Final = extended(_commands)


def main() -> None:
    """Run the command; see ``outbox.shell.exits`` for how it ends."""
    run_cli(app, name="outbox-relay")


def _settings(broker: "BrokerName | None") -> "RelaySettings":
    return _reading(broker).required()


def _reading(broker: "BrokerName | None") -> "Reading[RelaySettings]":
    from outbox.shell.setting_sources import collect
    from outbox.shell.settings import read
    from relay.settings import PREFIX, RelaySettings

    sources = collect(os.environ, directory=Path(), options={"--broker": broker})
    return read(RelaySettings, prefix=PREFIX, sources=sources)
