"""``outbox doctor``: what is wrong with a deployment, a line per check, each with its remedy."""

import asyncio
import os
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from consumer.settings import PREFIX as CONSUMER_PREFIX
from consumer.settings import ConsumerSettings
from consumer.settings import StatusSettings as ConsumerPlaces
from outbox.errors import OutboxError
from outbox.shell.commands import AsJson, command
from outbox.shell.console import console, print_json, progress
from outbox.shell.exits import CONFIGURATION, DONE
from outbox.shell.hush import libraries_hushed
from outbox.shell.logs import harmless
from outbox.shell.setting_sources import collect
from outbox.shell.settings import load, read
from outbox.shell.words import counted
from outbox_admin.choices import Group
from outbox_admin.doctor.examination import Patient, examine
from outbox_admin.doctor.finding import Finding, Level, ok, problem
from outbox_admin.doctor.needs import Process
from outbox_admin.settings import settings
from relay.settings import PREFIX as RELAY_PREFIX
from relay.settings import StatusSettings as RelayPlaces

app: Final = typer.Typer(add_completion=False)

_STYLES: Final = {Level.OK: "green", Level.WARNING: "yellow", Level.PROBLEM: "bold red"}


@command(
    app,
    examples=(
        "outbox doctor",
        "outbox doctor shop.billing:consumer --group billing",
        "outbox doctor --for app --json",
    ),
)
def doctor(
    app_name: Annotated[
        str | None, typer.Argument(metavar="APP", help="Also whether this Consumer loads, as shop.billing:consumer.")
    ] = None,
    *,
    group: Group = None,
    processes: Annotated[
        list[Process] | None,
        typer.Option(
            "--for",
            metavar="PROCESS",
            help="Whose privileges to judge: app, relay or consumer, may be repeated; the last two if not given.",
        ),
    ] = None,
    management: Annotated[
        str | None,
        typer.Option(metavar="URL", help="RabbitMQ's HTTP API, with its path; port 15672 of its host if not given."),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Look at everything that a deployment leans on, and say of each finding what to do. Changes nothing.

    Use it before the first start, after an upgrade, and when something is odd and `status` does not say why. It ends
    with 0 if there is no problem, and with 78 if there is one; warnings do not count.
    """
    found = [] if app_name is None else [_loaded(app_name)]
    patient = _patient(group, processes or [Process.RELAY, Process.CONSUMER], management)
    with libraries_hushed():
        found += asyncio.run(_examined(patient, console(), is_quiet=as_json, first=found))
    counts = Counter(finding.level for finding in found)
    if as_json:
        print_json({"findings": [asdict(one) for one in found], **{f"{level}s": counts[level] for level in Level}})
    else:
        told = ", ".join(counted(counts[level], level) for level in (Level.PROBLEM, Level.WARNING))
        typer.echo(f"{told}, {counts[Level.OK]} ok")
    return CONFIGURATION if counts[Level.PROBLEM] else DONE


async def _examined(patient: Patient, out: Console, *, is_quiet: bool, first: Sequence[Finding]) -> list[Finding]:
    found = []
    # Lines that come one by one are progress enough.
    with progress("looking") if is_quiet else nullcontext():
        if not is_quiet:
            for finding in first:
                _print(finding, out)
        async for finding in examine(patient):
            found.append(finding)
            if not is_quiet:
                _print(finding, out)
    return found


def _print(finding: Finding, out: Console) -> None:
    row = Table.grid(padding=(0, 1))
    for width in (7, 19):
        row.add_column(width=width)
    row.add_column(overflow="fold")
    says = Text(harmless(finding.says))
    if finding.remedy:
        says.append(f"\n→ {harmless(finding.remedy)}", style="cyan")
    row.add_row(Text(finding.level, style=_STYLES[finding.level]), Text(finding.subject, style="bold"), says)
    out.print(row)


def _patient(group: str | None, processes: Sequence[Process], management: str | None) -> Patient:
    places = settings()
    sources = collect(os.environ, directory=Path())
    consumer = read(ConsumerSettings, prefix=CONSUMER_PREFIX, sources=sources, is_partial=True).settings
    defaults = ConsumerSettings.model_fields
    return Patient(
        places=places,
        roles={process: _url_of(process) for process in processes},
        group=group,
        slots=consumer.slots if consumer else defaults["slots"].default,
        queue_kind=consumer.queue_kind if consumer else defaults["queue_kind"].default,
        management=management,
    )


def _url_of(process: Process) -> str:
    """The address that *process* would be given here: it may have a role, or a database, of its own."""
    directory = Path()
    match process:
        case Process.RELAY:
            relay = load(RelayPlaces, prefix=RELAY_PREFIX, environment=os.environ, directory=directory, is_partial=True)
            return relay.database_url.get_secret_value()
        case Process.CONSUMER:
            places = load(
                ConsumerPlaces, prefix=CONSUMER_PREFIX, environment=os.environ, directory=directory, is_partial=True
            )
            return places.database_url.get_secret_value()
        case Process.APP:
            return settings().database_url.get_secret_value()


def _loaded(app_name: str) -> Finding:
    from consumer.app import load_consumer

    try:
        consumer = load_consumer(app_name, directory=os.getcwd())
    except OutboxError as error:
        return problem(
            "app",
            str(error).removeprefix("app: "),
            "run it where the app can be imported, and name it as module:attribute",
        )
    return ok(
        "app", f"{app_name} handles {counted(len(consumer.registry.types), 'event type')} for group {consumer.group}"
    )
