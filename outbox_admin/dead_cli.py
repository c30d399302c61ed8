"""``outbox dead``: see dead letters, say whose they are, have them handled again, or let them go."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from consumer.store import audit, dead, dead_list, replay
from consumer.store.dead_list import DeadFilter, DeadState, Listed
from consumer.store.stored import Connection
from outbox.errors import ConfigError
from outbox.schema import DEFAULT_GROUP
from outbox.shell.commands import OUTPUT, AsJson, command, group
from outbox.shell.console import console, note, print_json, progress
from outbox_admin import dead_tables, operators_cli
from outbox_admin.audit import named
from outbox_admin.choices import Actor, DryRun, Everything, OneGroup, Yes
from outbox_admin.dead_choice import Choice, check_id, chooses
from outbox_admin.dead_deciding import connected, counted, decide_all, explain_nothing, would
from outbox_admin.dead_export import line, plain, target, whole
from outbox_admin.prompt import ask

app: Final = group(
    help="Events that get no further attempt: group, own, replay or discard them.\n\nBegin with `groups`: what failed"
    " alike is one group. Then `own` it, mend what failed, `replay` a few and then the rest, and `discard` what must"
    " never be handled."
)
app.add_typer(operators_cli.app, name="operator")

Limit = Annotated[int | None, typer.Option(min=1, help="At most this many, oldest first; all that fit if not given.")]
_ASK_ABOVE: Final = 1_000
_SHOWN: Final = 20
_OWNER_CHARS_MAX: Final = 200


@command(app, "list", examples=("outbox dead list --group billing", "outbox dead list --newer-than 1h --json"))
@chooses
def list_letters(
    choice: Choice,
    *,
    state: Annotated[DeadState | None, typer.Option(help="Open ones if not given.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most this many, newest first.")] = 100,
    before: Annotated[
        int | None,
        typer.Option(metavar="ID", min=1, callback=check_id, help="Only those before: the next page."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List dead letters, newest first: whose, what and why, and what became of those replayed. No payloads.

    Use it to see single letters; `outbox dead groups` shows what they have in common.
    """
    letters = asyncio.run(_list(choice, state or DeadState.OPEN, limit, before))
    if as_json:
        print_json([plain(letter) for letter in letters])
    elif letters:
        console().print(dead_tables.letters(letters))
        if len(letters) == limit:
            note(f"more may follow: --before {letters[-1].summary.id}")
    else:
        typer.echo(f"no {state or DeadState.OPEN} dead letters in group {choice.letters.group}")


@command(app, "groups", examples=("outbox dead groups --group billing", "outbox dead groups --tenant acme"))
@chooses
def list_groups(
    choice: Choice,
    *,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most this many, largest first.")] = 50,
    as_json: AsJson = False,
) -> None:
    """Group open dead letters by how they failed, largest group first: how many, of whom, since when, and whose.

    Use it first when dead letters grow: what failed alike has one cause.
    """
    found = asyncio.run(_groups(choice, limit))
    if as_json:
        print_json(found)
    elif found:
        console().print(dead_tables.groups(found))
    else:
        typer.echo(f"no open dead letters in group {choice.letters.group}")


