"""``outbox replay``: have events that were published before published again, and see how far that is."""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Final

import typer
from rich.table import Table

from outbox.shell.commands import AsJson, command, shown_examples
from outbox.shell.commands import group as group_of_commands
from outbox.shell.console import console, print_json, progress, wide_table
from outbox.shell.database import connect, store_errors
from outbox.shell.logs import harmless
from outbox.shell.words import in_utc
from outbox_admin.audit import named
from outbox_admin.choices import Actor, DryRun, EventType, Group, Tenant, Yes
from outbox_admin.prompt import ask
from outbox_admin.replay import Choice, Preview, cancel, preview, request
from outbox_admin.settings import database_url
from outbox_admin.times import moment
from relay.log import replay_requests
from relay.log.replay_requests import Request

app: Final = group_of_commands(
    epilog=shown_examples(
        "outbox replay --from oldest --dry-run", "outbox replay --from 2026-11-29T12:00:00Z --tenant acme"
    ),
)

_ASK_ABOVE: Final = 1_000
_COUNTS_SHOWN: Final = 50
_RECENT: Final = 10_000


@app.callback(invoke_without_command=True)
def replay(  # noqa: PLR0913 - a command's options are its arguments
    context: typer.Context,
    *,
    start: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help="Since when, as 2026-11-29T12:00:00Z or oldest.")
    ] = None,
    end: Annotated[str | None, typer.Option("--to", metavar="TIME", help="Before when; now if not given.")] = None,
    group: Group = None,
    tenant: Tenant = None,
    event_type: EventType = None,
    per_s: Annotated[int, typer.Option(min=1, max=100_000, help="At most so many a second, to each group.")] = 500,
    actor: Actor = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Publish again, marked as replays, what groups were sent since TIME. Nothing is handled twice.

    Use it when a broker has lost messages: what a group's ledger says is done is dropped on arrival. To have old events
    handled by new code, give it a group: `outbox group add NAME --from TIME`.
    """
    if context.invoked_subcommand is not None:
        return
    if start is None:
        raise typer.BadParameter("want --from TIME, got none")
    choice = Choice(
        since=moment("--from", start),
        to=None if end is None else moment("--to", end),
        group=group,
        tenant=tenant,
        type=event_type,
    )
    with progress("counting"):
        found = asyncio.run(_preview(choice))
    if not as_json:
        _show(found)
    numbers: dict[str, int] = {}
    if found.events and not dry_run:
        if found.events > _ASK_ABOVE and not yes:
            ask(f"Publish these {found.events:,} again?")
        numbers = asyncio.run(_request(found, per_s=per_s, actor=named(actor)))
    if as_json:
        print_json(_plain(found, numbers))
        return
    for name, number in numbers.items():
        typer.echo(f"replay {number} to group {name}: a relay begins within seconds, `outbox replay list` says how far")


@command(app, "list", examples=("outbox replay list", "outbox replay list --limit 5 --json"))
def list_replays(
    *,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most this many, newest first.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List replays, newest first: what was asked for, and how far each is.

    Use it after `outbox replay --from`, to see it end.
    """
    found = asyncio.run(_list(limit))
    if as_json:
        print_json(found)
    elif found:
        console().print(_table(found))
    else:
        typer.echo("nobody has asked for a replay")


@command(app, "cancel", examples=("outbox replay cancel 3 --yes",))
def cancel_replay(
    number: Annotated[int, typer.Argument(metavar="NUMBER", help="As `outbox replay list` prints it.")],
    *,
    actor: Actor = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Call a replay off; what was published again by then stays.

    Use it when it was asked for by mistake, or takes what live events need.
    """
    if not yes:
        one = asyncio.run(_one(number))
        if one is not None:
            left = f"{one.events - one.published:,} of {one.events:,}"
            ask(f"Call off replay {number} to group {one.group}, with {left} events left?")
    asyncio.run(_cancel(number, actor=named(actor)))
    if as_json:
        print_json({"replay": number, "is_cancelled": True})
    else:
        typer.echo(f"replay {number} is called off")


def _show(found: Preview) -> None:
    wanted = found.wanted
    if not found.events:
        typer.echo(f"no group was sent any such event between {_utc(wanted.from_at)} and {_utc(wanted.to_at)}")
    for share in found.shares:
        note = ", where it starts" if share.from_at > wanted.from_at else ""
        period = f"from {_utc(share.from_at)}{note}, to {_utc(wanted.to_at)}"
        typer.echo(f"group {share.group}, {period}: {share.events:,} events")
        for count in share.counts[:_COUNTS_SHOWN]:
            typer.echo(f"  {count.events:>9,}  {harmless(count.tenant)}  {harmless(count.type)}")
        rest = share.counts[_COUNTS_SHOWN:]
        if rest:
            typer.echo(f"  {sum(count.events for count in rest):>9,}  of {len(rest):,} other tenants and types")


def _utc(time: datetime) -> str:
    return in_utc(time)


def _plain(found: Preview, numbers: dict[str, int]) -> dict[str, object]:
    return {
        "from": found.wanted.from_at,
        "to": found.wanted.to_at,
        "events": found.events,
        "groups": [
            asdict(share) | {"events": share.events, "replay": numbers.get(share.group)} for share in found.shares
        ],
    }


def _table(found: Sequence[Request]) -> Table:
    made = wide_table(
        *("replay", "group", "from", "to", "only", "published", "of", "failed", "held", "state", "problem"),
        right={"replay", "published", "of", "failed", "held"},
    )
    for one in found:
        made.add_row(
            str(one.id),
            harmless(one.group),
            _utc(one.from_at),
            _utc(one.to_at),
            harmless(" ".join(only for only in (one.tenant, one.type) if only is not None)),
            f"{one.published:,}",
            f"{one.events:,}",
            f"{one.failed:,}",
            f"{one.held_tenants:,}",
            "called off" if one.is_cancelled else "under way" if one.ended_at is None else "done",
            harmless(one.problem or ""),
        )
    return made


async def _preview(choice: Choice) -> Preview:
    async with await connect(database_url(), application_name="outbox") as connection:
        return await preview(connection, choice)


async def _request(found: Preview, *, per_s: int, actor: str) -> dict[str, int]:
    async with await connect(database_url(), application_name="outbox") as connection:
        return await request(connection, found, per_s=per_s, actor=actor)


async def _list(limit: int) -> Sequence[Request]:
    async with await connect(database_url(), application_name="outbox") as connection:
        with store_errors():
            return await replay_requests.requests(connection, limit=limit)


async def _one(number: int) -> Request | None:
    """Replay *number*, if it is under way."""
    return next((one for one in await _list(_RECENT) if one.id == number and one.ended_at is None), None)


async def _cancel(number: int, *, actor: str) -> None:
    async with await connect(database_url(), application_name="outbox") as connection:
        await cancel(connection, number, actor=actor)
