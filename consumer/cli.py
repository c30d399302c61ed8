"""The ``outbox-consumer`` command."""

import asyncio
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final
from uuid import UUID

import typer

from outbox.errors import BrokerUnavailable, ConfigError
from outbox.shell import completion
from outbox.shell.commands import WHICH, AsJson, command, extended, root
from outbox.shell.exits import DONE, TRY_AGAIN, run_cli
from outbox.shell.options import Broker, group_option
from outbox.shell.words import counted

if TYPE_CHECKING:
    from consumer.api import Consumer
    from consumer.decide.verification import Wanted
    from consumer.settings import ConsumerSettings, StatusSettings
    from consumer.verify import Fleet, Verdict
    from outbox.naming import Lane
    from outbox.shell.setting_types import BrokerName
    from outbox.shell.settings import Reading

_commands: Final = root(
    help="Takes events from RabbitMQ or PostgreSQL, fairly per tenant, and runs an app's handlers once per event.",
    epilog="Settings: OUTBOX_CONSUMER_*, DATABASE_URL and RABBITMQ_URL, from env, .env or outbox.toml: see `check`.",
)


def _check_tiers(text: str | None) -> str | None:
    from consumer.settings import read_tiers

    try:
        return text if text is None else ",".join(tier.label for tier in read_tiers(text))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


Tiers = Annotated[
    str | None,
    typer.Option(
        metavar="TIER,...",
        callback=_check_tiers,
        help="Serve these alone, as in interactive; else by the setting.",
        autocompletion=completion.tiers,
    ),
]
OnlyGroup = Annotated[str, group_option("Which group; the only one there is, if not given.")]
AppName = Annotated[str, typer.Argument(metavar="APP", help="Where the Consumer is, as in shop.billing:consumer.")]


@command(
    _commands,
    examples=(
        "outbox-consumer run shop.billing:consumer",
        "outbox-consumer run shop.billing:consumer --processes 4",
        "outbox-consumer run shop.billing:consumer --tiers interactive",
    ),
)
def run(
    app_name: AppName,
    *,
    processes: Annotated[
        int | None, typer.Option(min=1, max=64, help="How many, each with its own slots; else by the setting.")
    ] = None,
    tiers: Tiers = None,
    broker: Broker = None,
) -> int:
    """Handle events until SIGTERM, then finish what runs and end; a second SIGTERM ends it at once.

    Use it as a service; any number of them share a group's work.
    """
    from consumer.event_loop import run_on
    from consumer.process import run_process, run_supervisor

    settings = _settings(tiers, broker, processes)
    if settings.processes > 1:
        return run_on(settings.loop, run_supervisor(app_name, settings, processes=settings.processes))
    return run_on(settings.loop, run_process(_load(app_name), settings, app_name=app_name))


@_commands.command(hidden=True)
def worker(
    app_name: AppName, number: int, descriptor: int, *, after: str = "", tiers: Tiers = None, broker: Broker = None
) -> int:
    """Be one of several processes; ``run --processes`` starts it."""
    from consumer.event_loop import run_on
    from consumer.process import run_worker

    settings = _settings(tiers, broker)
    running = run_worker(
        _load(app_name),
        settings,
        app_name=app_name,
        number=number,
        descriptor=descriptor,
        after=UUID(after) if after else None,
    )
    return run_on(settings.loop, running)


@_commands.command(hidden=True)
def suspect(app_name: AppName, incarnation: UUID, descriptor: int, *, broker: Broker = None) -> int:
    """Handle one event that a process has died of, and end; a running consumer starts it."""
    from consumer.event_loop import run_on
    from consumer.process import run_alone

    settings = _settings(broker=broker)
    return run_on(settings.loop, run_alone(_load(app_name), settings, id=incarnation, descriptor=descriptor))


@_commands.command(hidden=True)
def isolated(app_name: AppName, descriptor: int, *, broker: Broker = None) -> int:
    """Run handlers that want a process of their own, one at a time; a running consumer starts it."""
    from consumer.event_loop import run_on
    from consumer.process import run_isolated

    settings = _settings(broker=broker)
    return run_on(settings.loop, run_isolated(_load(app_name), settings, descriptor=descriptor))