@command(
    app,
    examples=("outbox dead own 5d41402abc4b2a76 --owner payments-team", "outbox dead own 5d41402abc4b2a76 --nobody"),
)
def own(
    fingerprint: Annotated[str, typer.Argument(metavar="FINGERPRINT", help="As `outbox dead groups` prints it.")],
    *,
    owner: Annotated[str | None, typer.Option(help="Who looks after them, as a person or a team.")] = None,
    nobody: Annotated[bool, typer.Option("--nobody", help="They are nobody's again.")] = False,
    group: OneGroup = DEFAULT_GROUP,
    actor: Actor = None,
    as_json: AsJson = False,
) -> None:
    """Say whose the dead letters are that failed alike, those to come included.

    Use it once somebody looks after them, so that nobody else begins.
    """
    if (owner is None) is not nobody:
        raise typer.BadParameter("want --owner NAME or --nobody, got " + ("both" if nobody else "neither"))
    if owner is not None and not (owner.strip() and owner.isprintable() and len(owner) <= _OWNER_CHARS_MAX):
        raise typer.BadParameter(f"--owner: want 1..{_OWNER_CHARS_MAX} printable characters, got {owner[:80]!r}")
    letters = asyncio.run(_own(group, fingerprint, owner, actor=named(actor)))
    if as_json:
        print_json({"fingerprint": fingerprint, "group": group, "open": letters, "owner": owner})
        return
    typer.echo(f"{fingerprint}, {letters} open: {'nobody' if owner is None else owner} looks after them")


@command(app, examples=("outbox dead show 4711", "outbox dead show 4711 --payload --trace"))
def show(
    dead_id: Annotated[
        int, typer.Argument(metavar="ID", min=1, callback=check_id, help="The number that `outbox dead list` prints.")
    ],
    *,
    payload: Annotated[bool, typer.Option("--payload", help="Print headers and payload too.")] = False,
    trace: Annotated[
        bool, typer.Option("--trace", help="Print the stack trace too, line by line, if there is one.")
    ] = False,
    actor: Actor = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="On one line, as the other commands print.", rich_help_panel=OUTPUT)
    ] = False,
) -> None:
    """Show one dead letter, as JSON; payload and stack trace only when asked for, which the audit tells.

    Use it when the reason that `outbox dead list` gives is not enough.
    """
    shown_letter = asyncio.run(_show(dead_id, with_payload=payload, with_trace=trace, actor=named(actor)))
    print_json(shown_letter, indent=None if as_json else 2)


