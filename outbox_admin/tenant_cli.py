"""``outbox tenant``: how one tenant does, pausing it, its share, and removing the queues of one that has left."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Annotated, Final

import typer

from consumer.brokers import ready_at
from consumer.decide.control import WEIGHT_MAX, Scope
from outbox.errors import BrokerUnavailable, ConfigError, InvalidEvent, TenantRequired
from outbox.naming import check_group, check_tenant
from outbox.shell.commands import AsJson, command
from outbox.shell.commands import group as group_of_commands
from outbox.shell.console import console, note, print_json, progress
from outbox.shell.database import connect, store_errors
from outbox.shell.hush import libraries_hushed
from outbox.shell.words import counted
from outbox_admin import control, control_cli, tenant_status, tenant_text
from outbox_admin.audit import named
from outbox_admin.choices import Actor, DryRun, EventType, Yes
from outbox_admin.desks import desk
from outbox_admin.offboarding import Leaving, find, keep, offboard
from outbox_admin.prompt import ask
from outbox_admin.settings import database_url, settings
from outbox_admin.tenant_status import TenantStatus

app: Final = group_of_commands(
    help="One tenant: what there is of it, a pause, its share; and its queues once it has left."
)

TenantId = Annotated[str, typer.Argument(metavar="TENANT", help="The tenant's id, as its events have it.")]


@command(app, "show", examples=("outbox tenant show acme", "outbox tenant show acme --tier bulk --json"))
def show_tenant(
    tenant: TenantId,
    *,
    group: control_cli.Groups = None,
    event_type: EventType = None,
    tier: control_cli.OfTier = None,
    as_json: AsJson = False,
) -> None:
    """Show where a tenant's events are, by group, tier and type: unpublished, in queues, running, paused, dead.

    Use it when one tenant says that its events are late. Queues are asked where the broker's address is set. What runs
    is told as of its process's last heartbeat.
    """
    scope = control_cli.scope_of(tenant=tenant, tier=tier, event_type=event_type, handler=None)
    with libraries_hushed():
        found = asyncio.run(_read(tenant, scope, control_cli.checked(group)))
    if as_json:
        print_json(found.to_json())
    else:
        tenant_text.show(found, console())


@command(app, "pause", examples=("outbox tenant pause acme --for 2h --reason 'asked for it'",))
def pause_tenant(  # noqa: PLR0913 - a command's options are its arguments
    tenant: TenantId,
    *,
    group: control_cli.Groups = None,
    event_type: EventType = None,
    tier: control_cli.OfTier = None,
    for_: control_cli.For = None,
    until: control_cli.Until = None,
    reason: control_cli.Reason = "",
    actor: Actor = None,
    as_json: AsJson = False,
) -> None:
    """Let nothing of a tenant start, or nothing of one type or tier of it; as `outbox pause --tenant`.

    Use it while a tenant's events must wait; they keep their order and are charged nothing.
    """
    scope = control_cli.scope_of(tenant=tenant, tier=tier, event_type=event_type, handler=None)
    control_cli.run_pause(scope, group, end=(for_, until), reason=reason, actor=actor, yes=True, as_json=as_json)


@command(app, "resume", examples=("outbox tenant resume acme",))
def resume_tenant(
    tenant: TenantId,
    *,
    group: control_cli.Groups = None,
    event_type: EventType = None,
    tier: control_cli.OfTier = None,
    actor: Actor = None,
    as_json: AsJson = False,
) -> None:
    """End exactly that pause of a tenant, whoever has set it; as `outbox resume --tenant`.

    Use it when its events may go on.
    """
    scope = control_cli.scope_of(tenant=tenant, tier=tier, event_type=event_type, handler=None)
    control_cli.run_resume(scope, group, actor=actor, as_json=as_json)


@command(app, "weight", examples=("outbox tenant weight acme 3 --for 1d", "outbox tenant weight acme 1"))
def weigh_tenant(
    tenant: TenantId,
    weight: Annotated[
        int,
        typer.Argument(metavar="WEIGHT", min=1, max=WEIGHT_MAX, help="Times the share of others; 1 is everybody's."),
    ],
    *,
    group: control_cli.Groups = None,
    for_: control_cli.For = None,
    until: control_cli.Until = None,
    reason: control_cli.Reason = "",
    actor: Actor = None,
    as_json: AsJson = False,
) -> None:
    """Give a tenant more of the slots than others of its tier, where they compete, in all processes.

    Use it for one that pays for more, or to let a backlog drain faster; it takes from the others.
    """
    control_cli.scope_of(tenant=tenant, tier=None, event_type=None, handler=None)
    for_s, end = control_cli.ends_of(for_, until)
    groups = control_cli.checked(group)
    setting = control.set_weight(groups, tenant, weight, actor=named(actor), reason=reason, for_s=for_s, until=end)
    control_cli.show(asyncio.run(setting), as_json=as_json)


@command(app, "offboard", examples=("outbox tenant offboard acme --dry-run", "outbox tenant offboard acme --yes"))
def offboard_tenant(
    tenant: TenantId,
    *,
    group: control_cli.Groups = None,
    within_s: Annotated[float, typer.Option("--within", min=1, help="Seconds to wait before giving up.")] = 300.0,
    actor: Actor = None,
    undo: Annotated[bool, typer.Option("--keep", help="Take back an off-boarding that has not ended.")] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete a tenant's queues once they are worked off. A relay must run, and consumers where anything is left.

    Use it when a tenant has left. Nothing is lost: what is emitted meanwhile waits in the log, and then the queue is
    made again. Safe to break off and to repeat; until it has ended, or --keep has taken it back, the tenant's events
    wait.
    """
    try:
        check_tenant(tenant)
        for name in group or ():
            check_group(name)
    except (ConfigError, InvalidEvent, TenantRequired) as error:
        raise typer.BadParameter(str(error)) from None
    leaving = _run(tenant, group, within_s=within_s, actor=named(actor), undo=undo, dry_run=dry_run, yes=yes)
    with libraries_hushed():
        lanes, done = asyncio.run(leaving)
    if as_json:
        print_json({"tenant": tenant, "queues": [one.lane.queue for one in lanes], "became": done})
        return
    for one in lanes:
        typer.echo(f"{one.lane.queue}{', being off-boarded' if one.is_marked else ''}")
    queues = counted(len(lanes), "queue")
    typer.echo(f"{done} {queues}" if done else queues)


async def _read(tenant: str, scope: Scope, groups: Sequence[str] | None) -> TenantStatus:
    async def ready(queues: Sequence[str]) -> Mapping[str, int] | None:
        try:
            return await ready_at(settings(), queues, name="outbox tenant show")
        except BrokerUnavailable as error:
            note(f"what lies in queues is not known: {error}")
            return None

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
) -> tuple[Sequence[Leaving], str | None]:
    """The queues that were found, and what became of them; None is nothing."""
    async with await connect(database_url(), application_name="outbox") as connection:
        lanes = await find(connection, tenant, groups=groups or None)
        if undo:
            lanes = [one for one in lanes if one.is_marked]
        if not lanes or dry_run:
            return lanes, None
        if undo:
            await keep(connection, lanes, actor=actor)
            return lanes, "kept"
        opened = desk("outbox tenant offboard")
        if not yes:
            names = ", ".join(one.lane.queue for one in lanes)
            ask(f"Delete {counted(len(lanes), 'queue')} of tenant {tenant} once they are worked off, {names}?")
        with progress(f"off-boarding tenant {tenant}"):
            await offboard(connection, opened, lanes, actor=actor, within_s=within_s, tell=note)
        return lanes, "off-boarded"