@command(_commands, examples=("outbox-consumer check shop.billing:consumer",))
def check(app_name: AppName, *, broker: Broker = None, as_json: AsJson = False) -> None:
    """Say whether app, settings, database and broker would do. Makes the group's own queues if need be.

    Use it before the first start, and after a change of settings or handlers; `outbox doctor` looks closer.
    """
    from consumer.process import check_services
    from outbox.shell.console import print_json

    # What libraries log of a failed connection says less than our one sentence.
    logging.disable()
    consumer, reading = _load(app_name), _reading(broker=broker)
    settings = reading.required()
    if not as_json:
        for line in reading.lines:
            typer.echo(line)
    asyncio.run(check_services(consumer, settings))
    if as_json:
        shown = {row.setting.variable: row.setting.shown(row.value) for row in reading.rows}
        print_json({"settings": shown, "event_types": list(consumer.registry.types), "is_in_order": True})
    else:
        handled = counted(len(consumer.registry.types), "event type")
        typer.echo(f"app, settings, database and broker are in order: {handled}")


@command(_commands, examples=("outbox-consumer handlers shop.billing:consumer",))
def handlers(app_name: AppName, *, as_json: AsJson = False) -> None:
    """List what is handled, by what, and how often it is tried. Asks nobody.

    Use it to see what an app would do with its events, without a server.
    """
    from consumer.registry import Isolation
    from outbox.shell.console import console, print_json, table

    consumer = _load(app_name)
    found = [
        {
            "event_type": event_type,
            "handler": one.name,
            "payload": None if one.model is None else one.model.__name__,
            "version": None if one.model is None else one.model.event_version,
            "is_async": one.is_async,
            "is_isolated": one.isolation is Isolation.PROCESS,
            "attempts": one.policy.max_retries + 1,
            "deadline_s": one.deadline_s,
        }
        for event_type in consumer.registry.types
        for one in consumer.registry.handlers_of(event_type)
    ]
    if as_json:
        print_json(found)
        return
    made = table("event type", "handler", "payload", "kind", "attempts", "deadline", right={"attempts", "deadline"})
    for one in found:
        kind = ("async" if one["is_async"] else "sync") + (", isolated" if one["is_isolated"] else "")
        payload = "plain" if one["payload"] is None else f"{one['payload']} v{one['version']}"
        made.add_row(
            str(one["event_type"]), str(one["handler"]), payload, kind, str(one["attempts"]), f"{one['deadline_s']:g} s"
        )
    console().print(made)


@command(_commands, examples=("outbox-consumer status", "outbox-consumer status --group billing --json"))
def status(*, group: OnlyGroup = "", as_json: AsJson = False) -> None:
    """Say whether anything is stuck, whose it is, and why. Asks the database, and the broker if its address is set.

    Use it first when events are not handled: problems stand at the top.
    """
    asyncio.run(_show_status(_status_settings(), group, as_json=as_json))


@command(
    _commands,
    examples=("outbox-consumer verify --version 2026.11.2", "outbox-consumer verify --group billing --processes 4"),
)
def verify(  # noqa: PLR0913 - a command's options are its arguments
    *,
    group: OnlyGroup = "",
    version: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT", help="Only processes whose OUTBOX_CONSUMER_VERSION is this.", rich_help_panel=WHICH
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Only processes started since, as 2026-11-29T12:00:00Z.", rich_help_panel=WHICH
        ),
    ] = None,
    processes: Annotated[int, typer.Option(min=1, help="At least so many of them.")] = 1,
    settled: Annotated[
        int, typer.Option(min=0, help="At least so many events settled by them; where none waits, 1 asks for none.")
    ] = 1,
    dead: Annotated[int, typer.Option(min=0, help="At most so many dead letters of kinds known before.")] = 0,
    watch_s: Annotated[float, typer.Option("--watch", min=1, help="Seconds in which nothing may get worse.")] = 10.0,
    within_s: Annotated[float, typer.Option("--within", min=1, help="Seconds to wait for all of it.")] = 120.0,
    as_json: AsJson = False,
) -> int:
    """Say whether a new fleet consumes and dead letters don't grow, before the old one is torn down: 0, or 75 if not.

    Use it in a deploy, as its gate. It changes nothing and asks the database, and the broker if its address is set,
    until all is well or time is up.
    """
    from consumer.decide.verification import Wanted
    from consumer.verify import Fleet
    from outbox.shell.console import print_json, progress
    from outbox.shell.logs import harmless
    from outbox.shell.times import parse_moment

    fleet = Fleet(version=version, since=None if since is None else parse_moment("--since", since))
    wanted = Wanted(
        group=group, fleet=str(fleet), processes=processes, settled=settled, dead=dead, watch_s=min(watch_s, within_s)
    )
    settings = _status_settings()
    with progress("watching the new fleet"):
        verdict = asyncio.run(_verify(settings, fleet, wanted, within_s=within_s))
    if as_json:
        print_json(verdict.to_json())
    else:
        for one in verdict.findings:
            step = f"; next: {one.do}" if one.do else ""
            typer.echo(harmless(f"{'ok' if one.is_ok else 'NO':3}{one.name}: {one.says}{step}"))
    return DONE if verdict.is_ok else TRY_AGAIN


