"""``outbox tenant``: how one tenant does, pausing it, its share, and removing the queues of one that has left."""

import asyncio
import json
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Final

import typer

from admin import control, control_cli, tenant_status, tenant_text
from admin.audit import Actor, named
from admin.choices import AsJson
from admin.desks import desk
from admin.offboarding import find, keep, offboard
from admin.prompt import ask
from admin.settings import database_url, settings
from admin.tenant_status import TenantStatus
from consumer.brokers import ready_at
from consumer.decide.control import WEIGHT_MAX, Scope
from outbox.errors import ConfigError, InvalidEvent, TenantRequired
from outbox.naming import check_group, check_tenant
from outbox.shell.console import console
from outbox.shell.database import connect, store_errors

app: Final = typer.Typer(
    no_args_is_help=True, help="One tenant: what there is of it, a pause, its share; and its queues once it has left."
)

Groups = Annotated[list[str] | None, typer.Option("--group", "-g", help="Only these groups' queues; may be repeated.")]


TenantId = Annotated[str, typer.Argument(metavar="TENANT", help="The tenant's id, as its events have it.")]


@app.command("show")
def show_tenant(
    tenant: TenantId,
    *,
    group: control_cli.Groups = None,
    event_type: control_cli.OfType = None,
    tier: control_cli.OfTier = None,
    as_json: AsJson = False,
) -> None:
    """Show where a tenant's events are, by group, tier and type: unpublished, in queues, running, paused, dead.

    Queues are asked where the broker's address is set. What runs is told as of its process's last heartbeat.
    """
    scope = control_cli.scope_of(tenant=tenant, tier=tier, event_type=event_type, handler=None)
    found = asyncio.run(_read(tenant, scope, control_cli.checked(group)))
    if as_json:
        typer.echo(json.dumps(found.to_json()))
    else:
        tenant_text.show(found, console())


@app.command("pause")
def pause_tenant(  # noqa: PLR0913 - a command's options are its arguments
    tenant: TenantId,
    *,
    group: control_cli.Groups = None,
    event_type: control_cli.OfType = None,
    tier: control_cli.OfTier = None,
    for_: control_cli.For = None,
    until: control_cli.Until = None,
    reason: control_cli.Reason = "",
    actor: Actor = None,
    as_json: AsJson = False,
) -> None:
    """Let nothing of a tenant start, or nothing of one type or tier of it; as `outbox pause --tenant`."""
    scope = control_cli.scope_of(tenant=tenant, tier=tier, event_type=event_type, handler=None)
    control_cli.run_pause(scope, group, end=(for_, until), reason=reason, actor=actor, yes=True, as_json=as_json)


@app.command("resume")
def resume_tenant(
    tenant: TenantId,
    *,
    group: control_cli.Groups = None,
    event_type: control_cli.OfType = None,
    tier: control_cli.OfTier = None,
    actor: Actor = None,
    as_json: AsJson = False,
) -> None:
    """End exactly that pause of a tenant, whoever has set it; as `outbox resume --tenant`."""
    scope = control_cli.scope_of(tenant=tenant, tier=tier, event_type=event_type, handler=None)
    control_cli.run_resume(scope, group, actor=actor, as_json=as_json)


@app.command("weight")
def weigh_tenant(
    tenant: TenantId,
    weight: Annotated[int, typer.Argument(min=1, max=WEIGHT_MAX, help="Times the share of others; 1 is everybody's.")],
    *,
    group: control_cli.Groups = None,
    for_: control_cli.For = None,
    until: control_cli.Until = None,
    reason: control_cli.Reason = "",
    actor: Actor = None,
    as_json: AsJson = False,
) -> None:
    """Give a tenant more of the slots than others of its tier, where they compete, in all processes."""
    control_cli.scope_of(tenant=tenant, tier=None, event_type=None, handler=None)
    for_s, end = control_cli.ends_of(for_, until)
    groups = control_cli.checked(group)
    setting = control.set_weight(groups, tenant, weight, actor=named(actor), reason=reason, for_s=for_s, until=end)
    control_cli.show(asyncio.run(setting), as_json=as_json)


@app.command("offboard")
def offboard_tenant(
    tenant: TenantId,
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


async def _read(tenant: str, scope: Scope, groups: Sequence[str] | None) -> TenantStatus:
    ready = partial(ready_at, settings(), name="outbox tenant show")
    async with await connect(database_url(), application_name="outbox") as connection:
        with store_errors():
            return await tenant_status.read(connection, tenant, scope=scope, wanted=groups, ready=ready)


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
        opened = desk("outbox tenant offboard")
        if not yes:
            ask(f"Delete {'it' if len(lanes) == 1 else f'these {len(lanes)}'} once worked off?")
        await offboard(connection, opened, lanes, actor=actor, within_s=within_s, tell=typer.echo)
        typer.echo(f"off-boarded {len(lanes)}")
