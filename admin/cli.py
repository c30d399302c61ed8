"""The ``outbox`` command: migrate, groups, what failed, what is to be sent again, and the demo."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Final

import typer

from admin import (
    config_cli,
    control_cli,
    dead_cli,
    deferred_cli,
    demo_cli,
    rebase_cli,
    replay_cli,
    result_cli,
    tenant_cli,
)
from admin import migrate as migrations
from admin.audit import Actor, named
from admin.choices import DryRun, Yes
from admin.desks import desk
from admin.group_removal import remove, survey
from admin.groups import Group, add_group, add_past_group, list_groups
from admin.prompt import ask
from admin.settings import database_url
from admin.times import moment
from outbox.errors import ConfigError
from outbox.naming import check_group
from outbox.shell.database import connect
from outbox.shell.exits import run_cli

app: Final = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Fairpost's administration: migrate the database, name groups, mend what failed, send again, see a demo.",
    epilog="The database is named by OUTBOX_DATABASE_URL or DATABASE_URL.",
)
group_app: Final = typer.Typer(no_args_is_help=True, help="Groups: the services that each handle every event once.")
app.add_typer(group_app, name="group")
app.add_typer(config_cli.app, name="config")
app.add_typer(deferred_cli.app, name="deferred")
app.add_typer(dead_cli.app, name="dead")
app.add_typer(replay_cli.app, name="replay")
app.add_typer(tenant_cli.app, name="tenant")
app.command("pause")(control_cli.pause)
app.command("resume")(control_cli.resume)
app.command("paused")(control_cli.paused)
app.command("result")(result_cli.result)
app.command("rebase")(rebase_cli.rebase)
app.command("demo")(demo_cli.demo)


class ChainName(StrEnum):
    """Which tables."""

    OUTBOX = "outbox"
    CONSUMER = "consumer"
    BROKER = "broker"
    ALL = "all"


_CHAINS: Final[dict[ChainName, tuple[migrations.Chain, ...]]] = {
    ChainName.OUTBOX: ("outbox",),
    ChainName.CONSUMER: ("consumer",),
    ChainName.BROKER: ("broker",),
    ChainName.ALL: migrations.CHAINS,
}


@app.command()
def migrate(
    *,
    chain: Annotated[ChainName, typer.Option(help="Which tables; they may live in several databases.")] = ChainName.ALL,
    down: Annotated[bool, typer.Option("--down", help="Remove the tables, and everything in them.")] = False,
    sql: Annotated[bool, typer.Option("--sql", help="Print the SQL instead; needs no database.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Only say whether anything is left to apply.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before removing.")] = False,
) -> None:
    """Create our tables, or bring them up to date. Safe to repeat; an app's own tables are never touched."""
    if check and (sql or down):
        raise typer.BadParameter("--check goes with neither --down nor --sql")
    chains = _CHAINS[chain]
    if sql:
        typer.echo(migrations.sql(chains=chains, down=down))
        return
    url = database_url()
    if check:
        _check(migrations.status(url, chains=chains))
        return
    if down:
        if not yes:
            ask(f"Remove every table of {' and '.join(chains)}, with all events in them?")
        migrations.downgrade(url, chains=chains)
    else:
        migrations.upgrade(url, chains=chains)
    for status in migrations.status(url, chains=chains):
        typer.echo(f"{status.chain}: {status.current or 'nothing'}")


@group_app.command("add")
def group_add(
    name: Annotated[str, typer.Argument(help="1..63 of a-z, 0-9, _ and -.")],
    *,
    start: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help="Start in the past, as 2026-11-29T12:00:00Z or oldest.")
    ] = None,
    actor: Actor = None,
) -> None:
    """Let a new group read the log: every event committed from now on, or all that the log has since TIME."""
    try:
        check_group(name)
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from None
    if start is None:
        asyncio.run(_add(name, actor=named(actor)))
        typer.echo(f"group {name} reads every event committed from now on")
        return
    since = asyncio.run(_add_past(name, moment("--from", start), actor=named(actor)))
    typer.echo(f"group {name} reads every event from {since.astimezone(UTC):%Y-%m-%d %H:%M:%S %Z} on")


@group_app.command("remove")
def group_remove(
    name: Annotated[str, typer.Argument(help="A group whose consumers were stopped.")],
    *,
    actor: Actor = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Let a group read the log no more, and delete its queues, work rows and dead letters: they are never handled.

    For a service that is gone, or has moved to another group. Choose another name for a new one: the ledger knows this
    one's until its horizon has passed.
    """
    asyncio.run(_remove(name, actor=named(actor), is_sure=yes, dry_run=dry_run))


@group_app.command("list")
def group_list(*, as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """List the groups, and since when each reads the log."""
    groups = asyncio.run(_list())
    if as_json:
        typer.echo(json.dumps([asdict(group) for group in groups], default=str))
        return
    width = max((len(group.name) for group in groups), default=0)
    for group in groups:
        typer.echo(f"{group.name:{width}}  since {group.started_at:%Y-%m-%d %H:%M:%S %Z}")


def main() -> None:
    """Run the command and leave the process."""
    run_cli(app, name="outbox")


async def _add(name: str, *, actor: str) -> None:
    async with await connect(database_url(), application_name="outbox") as connection:
        await add_group(connection, name, actor=actor)


async def _add_past(name: str, since: datetime | None, *, actor: str) -> datetime:
    async with await connect(database_url(), application_name="outbox") as connection:
        return await add_past_group(connection, name, since=since, actor=actor)


async def _remove(name: str, *, actor: str, is_sure: bool, dry_run: bool) -> None:
    async with await connect(database_url(), application_name="outbox") as connection:
        found = await survey(connection, name)
        what = f"{len(found.queues)} queues, {found.work} work rows, {found.dead} open dead letters"
        typer.echo(f"group {name}: {what}, {found.deferred} deferred events")
        if dry_run:
            return
        opened = desk("outbox group remove")
        if not is_sure:
            ask(f"Remove group {name}, and never handle what is left of it?")
        await remove(connection, opened, found, actor=actor, tell=typer.echo)


async def _list() -> list[Group]:
    async with await connect(database_url(), application_name="outbox") as connection:
        return await list_groups(connection)


def _check(statuses: Sequence[migrations.Status]) -> None:
    behind = [status for status in statuses if not status.is_current]
    for status in statuses:
        typer.echo(f"{status.chain}: {status.current or 'nothing'}, newest {status.newest}")
    if behind:
        names = " and ".join(status.chain for status in behind)
        raise ConfigError(f"want the newest revision, got {names} behind it; run 'outbox migrate'")
