"""``outbox tenant``: remove the queues of a tenant who has left, without losing what is in them or on its way."""

import asyncio
from typing import Annotated, Final

import typer

from admin.audit import Actor, named
from admin.offboarding import find, keep, offboard
from admin.prompt import ask
from admin.settings import broker_url, database_url
from consumer.rabbitmq.connection import Address
from outbox.errors import ConfigError, InvalidEvent, TenantRequired
from outbox.naming import check_group, check_tenant
from outbox.shell.database import connect

app: Final = typer.Typer(no_args_is_help=True, help="Tenants: remove the queues of one that has left.")

Groups = Annotated[list[str] | None, typer.Option("--group", "-g", help="Only these groups' queues; may be repeated.")]


@app.callback()
def tenants() -> None:
    """Tenants: remove the queues of one that has left."""


@app.command("offboard")
def offboard_tenant(
    tenant: Annotated[str, typer.Argument(help="The tenant's id, as its events have it.")],
    *,
    group: Groups = None,
    within_s: Annotated[float, typer.Option("--within", min=1, help="Seconds to wait before giving up.")] = 300.0,
    actor: Actor = None,
    undo: Annotated[bool, typer.Option("--keep", help="Take back an off-boarding that has not ended.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say which queues there are.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete a tenant's queues once they are worked off. A relay must run, and consumers where anything is left.

    Nothing is lost: what is emitted meanwhile waits in the log, and then the queue is made again. Safe to break off and
    to repeat; until it has ended, or --keep has taken it back, the tenant's events wait.
    """
    try:
        check_tenant(tenant)
        for name in group or ():
            check_group(name)
    except (ConfigError, InvalidEvent, TenantRequired) as error:
        raise typer.BadParameter(str(error)) from None
    asyncio.run(_run(tenant, group, within_s=within_s, actor=named(actor), undo=undo, dry_run=dry_run, yes=yes))


async def _run(
    tenant: str,
    groups: list[str] | None,
    *,
    within_s: float,
    actor: str,
    undo: bool,
    dry_run: bool,
    yes: bool,
) -> None:
    async with await connect(database_url(), application_name="outbox") as connection:
        lanes = await find(connection, tenant, groups=groups or None)
        if undo:
            lanes = [one for one in lanes if one.is_marked]
        for one in lanes:
            typer.echo(f"{one.lane.queue}{', being off-boarded' if one.is_marked else ''}")
        if not lanes or dry_run:
            typer.echo(f"{len(lanes)} queues")
            return
        if undo:
            await keep(connection, lanes, actor=actor)
            typer.echo(f"kept {len(lanes)}")
            return
        address = Address(url=broker_url(), name="outbox tenant offboard")
        if not yes:
            ask(f"Delete {'it' if len(lanes) == 1 else f'these {len(lanes)}'} once worked off?")
        await offboard(connection, address, lanes, actor=actor, within_s=within_s, tell=typer.echo)
        typer.echo(f"off-boarded {len(lanes)}")
