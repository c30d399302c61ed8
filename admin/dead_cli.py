"""``outbox dead``: see dead letters, say whose they are, have them handled again, or let them go."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final

import psycopg
import typer

from admin import dead_tables, operators_cli
from admin.audit import Actor, named
from admin.choices import AsJson, DryRun, Everything, Yes, check_found, check_group_known
from admin.dead_choice import ID_MAX, Choice, chooses
from admin.dead_export import line, plain, target, whole
from admin.dead_run import Decide, Tally, in_batches, shown
from admin.prompt import ask
from admin.settings import database_url
from consumer import status
from consumer.store import audit, dead, dead_list, replay
from consumer.store.dead_list import DeadFilter, DeadState, Listed
from consumer.store.stored import Connection
from outbox.errors import ConfigError
from outbox.schema import DEFAULT_GROUP
from outbox.shell.console import console
from outbox.shell.database import connect, store_errors

app: Final = typer.Typer(
    no_args_is_help=True,
    help="Events that get no further attempt. Begin with `groups`: what failed alike is one group. Then `own` it, mend"
    " what failed, `replay` a few and then the rest, and `discard` what must never be handled.",
)
app.add_typer(operators_cli.app, name="operator")

Limit = Annotated[int | None, typer.Option(min=1, help="At most this many, oldest first; all that fit if not given.")]
Group = Annotated[str, typer.Option("--group", "-g", help="Whose dead letters.")]

_ASK_ABOVE: Final = 1_000
_SHOWN: Final = 20
_OWNER_CHARS_MAX: Final = 200


@app.command("list")
@chooses
def list_letters(
    choice: Choice,
    *,
    state: Annotated[DeadState | None, typer.Option(help="Open ones if not given.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most this many, newest first.")] = 100,
    before: Annotated[
        int | None, typer.Option(metavar="ID", min=1, max=ID_MAX, help="Only those before this one: the next page.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List dead letters, newest first: whose, what and why, and what became of those replayed. No payloads."""
    letters = asyncio.run(_list(choice, state or DeadState.OPEN, limit, before))
    if as_json:
        typer.echo(json.dumps([plain(letter) for letter in letters], default=str))
    elif letters:
        console().print(dead_tables.letters(letters))
        if len(letters) == limit:
            typer.echo(f"more may follow: --before {letters[-1].summary.id}")
    else:
        typer.echo(f"no {state or DeadState.OPEN} dead letters in group {choice.letters.group}")


@app.command("groups")
@chooses
def list_groups(
    choice: Choice,
    *,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most this many, largest first.")] = 50,
    as_json: AsJson = False,
) -> None:
    """Group open dead letters by how they failed, largest group first: how many, of whom, since when, and whose."""
    found = asyncio.run(_groups(choice, limit))
    if as_json:
        typer.echo(json.dumps([asdict(one) for one in found], default=str))
    elif found:
        console().print(dead_tables.groups(found))
    else:
        typer.echo(f"no open dead letters in group {choice.letters.group}")


@app.command()
def own(
    fingerprint: Annotated[str, typer.Argument(help="As `outbox dead groups` prints it.")],
    *,
    owner: Annotated[str | None, typer.Option(help="Who looks after them, as a person or a team.")] = None,
    nobody: Annotated[bool, typer.Option("--nobody", help="They are nobody's again.")] = False,
    group: Group = DEFAULT_GROUP,
    actor: Actor = None,
) -> None:
    """Say whose the dead letters are that failed alike, those to come included."""
    if (owner is None) is not nobody:
        raise typer.BadParameter("want --owner NAME or --nobody, got " + ("both" if nobody else "neither"))
    if owner is not None and not (owner.strip() and owner.isprintable() and len(owner) <= _OWNER_CHARS_MAX):
        raise typer.BadParameter(f"--owner: want 1..{_OWNER_CHARS_MAX} printable characters, got {owner[:80]!r}")
    letters = asyncio.run(_own(group, fingerprint, owner, actor=named(actor)))
    typer.echo(f"{fingerprint}, {letters} open: {'nobody' if owner is None else owner} looks after them")