app: Final = extended(_commands)


def main() -> None:
    """Run the command; see ``outbox.shell.exits`` for how it ends."""
    run_cli(app, name="outbox-consumer")


def _status_settings() -> "StatusSettings":
    from consumer.settings import PREFIX, StatusSettings
    from outbox.shell.settings import load

    # Of the consumer's settings it needs the addresses alone, and the others may be wrong or missing.
    logging.disable()  # what libraries log of a failed connection says less than our one sentence
    return load(StatusSettings, prefix=PREFIX, environment=os.environ, directory=Path(), is_partial=True)


async def _verify(settings: "StatusSettings", fleet: "Fleet", wanted: "Wanted", *, within_s: float) -> "Verdict":
    from dataclasses import replace

    from consumer import status as statuses
    from consumer.brokers import ready_at
    from consumer.store.desk import Desk
    from consumer.verify import watch

    name = "outbox-consumer verify"
    if settings.broker == "rabbitmq" and settings.rabbitmq_url is None:
        typer.echo("what lies in queues is not known: RABBITMQ_URL is not set", err=True)

    async def depths(lanes: "Sequence[Lane]") -> int:
        return sum((await ready_at(settings, [lane.queue for lane in lanes], name=name) or {}).values())

    desk = Desk(settings.database_url.get_secret_value(), name=name)
    try:
        async with desk.use() as connection:
            # One that is named may have its first process yet to come.
            known = [wanted.group] if wanted.group else await statuses.groups(connection)
            if len(known) != 1:
                raise ConfigError(f"--group: want one of {', '.join(known) or 'those that were added'}, got none")
            return await watch(connection, fleet, replace(wanted, group=known[0]), depths=depths, within_s=within_s)
    finally:
        await desk.close()


async def _show_status(settings: "StatusSettings", group: str, *, as_json: bool) -> None:
    from consumer import status as statuses
    from consumer import status_text
    from consumer.brokers import ready_at
    from consumer.store import directory
    from consumer.store.desk import Desk
    from outbox.shell.console import console, print_json

    desk = Desk(settings.database_url.get_secret_value(), name="outbox-consumer status")
    try:
        async with desk.use() as connection:
            known = await statuses.groups(connection)
            found = [await statuses.read(connection, name) for name in _chosen(group, known)]
            lanes = {one.group: [known.lane for known in await directory.lanes(connection, one.group)] for one in found}
    finally:
        await desk.close()
    queues = [lane.queue for of_group in lanes.values() for lane in of_group]
    try:
        in_queues = await ready_at(settings, queues, name="outbox-consumer status")
    except BrokerUnavailable as error:
        typer.echo(f"what lies in queues is not known: {error}", err=True)
    else:
        if in_queues is not None:
            found = [statuses.with_queues(one, lanes[one.group], in_queues) for one in found]
    if as_json:
        contents = [statuses.to_json(one) for one in found]
        print_json(contents[0] if group or len(contents) == 1 else contents)
        return
    for number, one in enumerate(found):
        if number:
            typer.echo()
        status_text.show(one, console())
    if not found:
        typer.echo("no group has handled anything yet")


def _chosen(group: str, known: list[str]) -> list[str]:
    if group and group not in known:
        wanted = f"one of {', '.join(known)}" if known else "one that has run, and none has"
        raise ConfigError(f"group: want {wanted}, got {group[:80]!r}")
    return [group] if group else known


def _load(app_name: str) -> "Consumer":
    from consumer.app import load_consumer

    return load_consumer(app_name, directory=os.getcwd())


def _settings(
    tiers: str | None = None, broker: "BrokerName | None" = None, processes: int | None = None
) -> "ConsumerSettings":
    return _reading(tiers, broker, processes).required()


def _reading(
    tiers: str | None = None, broker: "BrokerName | None" = None, processes: int | None = None
) -> "Reading[ConsumerSettings]":
    from consumer.settings import PREFIX, ConsumerSettings
    from outbox.shell.setting_sources import collect
    from outbox.shell.settings import read

    options = {"--tiers": tiers, "--broker": broker, "--processes": processes}
    return read(ConsumerSettings, prefix=PREFIX, sources=collect(os.environ, directory=Path(), options=options))