@command(
    app,
    "replay",
    examples=(
        "outbox dead replay 4711",
        "outbox dead replay --fingerprint 5d41402abc4b2a76 --limit 10",
        "outbox dead replay --all",
    ),
)
@chooses
def replay_letters(
    choice: Choice,
    *,
    limit: Limit = None,
    per_s: Annotated[float, typer.Option("--per-s", min=0.001, max=100_000, help="At most so many a second.")] = 500.0,
    actor: Actor = None,
    dry_run: DryRun = False,
    everything: Everything = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Have dead letters handled again from their first attempt on. What was done meanwhile is refused.

    Use it once what failed is mended. They are checked like any delivery: envelope, payload, version, and whether it is
    still allowed. Safe to break off and to run again. `outbox dead list --state replayed` says how it went.
    """
    choice.check(everything=everything)

    async def run() -> None:
        async with connected() as connection:

            async def decide(ids: Sequence[int]) -> replay.Resolved:
                group = choice.letters.group
                return await replay.replay(connection, group, ids, actor=named(actor), per_s=per_s)

            letters = await choice.now(connection)
            tally, to_id = await counted(connection, letters, limit)
            if dry_run:
                await would("replay", connection, letters, tally, to_id, as_json=as_json)
                return
            if tally.total > _ASK_ABOVE and not yes:
                ask(f"Replay these {tally.total:,}?")
            await decide_all(
                connection, letters, decide, tally=tally, to_id=to_id, done="replayed", per_s=per_s, as_json=as_json
            )

    asyncio.run(run())


@command(
    app,
    "discard",
    examples=("outbox dead discard --fingerprint 5d41402abc4b2a76 --dry-run", "outbox dead discard 4711 --yes"),
)
@chooses
def discard_letters(
    choice: Choice,
    *,
    limit: Limit = None,
    actor: Actor = None,
    dry_run: DryRun = False,
    everything: Everything = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Let dead letters go: they are never handled, and the ordering keys that they hold move on.

    Use it for what must never be handled; --dry-run says which they are.
    """
    choice.check(everything=everything)

    async def run() -> None:
        async with connected() as connection:

            async def decide(ids: Sequence[int]) -> replay.Resolved:
                return await replay.discard(connection, choice.letters.group, ids, actor=named(actor))

            letters = await choice.now(connection)
            tally, to_id = await counted(connection, letters, limit)
            if dry_run or not as_json or not tally.total:
                await would("discard", connection, letters, tally, to_id, as_json=as_json)
            if dry_run or not tally.total:
                return
            if not yes:
                ask(f"Never handle {'it' if tally.total == 1 else f'these {tally.total:,}'}?")
            await decide_all(
                connection, letters, decide, tally=tally, to_id=to_id, done="discarded", per_s=None, as_json=as_json
            )

    asyncio.run(run())


@command(
    app,
    examples=("outbox dead export --group billing -o dead.jsonl", "outbox dead export --state open --payload"),
)
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
    """Write dead letters as JSON, one a line, oldest first: what `list` shows, and payloads where asked for.

    Use it to keep them elsewhere before they are discarded.
    """
    exported = asyncio.run(_export(choice, state, with_payload=payload, output=output, actor=named(actor)))
    if output is not None:
        note(f"exported {exported:,} to {output}")


# ---------------------------------------------------------------- what they do


async def _list(choice: Choice, state: DeadState, limit: int, before: int | None) -> list[Listed]:
    async with connected() as connection:
        letters = await _now(connection, choice, state)
        found = await dead_list.matching(connection, letters, limit=limit, before_id=before)
        if not found:
            await explain_nothing(connection, letters.group)
        return found


async def _groups(choice: Choice, limit: int) -> list[dead_list.DeadGroup]:
    async with connected() as connection:
        letters = await choice.now(connection)
        found = await dead_list.groups(connection, letters, limit=limit)
        if not found:
            await explain_nothing(connection, letters.group)
        return found


async def _own(group: str, fingerprint: str, owner: str | None, *, actor: str) -> int:
    async with connected() as connection:
        letters = await replay.own(connection, group, fingerprint, owner=owner, actor=actor)
    if not letters:
        raise ConfigError(f"own: want the fingerprint of open dead letters of group {group}, got {fingerprint[:80]!r}")
    return letters


async def _show(dead_id: int, *, with_payload: bool, with_trace: bool, actor: str) -> dict[str, object]:
    async with connected() as connection:
        listed = await dead_list.one(connection, dead_id)
        if listed is None:
            raise ConfigError(f"show: want the number of a dead letter, got {dead_id}, which is none")
        letter = await dead.show(connection, dead_id) if with_payload else None
        found = whole(listed, None if letter is None else letter.stored)
        if with_trace:
            trace = await dead.trace(connection, dead_id)
            found["trace"] = None if trace is None else trace.splitlines()
        if with_payload or with_trace:
            detail = {"id": dead_id, "payload": with_payload, "trace": with_trace}
            await audit.record(connection, actor=actor, action="dead.show", group=listed.summary.group, detail=detail)
        return found


async def _export(
    choice: Choice, state: DeadState | None, *, with_payload: bool, output: Path | None, actor: str
) -> int:
    exported = 0
    async with connected() as connection:
        letters = await _now(connection, choice, state)
        total, _ = await dead_list.count(connection, letters)
        # Before the first of them is out: whoever breaks it off has read some.
        detail = {"letters": total, "payload": with_payload}
        await audit.record(connection, actor=actor, action="dead.export", group=letters.group, detail=detail)
        with target(output) as file, progress("exporting", total=total) as tell:
            async with dead_list.streamed(connection, letters, with_payload=with_payload) as found:
                async for listed, message in found:
                    file.write(line(listed, message))
                    exported += 1
                    tell(exported)
    return exported


async def _now(connection: Connection, choice: Choice, state: DeadState | None) -> DeadFilter:
    return dead_list.in_state(await choice.now(connection), state)