@app.command()
def show(
    dead_id: Annotated[
        int, typer.Argument(metavar="ID", min=1, max=ID_MAX, help="The number that `outbox dead list` prints.")
    ],
    *,
    payload: Annotated[bool, typer.Option("--payload", help="Print headers and payload too.")] = False,
    trace: Annotated[bool, typer.Option("--trace", help="Print the stack trace, if there is one.")] = False,
    actor: Actor = None,
) -> None:
    """Show one dead letter, as JSON; payload and stack trace only when asked for, which the audit tells."""
    shown_letter = asyncio.run(_show(dead_id, with_payload=payload, with_trace=trace, actor=named(actor)))
    typer.echo(json.dumps(shown_letter, default=str, indent=2))


@app.command("replay")
@chooses
def replay_letters(
    choice: Choice,
    *,
    limit: Limit = None,
    per_s: Annotated[float, typer.Option("--per-s", min=0.001, max=100_000, help="At most so many a second.")] = 500.0,
    actor: Actor = None,
    dry_run: DryRun = False,
    everything: Everything = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help=f"Do not ask, even above {_ASK_ABOVE:,}.")] = False,
) -> None:
    """Have dead letters handled again from their first attempt on. What was done meanwhile is refused.

    They are checked like any delivery: envelope, payload, version, and whether it is still allowed. Safe to break off
    and to run again. `outbox dead list --state replayed` says how it went.
    """
    choice.check(everything=everything)

    async def run() -> None:
        async with _connected() as connection:

            async def decide(ids: Sequence[int]) -> replay.Resolved:
                group = choice.letters.group
                return await replay.replay(connection, group, ids, actor=named(actor), per_s=per_s)

            letters = await choice.now(connection)
            tally, to_id = await _counted(connection, letters, limit)
            if dry_run:
                await _would("replay", connection, letters, tally, to_id)
                return
            if tally.total > _ASK_ABOVE and not yes:
                ask(f"Replay these {tally.total:,}?")
            await _decide(connection, letters, decide, tally=tally, to_id=to_id, done="replayed", per_s=per_s)

    asyncio.run(run())


@app.command("discard")
@chooses
def discard_letters(
    choice: Choice,
    *,
    limit: Limit = None,
    actor: Actor = None,
    dry_run: DryRun = False,
    everything: Everything = False,
    yes: Yes = False,
) -> None:
    """Let dead letters go: they are never handled, and the ordering keys that they hold move on."""
    choice.check(everything=everything)

    async def run() -> None:
        async with _connected() as connection:

            async def decide(ids: Sequence[int]) -> replay.Resolved:
                return await replay.discard(connection, choice.letters.group, ids, actor=named(actor))

            letters = await choice.now(connection)
            tally, to_id = await _counted(connection, letters, limit)
            await _would("discard", connection, letters, tally, to_id)
            if dry_run or not tally.total:
                return
            if not yes:
                ask(f"Never handle {'it' if tally.total == 1 else f'these {tally.total:,}'}?")
            await _decide(connection, letters, decide, tally=tally, to_id=to_id, done="discarded", per_s=None)

    asyncio.run(run())


@app.command()
@chooses
def export(
    choice: Choice,
    *,
    state: Annotated[DeadState | None, typer.Option(help="Of every state if not given.")] = None,
    payload: Annotated[bool, typer.Option("--payload", help="With headers and payloads.")] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A file, written as a whole; standard output if not given.")
    ] = None,
    actor: Actor = None,
) -> None:
    """Write dead letters as JSON, one a line, oldest first: what `list` shows, and payloads where asked for."""
    exported = asyncio.run(_export(choice, state, with_payload=payload, output=output, actor=named(actor)))
    if output is not None:
        typer.echo(f"exported {exported:,} to {output}")


# ---------------------------------------------------------------- what they do


async def _list(choice: Choice, state: DeadState, limit: int, before: int | None) -> list[Listed]:
    async with _connected() as connection:
        letters = await _now(connection, choice, state)
        found = await dead_list.matching(connection, letters, limit=limit, before_id=before)
        if not found:
            await _check_known(connection, letters.group)
        return found


async def _groups(choice: Choice, limit: int) -> list[dead_list.DeadGroup]:
    async with _connected() as connection:
        letters = await choice.now(connection)
        found = await dead_list.groups(connection, letters, limit=limit)
        if not found:
            await _check_known(connection, letters.group)
        return found


