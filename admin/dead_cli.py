"""``outbox dead``: see dead letters, have them handled again, or let them go."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from typing import Annotated, Final, Literal

import typer
from rich.table import Table

from admin.audit import Actor, named
from admin.prompt import ask
from admin.settings import database_url
from consumer.outcome import DeadCategory
from consumer.status import groups
from consumer.store import dead
from consumer.store.dead_list import DeadFilter, matching
from consumer.store.replay import Resolved, discard, replay
from outbox.errors import ConfigError
from outbox.schema import DEFAULT_GROUP
from outbox.shell.console import console
from outbox.shell.database import Connection, connect, store_errors
from outbox.shell.logs import harmless

app: Final = typer.Typer(no_args_is_help=True, help="Events that get no further attempt: list, show, replay, discard.")

Group = Annotated[str, typer.Option("--group", "-g", help="Whose dead letters.")]
Tenant = Annotated[str | None, typer.Option(help="Only this tenant's.")]
EventType = Annotated[str | None, typer.Option("--type", help="Only events of this type.")]
Category = Annotated[DeadCategory | None, typer.Option(help="Only those that failed in this way.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command("list")
def list_letters(
    *,
    group: Group = DEFAULT_GROUP,
    tenant: Tenant = None,
    event_type: EventType = None,
    category: Category = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most this many, newest first.")] = 100,
    as_json: AsJson = False,
) -> None:
    """List open dead letters, newest first: whose, what and why. No payloads."""
    dead_filter = DeadFilter(group=group, tenant=tenant, type=event_type, category=category)
    letters = asyncio.run(_list(dead_filter, limit, is_known=True))
    if as_json:
        typer.echo(json.dumps([_plain(letter) for letter in letters], default=str))
    elif letters:
        console().print(_table(letters))
    else:
        typer.echo(f"no open dead letters in group {group}")


@app.command()
def show(
    dead_id: Annotated[int, typer.Argument(metavar="ID", help="The number that `outbox dead list` prints.")],
    *,
    payload: Annotated[bool, typer.Option("--payload", help="Print the payload too.")] = False,
    trace: Annotated[bool, typer.Option("--trace", help="Print the stack trace, if there is one.")] = False,
) -> None:
    """Show one dead letter whole, as JSON; payload and stack trace only when asked for."""
    letter, stack = asyncio.run(_show(dead_id, with_trace=trace))
    body = letter.stored.message.body
    shown = _plain(letter.summary) | {
        "content_type": letter.stored.message.content_type,
        "payload_bytes": len(body),
    }
    if payload:
        shown["payload"] = body.decode(errors="backslashreplace")
    if trace:
        shown["trace"] = stack
    typer.echo(json.dumps(shown, default=str, indent=2))


@app.command("replay")
def replay_letters(  # noqa: PLR0913 - a command's options are its arguments
    dead_ids: Annotated[list[int] | None, typer.Argument(metavar="[ID]...", help="Which; or give a filter.")] = None,
    *,
    group: Group = DEFAULT_GROUP,
    tenant: Tenant = None,
    event_type: EventType = None,
    category: Category = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most this many, oldest first.")] = 1000,
    per_s: Annotated[float | None, typer.Option(min=0.001, help="How many become due each second.")] = None,
    actor: Actor = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be replayed.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="All open ones of the group.")] = False,
) -> None:
    """Have dead letters handled again from their first attempt on. What was done meanwhile is refused."""
    dead_filter = _filter(dead_ids, group, tenant, event_type, category, everything=everything)
    if dry_run:
        _would("replay", dead_filter, limit)
        return
    resolved = asyncio.run(
        _resolve(lambda connection: replay(connection, dead_filter, actor=named(actor), limit=limit, per_s=per_s))
    )
    _tell("replayed", dead_filter, resolved)


@app.command("discard")
def discard_letters(  # noqa: PLR0913 - a command's options are its arguments
    dead_ids: Annotated[list[int] | None, typer.Argument(metavar="[ID]...", help="Which; or give a filter.")] = None,
    *,
    group: Group = DEFAULT_GROUP,
    tenant: Tenant = None,
    event_type: EventType = None,
    category: Category = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most this many, oldest first.")] = 1000,
    actor: Actor = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be discarded.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="All open ones of the group.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Let dead letters go: they are never handled, and the ordering keys that they hold move on."""
    dead_filter = _filter(dead_ids, group, tenant, event_type, category, everything=everything)
    letters = _would("discard", dead_filter, limit)
    if dry_run or not letters:
        return
    if not yes:
        ask(f"Never handle {'it' if letters == 1 else f'these {letters}'}?")
    resolved = asyncio.run(
        _resolve(lambda connection: discard(connection, dead_filter, actor=named(actor), limit=limit))
    )
    _tell("discarded", dead_filter, resolved)


