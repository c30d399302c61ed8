"""``outbox deferred``: see events that could not be published, have them tried again, or let them go."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from typing import Annotated, Final
from uuid import UUID

import typer
from rich.table import Table

from outbox.errors import ConfigError
from outbox.schema import DEFAULT_GROUP
from outbox.shell.commands import OUTPUT, SAFETY, WHICH, AsJson, command
from outbox.shell.commands import group as group_of_commands
from outbox.shell.console import console, print_json, wide_table
from outbox.shell.database import Connection, connect, store_errors
from outbox.shell.logs import harmless
from outbox.shell.words import counted, in_utc
from outbox_admin import audit
from outbox_admin.audit import named
from outbox_admin.choices import (
    Actor,
    DryRun,
    EventType,
    Everything,
    Group,
    Tenant,
    Yes,
    check_chosen,
    check_found,
    check_group_known,
    choosing,
)
from outbox_admin.groups import list_groups
from outbox_admin.prompt import ask
from outbox_admin.settings import database_url
from relay.log import deferred_list, resolve
from relay.log.deferred import State
from relay.log.deferred_list import DeferredFilter, DeferredSummary, matching
from relay.log.resolve import Resolved
from relay.ports import Category as CategoryOf

app: Final = group_of_commands(help="Events that one group could not be sent: list, show, retry, discard.")

Ids = Annotated[list[UUID] | None, typer.Argument(metavar="ID", help="Which events; or give a filter.")]
Category = Annotated[
    CategoryOf | None,
    typer.Option(
        metavar="CATEGORY",
        help=f"Only those that failed so: {', '.join(one.value for one in CategoryOf)}.",
        rich_help_panel=WHICH,
    ),
]
InState = Annotated[State | None, typer.Option("--state", help="Only those in this state.", rich_help_panel=WHICH)]
Revive = Annotated[
    bool,
    typer.Option(
        "--revive", help="Those of off-boarded tenants too: their queues are made again.", rich_help_panel=SAFETY
    ),
]
Limit = Annotated[int, typer.Option(min=1, max=10_000, help="At most this many, oldest first.")]

# Without ids, those that may still be published are no more discarded by accident than what is discarded already.
_DEAD: Final = (State.DEAD,)
_UNPUBLISHED: Final = (State.RETRY, State.DEAD)


def _wanted(
    ids: Ids = None,
    *,
    group: Group = None,
    tenant: Tenant = None,
    event_type: EventType = None,
    category: Category = None,
    state: InState = None,
) -> DeferredFilter:
    return DeferredFilter(
        group=group,
        ids=tuple(ids) if ids else None,
        tenant=tenant,
        type=event_type,
        category=category,
        states=() if state is None else (state,),
    )


_chooses: Final = choosing(_wanted)


@command(app, "list", examples=("outbox deferred list", "outbox deferred list --group billing --state dead"))
@_chooses
def list_events(
    wanted: DeferredFilter,
    *,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most this many, newest first.")] = 100,
    as_json: AsJson = False,
) -> None:
    """List deferred events, the latest to fail first: whose, what and why. No payloads.

    Use it when `outbox-relay status` tells of deferred events.
    """
    events = asyncio.run(_list(_in(wanted, tuple(State)), limit))
    if as_json:
        print_json([_plain(one) for one in events])
    elif events:
        console().print(_table(events))
    else:
        typer.echo("no deferred events" if wanted.group is None else f"no deferred events of group {wanted.group}")


@command(app, examples=("outbox deferred show 019ad5f0-7c2e-7bb0-8d7e-3a5b5c1d2e4f --payload",))
def show(
    event_id: Annotated[UUID, typer.Argument(metavar="ID", help="The id that `outbox deferred list` prints.")],
    *,
    group: Group = None,
    payload: Annotated[bool, typer.Option("--payload", help="Print the payload too.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="On one line, as the other commands print.", rich_help_panel=OUTPUT)
    ] = False,
) -> None:
    """Show one deferred event whole, as JSON; its payload only when asked for.

    Use it when the reason that `outbox deferred list` gives is not enough.
    """
    print_json(asyncio.run(_show(event_id, group, with_payload=payload)), indent=None if as_json else 2)


@command(
    app,
    "retry",
    examples=(
        "outbox deferred retry 019ad5f0-7c2e-7bb0-8d7e-3a5b5c1d2e4f",
        "outbox deferred retry --category unroutable --dry-run",
    ),
)
@_chooses
def retry_events(
    wanted: DeferredFilter,
    *,
    limit: Limit = 1000,
    actor: Actor = None,
    dry_run: DryRun = False,
    everything: Everything = False,
    revive: Revive = False,
    as_json: AsJson = False,
) -> None:
    """Have deferred events published as soon as a relay can, from their first attempt on, the dead ones too.

    Use it once what refused them is mended.
    """
    wanted = _checked(wanted, tuple(State), everything=everything)
    if dry_run:
        _miss(wanted, _would("retry", wanted, limit, as_json=as_json))
        return
    resolved = asyncio.run(
        _decide(
            lambda connection: resolve.retry(connection, wanted, limit=limit, revives=revive),
            action="deferred.retry",
            group=wanted.group,
            actor=named(actor),
        )
    )
    _tell(f"due now: {len(resolved.retried)}", wanted, resolved, as_json=as_json)


@command(
    app,
    "discard",
    examples=(
        "outbox deferred discard --tenant acme --dry-run",
        "outbox deferred discard 019ad5f0-7c2e-7bb0-8d7e-3a5b5c1d2e4f --yes",
    ),
)
@_chooses
def discard_events(
    wanted: DeferredFilter,
    *,
    limit: Limit = 1000,
    actor: Actor = None,
    dry_run: DryRun = False,
    everything: Everything = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Let deferred events go: they are never published. Where one has an ordering key, a void moves the key on.

    Use it for what must never be published. Given by a filter, those that are still retried stay, unless --state says
    so.
    """
    if State.VOID in wanted.states:
        raise typer.BadParameter("--state: want retry or dead, got void: these are discarded already")
    wanted = _checked(wanted, _UNPUBLISHED if wanted.ids else _DEAD, everything=everything)
    events = _would("discard", wanted, limit, as_json=as_json and dry_run, is_quiet=as_json and not dry_run)
    if dry_run or not events:
        _miss(wanted, events)
        return
    if not yes:
        ask(f"Never publish {'it' if len(events) == 1 else f'these {len(events)}'}?")
    resolved = asyncio.run(
        _decide(
            lambda connection: resolve.discard(connection, wanted, limit=limit),
            action="deferred.discard",
            group=wanted.group,
            actor=named(actor),
        )
    )
    done = f"discarded: {len(resolved.removed) + len(resolved.voids)}, leaving a void: {len(resolved.voids)}"
    _tell(done, wanted, resolved, as_json=as_json)