async def _own(group: str, fingerprint: str, owner: str | None, *, actor: str) -> int:
    async with _connected() as connection:
        letters = await replay.own(connection, group, fingerprint, owner=owner, actor=actor)
    if not letters:
        raise ConfigError(f"own: want the fingerprint of open dead letters of group {group}, got {fingerprint[:80]!r}")
    return letters


async def _show(dead_id: int, *, with_payload: bool, with_trace: bool, actor: str) -> dict[str, object]:
    async with _connected() as connection:
        listed = await dead_list.one(connection, dead_id)
        if listed is None:
            raise ConfigError(f"show: want the number of a dead letter, got {dead_id}, which is none")
        letter = await dead.show(connection, dead_id) if with_payload else None
        found = whole(listed, None if letter is None else letter.stored)
        if with_trace:
            found["trace"] = await dead.trace(connection, dead_id)
        if with_payload or with_trace:
            detail = {"id": dead_id, "payload": with_payload, "trace": with_trace}
            await audit.record(connection, actor=actor, action="dead.show", group=listed.summary.group, detail=detail)
        return found


async def _export(
    choice: Choice, state: DeadState | None, *, with_payload: bool, output: Path | None, actor: str
) -> int:
    exported = 0
    async with _connected() as connection:
        letters = await _now(connection, choice, state)
        total, _ = await dead_list.count(connection, letters)
        # Before the first of them is out: whoever breaks it off has read some.
        detail = {"letters": total, "payload": with_payload}
        await audit.record(connection, actor=actor, action="dead.export", group=letters.group, detail=detail)
        with target(output) as file:
            async with dead_list.streamed(connection, letters, with_payload=with_payload) as found:
                async for listed, message in found:
                    file.write(line(listed, message))
                    exported += 1
    return exported


async def _now(connection: Connection, choice: Choice, state: DeadState | None) -> DeadFilter:
    return dead_list.in_state(await choice.now(connection), state)


async def _counted(connection: Connection, letters: DeadFilter, limit: int | None) -> tuple[Tally, int]:
    total, to_id = await dead_list.count(connection, letters)
    if not total:
        await _check_known(connection, letters.group)
    return Tally(total=total if limit is None else min(limit, total)), to_id


async def _would(verb: str, connection: Connection, letters: DeadFilter, tally: Tally, to_id: int) -> None:
    limit = tally.total if letters.ids else min(tally.total, _SHOWN)
    ids = await dead_list.ids(connection, letters, after_id=0, to_id=to_id, limit=limit) if limit else []
    rest = f" and {tally.total - len(ids):,} more" if tally.total > len(ids) else ""
    typer.echo(f"would {verb} {tally.total:,}: {', '.join(map(str, ids)) or 'none'}{rest}")
    _check_found(letters, ids)


async def _decide(
    connection: Connection,
    letters: DeadFilter,
    decide: Decide,
    *,
    tally: Tally,
    to_id: int,
    done: str,
    per_s: float | None,
) -> None:
    try:
        with shown(tally, verb=done) as tell:
            await in_batches(connection, letters, decide, tally=tally, to_id=to_id, per_s=per_s, tell=tell)
    finally:
        for refusal in tally.refused[:_SHOWN]:
            typer.echo(f"{refusal.id} stays: {refusal.because}")
        if len(tally.refused) > _SHOWN:
            typer.echo(f"{len(tally.refused) - _SHOWN:,} more stay")
        left = f", left {tally.left:,}: run it again" if tally.left else ""
        typer.echo(f"{done} {tally.done:,}, refused {len(tally.refused):,}{left}")
    _check_found(letters, tally.seen)


def _check_found(letters: DeadFilter, found: Sequence[int] | set[int]) -> None:
    check_found(letters.ids or (), found, what=f"open dead letters of group {letters.group}")


async def _check_known(connection: Connection, group: str) -> None:
    """Complain of a group that never ran, as far as this role may know which did."""
    if group == DEFAULT_GROUP:
        return
    try:
        known = await status.groups(connection)
    except psycopg.errors.InsufficientPrivilege:
        return
    check_group_known(group, known, otherwise=DEFAULT_GROUP)


@asynccontextmanager
async def _connected() -> AsyncIterator[Connection]:
    async with await connect(database_url(), application_name="outbox") as connection:
        with store_errors():
            yield connection
