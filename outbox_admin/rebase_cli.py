"""``outbox rebase``: the database was restored, or a standby was promoted, and the relay refuses it."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Final

import typer

from outbox.shell.commands import AsJson, command
from outbox.shell.console import note, print_json, progress
from outbox.shell.database import connect
from outbox_admin.audit import named
from outbox_admin.choices import Actor, DryRun, Yes
from outbox_admin.prompt import ask
from outbox_admin.rebase import Done, Preview, preview
from outbox_admin.rebase import rebase as do_rebase
from outbox_admin.settings import database_url

app: Final = typer.Typer(add_completion=False)

_NOTHING: Final = "the positions belong to this database: nothing to rebase"


@command(app, examples=("outbox rebase --dry-run", "outbox rebase --yes"))
def rebase(*, dry_run: DryRun = False, yes: Yes = False, actor: Actor = None, as_json: AsJson = False) -> None:
    """Make the positions this database's own, after a restore or a failover. Stop the apps and the relays first.

    Use it when relays say that the stored positions are of another database.
    """
    url = database_url()
    # With --json the document is all that is printed; what a question is about is said on standard error.
    say = note if as_json else typer.echo
    if dry_run or not yes:
        found = asyncio.run(_preview(url))
        if found.difference is None:
            _nothing(as_json=as_json)
            return
        say(f"the positions belong to another database: {found.difference}")
        _tell(found.waiting, say)
        if dry_run:
            say("nothing was changed")
            if as_json:
                print_json({"is_rebased": False, "difference": found.difference, "waiting": dict(found.waiting)})
            return
        ask(f"Rebase, and publish {sum(found.waiting.values()):,} events?")
    with progress("rebasing"):
        done = asyncio.run(_rebase(url, named(actor)))
    if done is None:
        _nothing(as_json=as_json)
        return
    if as_json:
        print_json({"is_rebased": True, **asdict(done)})
        return
    if yes:
        _tell(done.waiting, say)
    say(f"rebased {done.bases} bases and {done.streams} streams")
    say(f"{done.stamped} events were stamped anew; the dead row that each left is vacuum's to remove")


def _nothing(*, as_json: bool) -> None:
    if as_json:
        print_json({"is_rebased": False, "difference": None, "waiting": {}})
    else:
        typer.echo(_NOTHING)


def _tell(waiting: Mapping[str, int], say: Callable[[str], None]) -> None:
    width = max(map(len, waiting), default=0)
    for group, count in waiting.items():
        say(f"group {group:{width}}  {count} events to be published")
    say("events that were published after this state of the database was saved are among them, and come again")


async def _preview(url: str) -> Preview:
    async with await connect(url, application_name="outbox") as connection:
        return await preview(connection)


async def _rebase(url: str, actor: str) -> Done | None:
    async with await connect(url, application_name="outbox") as connection:
        return await do_rebase(connection, actor=actor)