def _checked(wanted: DeferredFilter, otherwise: tuple[State, ...], *, everything: bool) -> DeferredFilter:
    check_chosen(wanted.ids, wanted.group, wanted.tenant, wanted.type, wanted.category, everything=everything)
    return _in(wanted, otherwise)


def _in(wanted: DeferredFilter, otherwise: tuple[State, ...]) -> DeferredFilter:
    """*wanted*, in the states of *otherwise* if none was given."""
    return wanted if wanted.states else replace(wanted, states=otherwise)


def _would(verb: str, wanted: DeferredFilter, limit: int, *, as_json: bool, is_quiet: bool = False) -> set[UUID]:
    events = asyncio.run(_list(wanted, limit))
    if as_json:
        print_json([_plain(one) for one in events])
    elif not is_quiet:
        typer.echo(f"would {verb} {counted(len(events), 'deferred event')}")
        if events:
            console().print(_table(events))
    return {one.id for one in events}


def _tell(done: str, wanted: DeferredFilter, resolved: Resolved, *, as_json: bool) -> None:
    if as_json:
        print_json(resolved)
    else:
        for refusal in resolved.refused:
            typer.echo(f"{refusal.id} of group {refusal.group} stays: {refusal.because}")
        typer.echo(f"{done}, refused: {len(resolved.refused)}")
    decided = {one.id for one in (*resolved.retried, *resolved.removed, *resolved.voids)}
    _miss(wanted, decided | {one.id for one in resolved.refused})


