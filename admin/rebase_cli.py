"""``outbox rebase``: the database was restored, or a standby was promoted, and the relay refuses it."""

import asyncio
from collections.abc import Mapping
from typing import Annotated, Final

import typer

from admin.audit import Actor, named
from admin.prompt import ask
from admin.rebase import Done, Preview, preview
from admin.rebase import rebase as do_rebase
from admin.settings import database_url
from outbox.shell.database import connect

_NOTHING: Final = "the positions belong to this database: nothing to rebase"


def rebase(
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be published then.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    actor: Actor = None,
) -> None:
    """Make the positions this database's own, after a restore or a failover. Stop the apps and the relays first."""
    url = database_url()
    if dry_run or not yes:
        found = asyncio.run(_preview(url))
        if found.difference is None:
            typer.echo(_NOTHING)
            return
        typer.echo(f"the positions belong to another database: {found.difference}")
        _tell(found.waiting)
        if dry_run:
            typer.echo("nothing was changed")
            return
        ask("Rebase?")
    done = asyncio.run(_rebase(url, named(actor)))
    if done is None:
        typer.echo(_NOTHING)
        return
    if yes:
        _tell(done.waiting)
    typer.echo(f"rebased {done.bases} bases and {done.streams} streams")
    typer.echo(f"{done.stamped} events were stamped anew; the dead row that each left is vacuum's to remove")


def _tell(waiting: Mapping[str, int]) -> None:
    width = max(map(len, waiting), default=0)
    for group, count in waiting.items():
        typer.echo(f"group {group:{width}}  {count} events to be published")
    typer.echo("events that were published after this state of the database was saved are among them, and come again")


async def _preview(url: str) -> Preview:
    async with await connect(url, application_name="outbox") as connection:
        return await preview(connection)


async def _rebase(url: str, actor: str) -> Done | None:
    async with await connect(url, application_name="outbox") as connection:
        return await do_rebase(connection, actor=actor)
