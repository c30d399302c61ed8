"""``outbox pause``, ``outbox resume`` and ``outbox paused``: what of a group starts nothing for now."""

import asyncio
import difflib
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Final, TypeAlias

import typer

from consumer.decide.control import Scope
from outbox.errors import ConfigError, InvalidEvent, TenantRequired
from outbox.event import Tier
from outbox.naming import check_group, check_tenant, check_type
from outbox.shell import completion
from outbox.shell.commands import WHICH, AsJson, command
from outbox.shell.console import console, note, print_json, table
from outbox.shell.logs import harmless
from outbox.shell.options import group_option
from outbox.shell.times import parse_moment
from outbox.shell.words import in_utc
from outbox_admin import control
from outbox_admin.audit import named
from outbox_admin.choices import Actor, EventType, Tenant, Yes, age
from outbox_admin.control import Told
from outbox_admin.prompt import ask

app: Final = typer.Typer(add_completion=False)

_TIERS: Final = {tier.label: tier for tier in Tier}

Groups: TypeAlias = Annotated[
    list[str] | None, group_option("Only in this group; may be repeated. All groups, if not given.")
]
OfTier: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--tier",
        metavar="TIER",
        help=f"Only this tier: {', '.join(_TIERS)}.",
        rich_help_panel=WHICH,
        autocompletion=completion.tiers,
    ),
]
OfHandler: TypeAlias = Annotated[
    str | None,
    typer.Option("--handler", metavar="NAME", help="Only the types that this handler handles.", rich_help_panel=WHICH),
]
For: TypeAlias = Annotated[
    str | None, typer.Option("--for", metavar="AGE", help="For how long, as 90s, 15m, 2h or 7d.")
]
Until: TypeAlias = Annotated[
    str | None, typer.Option("--until", metavar="TIME", help="Until when, as 2026-11-29T12:00:00Z.")
]
Reason: TypeAlias = Annotated[
    str, typer.Option("--reason", metavar="TEXT", help="Why: whoever looks at it later will want to know.")
]