def _filter(
    dead_ids: Sequence[int] | None,
    group: str,
    tenant: str | None,
    event_type: str | None,
    category: DeadCategory | None,
    *,
    everything: bool,
) -> DeadFilter:
    if not (dead_ids or tenant or event_type or category or everything):
        raise typer.BadParameter("want ids, a filter or --all, got nothing")
    ids = tuple(dead_ids) if dead_ids else None
    return DeadFilter(group=group, ids=ids, tenant=tenant, type=event_type, category=category)


def _would(verb: str, dead_filter: DeadFilter, limit: int) -> int:
    letters = asyncio.run(_list(dead_filter, limit))
    typer.echo(f"would {verb} {len(letters)}: {', '.join(str(letter.id) for letter in letters) or 'none'}")
    _miss(dead_filter, {letter.id for letter in letters})
    return len(letters)


def _tell(done: str, dead_filter: DeadFilter, resolved: Resolved) -> None:
    for refusal in resolved.refused:
        typer.echo(f"{refusal.id} stays: {refusal.because}")
    typer.echo(f"{done} {len(resolved.ids)}, refused {len(resolved.refused)}")
    _miss(dead_filter, set(resolved.ids) | {refusal.id for refusal in resolved.refused})


def _miss(dead_filter: DeadFilter, found: set[int]) -> None:
    """Complain of the ids that were given and not *found*."""
    missing = set(dead_filter.ids or ()) - found
    if missing:
        numbers = ", ".join(map(str, sorted(missing)))
        raise ConfigError(f"want open dead letters of group {dead_filter.group}, got no such: {numbers}")


async def _list(dead_filter: DeadFilter, limit: int, *, is_known: bool = False) -> list[dead.DeadSummary]:
    """*is_known*: complain of a group that never ran, rather than say that nothing of it is dead."""
    async with await connect(database_url(), application_name="outbox") as connection:
        with store_errors():
            letters = await matching(connection, dead_filter, limit=limit)
            if is_known and not letters and dead_filter.group != DEFAULT_GROUP:
                await _check_known(connection, dead_filter.group)
            return letters


async def _check_known(connection: Connection, group: str) -> None:
    known = await groups(connection)
    if group not in known:
        raise ConfigError(f"group: want one of {', '.join(known) or DEFAULT_GROUP}, got {group[:80]!r}")


async def _show(dead_id: int, *, with_trace: bool) -> tuple[dead.DeadLetter, str | None]:
    async with await connect(database_url(), application_name="outbox") as connection:
        with store_errors():
            letter = await dead.show(connection, dead_id)
            if letter is None:
                raise ConfigError(f"show: want the number of a dead letter, got {dead_id}, which is none")
            return letter, await dead.trace(connection, dead_id) if with_trace else None


async def _resolve(resolve: Callable[[Connection], Awaitable[Resolved]]) -> Resolved:
    async with await connect(database_url(), application_name="outbox") as connection:
        with store_errors():
            return await resolve(connection)


def _plain(letter: dead.DeadSummary) -> dict[str, object]:
    """*letter* for JSON: its tier by name, as everywhere else."""
    return asdict(letter) | {"tier": letter.tier.label}


def _table(letters: Sequence[dead.DeadSummary]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("id", "dead at", "tenant", "tier", "type", "category", "attempts", "why"):
        justify: Literal["left", "right"] = "right" if name in {"id", "attempts"} else "left"
        table.add_column(name, justify=justify, overflow="fold", no_wrap=name in {"id", "tier", "category"})
    for letter in letters:
        table.add_row(
            str(letter.id),
            letter.dead_at.strftime("%Y-%m-%d %H:%M:%S"),
            *(harmless(text) for text in (letter.tenant, letter.tier.label, letter.type, letter.category.value)),
            str(letter.attempts),
            harmless(letter.message),
        )
    return table
