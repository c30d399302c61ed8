"""``outbox group``: the services that each handle every event once."""

import asyncio
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Final

import typer

from outbox.errors import ConfigError
from outbox.naming import check_group
from outbox.shell import completion
from outbox.shell.commands import AsJson, command, group
from outbox.shell.console import note, print_json, progress
from outbox.shell.database import connect
from outbox.shell.words import counted, in_utc
from outbox_admin.audit import named
from outbox_admin.choices import Actor, DryRun, Yes
from outbox_admin.desks import desk
from outbox_admin.group_removal import Survey, remove, survey
from outbox_admin.groups import Group, add_group, add_past_group, list_groups
from outbox_admin.prompt import ask
from outbox_admin.settings import database_url
from outbox_admin.times import moment

app: Final = group(help="Groups: the services that each handle every event once. Add one before its consumer starts.")


@command(app, "add", examples=("outbox group add billing", "outbox group add billing-v2 --from 2026-11-29T12:00:00Z"))
def group_add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="1..63 of a-z, 0-9, _ and -.")],
    *,
    start: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help="Start in the past, as 2026-11-29T12:00:00Z or oldest.")
    ] = None,
    actor: Actor = None,
    as_json: AsJson = False,
) -> None:
    """Let a new group read the log: every event committed from now on, or all that the log has since TIME.

    Use it once per service that handles events, before its consumer starts; --from catches up on what it missed.
    """
    try:
        check_group(name)
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from None
    if start is None:
        asyncio.run(_add(name, actor=named(actor)))
        if as_json:
            print_json({"group": name, "from": None})
        else:
            typer.echo(f"group {name} reads every event committed from now on")
        return
    since = asyncio.run(_add_past(name, moment("--from", start), actor=named(actor)))
    if as_json:
        print_json({"group": name, "from": since})
        return
    typer.echo(f"group {name} reads every event from {in_utc(since)} on")


@command(app, "remove", examples=("outbox group remove billing --dry-run", "outbox group remove billing --yes"))
def group_remove(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="A group whose consumers were stopped.", autocompletion=completion.groups),
    ],
    *,
    actor: Actor = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Let a group read the log no more, and delete its queues, work rows and dead letters: they are never handled.

    Use it for a service that is gone, or has moved to another group. Choose another name for a new one: the ledger
    knows this one's until its horizon has passed.
    """
    found = asyncio.run(_remove(name, actor=named(actor), is_sure=yes, dry_run=dry_run))
    if as_json:
        print_json(asdict(found) | {"is_removed": not dry_run})
    else:
        typer.echo(f"{_told(found)}{'' if dry_run else ': removed'}")


@command(app, "list", examples=("outbox group list", "outbox group list --json"))
def group_list(*, as_json: AsJson = False) -> None:
    """List the groups, and since when each reads the log.

    Use it to see which names `--group` takes.
    """
    groups = asyncio.run(_list())
    if as_json:
        print_json(groups)
        return
    width = max((len(one.name) for one in groups), default=0)
    for one in groups:
        typer.echo(f"{one.name:{width}}  since {in_utc(one.started_at)}")


async def _add(name: str, *, actor: str) -> None:
    async with await connect(database_url(), application_name="outbox") as connection:
        await add_group(connection, name, actor=actor)


async def _add_past(name: str, since: datetime | None, *, actor: str) -> datetime:
    async with await connect(database_url(), application_name="outbox") as connection:
        return await add_past_group(connection, name, since=since, actor=actor)


async def _remove(name: str, *, actor: str, is_sure: bool, dry_run: bool) -> Survey:
    async with await connect(database_url(), application_name="outbox") as connection:
        found = await survey(connection, name)
        if dry_run:
            return found
        opened = desk("outbox group remove")
        if not is_sure:
            ask(f"Remove {_told(found)}, and never handle what is left of it?")
        with progress(f"removing group {name}"):
            await remove(connection, opened, found, actor=actor, tell=note)
        return found


def _told(found: Survey) -> str:
    left = {
        "queue": len(found.queues),
        "work row": found.work,
        "open dead letter": found.dead,
        "deferred event": found.deferred,
    }
    return f"group {found.group}: {', '.join(counted(number, noun) for noun, number in left.items())}"


async def _list() -> list[Group]:
    async with await connect(database_url(), application_name="outbox") as connection:
        return await list_groups(connection)