@command(
    app,
    "pause",
    examples=(
        "outbox pause --type orders.order.placed --for 15m --reason 'the bank is down' --yes",
        "outbox pause --group billing --yes",
    ),
)
def pause(  # noqa: PLR0913 - a command's options are its arguments
    *,
    group: Groups = None,
    tenant: Tenant = None,
    event_type: EventType = None,
    tier: OfTier = None,
    handler: OfHandler = None,
    for_: For = None,
    until: Until = None,
    reason: Reason = "",
    actor: Actor = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Let nothing start that fits all that is given; with --group alone, nothing of that group. What runs goes on.

    Use it while something that handlers call is down, or while you look. Every process of the group does so within
    about a second, and after a restart too. Events wait meanwhile, in order and uncharged. It ends with --until or
    --for, or by `outbox resume` with the same options.
    """
    scope = scope_of(tenant=tenant, tier=tier, event_type=event_type, handler=handler)
    if scope.is_group and not group:
        raise typer.BadParameter("want --tenant, --type, --tier, --handler or --group, got nothing")
    run_pause(scope, group, end=(for_, until), reason=reason, actor=actor, yes=yes, as_json=as_json)


@command(app, "resume", examples=("outbox resume --type orders.order.placed", "outbox resume --all"))
def resume(
    *,
    group: Groups = None,
    tenant: Tenant = None,
    event_type: EventType = None,
    tier: OfTier = None,
    handler: OfHandler = None,
    everything: Annotated[bool, typer.Option("--all", help="Every pause there is.", rich_help_panel=WHICH)] = False,
    actor: Actor = None,
    as_json: AsJson = False,
) -> None:
    """End the pause of exactly what is given, whoever has set it.

    Use it once what was down is back; `outbox paused` lists what there is.
    """
    scope = scope_of(tenant=tenant, tier=tier, event_type=event_type, handler=handler)
    if everything and not scope.is_group:
        raise typer.BadParameter("want --all or what was paused, got both")
    if scope.is_group and not (group or everything):
        raise typer.BadParameter("want --tenant, --type, --tier, --handler, --group or --all, got nothing")
    run_resume(None if everything else scope, group, actor=actor, as_json=as_json)


@command(app, "paused", examples=("outbox paused", "outbox paused --group billing --json"))
def paused(*, group: Groups = None, as_json: AsJson = False) -> None:
    """List what is paused and who has another weight than 1: who said so, why, and until when.

    Use it when events wait and nothing has failed.
    """
    show(asyncio.run(control.told(checked(group))), as_json=as_json)


def run_pause(
    scope: Scope,
    groups: Sequence[str] | None,
    *,
    end: tuple[str | None, str | None],
    reason: str,
    actor: str | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Pause *scope*, and print what stands then. *end* is how long and until when, as they were typed."""
    for_s, until = ends_of(*end)
    names = asyncio.run(control.groups(checked(groups)))
    if scope.tenant is None and not yes:
        ask(f"Let nothing start of {scope}, for every tenant, in {_listed(names)}?")
    found = asyncio.run(control.pause(names, scope, actor=named(actor), reason=reason, for_s=for_s, until=until))
    _warn_of_slips(scope, asyncio.run(control.handled(names)))
    show(found, as_json=as_json)


def _warn_of_slips(scope: Scope, handled: Mapping[str, Collection[str]]) -> None:
    """Say so if no living process has what was named. The pause stands: one that has it may start later."""
    if not handled:
        return
    handlers = sorted({name for names in handled.values() for name in names})
    for option, value, known in (("--type", scope.type, sorted(handled)), ("--handler", scope.handler, handlers)):
        if value is not None and value not in known:
            near = difflib.get_close_matches(value, known, n=1)
            meant = f" Did you mean {near[0]}?" if near else ""
            note(f"{option}: no process that runs now handles {value!r}; it is paused all the same.{meant}")


def run_resume(scope: Scope | None, groups: Sequence[str] | None, *, actor: str | None, as_json: bool) -> None:
    """End the pauses of *scope*, or all, and print what was ended; and what keeps the same waiting all the same."""
    ended, left = asyncio.run(control.resume(checked(groups), scope, actor=named(actor)))
    if as_json:
        show(ended, as_json=True)
        return
    for one in ended:
        for each in one.control.pauses:
            typer.echo(f"group {one.group}: {harmless(str(each.scope))} goes on; {harmless(each.actor)} had paused it")
    for one in left:
        for each in one.control.pauses:
            typer.echo(f"group {one.group}: still paused: {harmless(str(each.scope))}, by {harmless(each.actor)}")


def scope_of(*, tenant: str | None, tier: str | None, event_type: str | None, handler: str | None) -> Scope:
    """What the options name. Raises BadParameter: one of them cannot be."""
    if tier is not None and tier not in _TIERS:
        raise typer.BadParameter(f"--tier: want one of {', '.join(_TIERS)}, got {tier[:80]!r}")
    try:
        return Scope(
            tenant=None if tenant is None else check_tenant(tenant),
            tier=None if tier is None else _TIERS[tier],
            type=None if event_type is None else check_type(event_type),
            handler=handler,
        )
    except (InvalidEvent, TenantRequired) as error:
        raise typer.BadParameter(str(error)) from None


def ends_of(for_: str | None, until: str | None) -> tuple[float | None, datetime | None]:
    """For how many seconds, and until when, as they were typed. Raises BadParameter."""
    if for_ is not None and until is not None:
        raise typer.BadParameter("want --for or --until, got both")
    if until is None:
        return None if for_ is None else age("--for", for_).total_seconds(), None
    return None, parse_moment("--until", until)


def checked(groups: Sequence[str] | None) -> Sequence[str] | None:
    """*groups*, None where none was given. Raises BadParameter: one of them cannot be a group's name."""
    try:
        return [check_group(name) for name in groups] if groups else None
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from None


def show(found: Sequence[Told], *, as_json: bool) -> None:
    """Print what holds in each group."""
    if as_json:
        print_json([control.to_json(one) for one in found])
        return
    pauses = table("group", "paused", "by", "as", "since", "until", "why")
    weights = table("group", "tenant", "weight", "by", "since", "until", "why", right={"weight"})
    for one in found:
        for each in one.control.pauses:
            texts = (str(each.scope), each.actor, each.source.value, _time(each.set_at), _end(each.until), each.reason)
            pauses.add_row(one.group, *map(harmless, texts))
        for weight in one.control.weights:
            texts = (weight.tenant, str(weight.weight), weight.actor, _time(weight.set_at), _end(weight.until), "")
            weights.add_row(one.group, *map(harmless, (*texts[:5], weight.reason)))
    for made in (pauses, weights):
        if made.row_count:
            console().print(made)
    if not pauses.row_count and not weights.row_count:
        typer.echo("nothing is paused")


def _listed(names: Sequence[str]) -> str:
    return f"group {names[0]}" if len(names) == 1 else f"groups {', '.join(names)}"


def _time(time: datetime) -> str:
    return in_utc(time)


def _end(time: datetime | None) -> str:
    return "resumed" if time is None else _time(time)