def _miss(wanted: DeferredFilter, found: Collection[UUID]) -> None:
    """Complain of the ids that were given and not *found*."""
    states = " or ".join(state.value for state in wanted.states)
    what = f"deferred events ({states}) that are not published yet"
    check_found(wanted.ids or (), found, what=what, do="'outbox deferred list' shows what there is")


async def _list(wanted: DeferredFilter, limit: int) -> list[DeferredSummary]:
    async with _connected() as connection:
        events = await matching(connection, wanted, limit=limit)
        if not events and wanted.group is not None:
            known = [one.name for one in await list_groups(connection)]
            check_group_known(wanted.group, known, otherwise=DEFAULT_GROUP)
        return events


async def _show(event_id: UUID, group: str | None, *, with_payload: bool) -> dict[str, object]:
    async with _connected() as connection:
        found = await matching(connection, DeferredFilter(group=group, ids=(event_id,)), limit=100)
        if not found:
            raise ConfigError(f"show: want the id of a deferred event, got {event_id}, which is none")
        if len(found) > 1:
            groups = ", ".join(sorted(one.group for one in found))
            raise ConfigError(f"show: want --group, since it is deferred in several: {groups}")
        event = await deferred_list.event(connection, found[0].group, event_id)
    shown = _plain(found[0])
    if event is not None:
        shown |= {
            "data_version": event.data_version,
            "source": event.source,
            "content_type": event.content_type,
            "time": event.time,
            "ledger_time": event.ledger_time,
            "idempotency_key": event.idempotency_key,
            "actor": event.actor,
            "causation_id": event.causation_id,
            "correlation_id": event.correlation_id,
            "traceparent": event.traceparent,
        }
        if with_payload:
            shown["payload"] = event.payload.decode(errors="backslashreplace")
    return shown


async def _decide(
    decide: Callable[[Connection], Awaitable[Resolved]], *, action: str, group: str | None, actor: str
) -> Resolved:
    """Decide and write the audit's row, both or neither."""
    async with _connected() as connection, connection.transaction():
        resolved = await decide(connection)
        detail = json.loads(json.dumps(asdict(resolved), default=str))
        await audit.record(connection, actor=actor, action=action, group=group, detail=detail)
        return resolved


@asynccontextmanager
async def _connected() -> AsyncIterator[Connection]:
    async with await connect(database_url(), application_name="outbox") as connection:
        with store_errors():
            yield connection


def _plain(one: DeferredSummary) -> dict[str, object]:
    """*one* for JSON: tier and category by name, as everywhere else."""
    return asdict(one) | {"tier": one.tier.label, "category": one.category.value}


def _table(events: Sequence[DeferredSummary]) -> Table:
    found = wide_table(
        *("id", "group", "state", "failed at", "tenant", "tier", "type", "category", "attempts", "next", "why"),
        right={"attempts"},
    )
    for one in events:
        found.add_row(
            str(one.id),
            *(harmless(text) for text in (one.group, one.state.value)),
            in_utc(one.first_failed_at),
            *(harmless(text) for text in (one.tenant, one.tier.label, one.type, one.category.value)),
            str(one.attempts),
            _next(one),
            harmless(one.reason),
        )
    return found


def _next(one: DeferredSummary) -> str:
    """When it is tried next."""
    if one.is_claimed:
        return "now"
    return "-" if one.state is State.DEAD else in_utc(one.due_at)
