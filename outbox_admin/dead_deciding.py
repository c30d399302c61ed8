"""Deciding about dead letters that were chosen: what would be done, doing it, and telling how it went."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import psycopg
import typer

from consumer import status
from consumer.store import dead_list
from consumer.store.dead_list import DeadFilter
from consumer.store.stored import Connection
from outbox.schema import DEFAULT_GROUP
from outbox.shell import words
from outbox.shell.console import note, print_json, progress
from outbox.shell.database import connect, store_errors
from outbox_admin.choices import check_found, check_group_known
from outbox_admin.dead_run import Decide, Tally, in_batches
from outbox_admin.settings import database_url

_SHOWN: Final = 20


async def counted(connection: Connection, letters: DeadFilter, limit: int | None) -> tuple[Tally, int]:
    """How many letters there are, at most *limit*, and the highest number among them."""
    total, to_id = await dead_list.count(connection, letters)
    if not total:
        await explain_nothing(connection, letters.group)
    return Tally(total=total if limit is None else min(limit, total)), to_id


async def would(
    verb: str, connection: Connection, letters: DeadFilter, tally: Tally, to_id: int, *, as_json: bool
) -> None:
    """Say which letters would be decided about."""
    limit = tally.total if letters.ids or as_json else min(tally.total, _SHOWN)
    ids = await dead_list.ids(connection, letters, after_id=0, to_id=to_id, limit=limit) if limit else []
    rest = f" and {tally.total - len(ids):,} more" if tally.total > len(ids) else ""
    if as_json:
        print_json({f"would_{verb}": tally.total, "ids": list(ids)})
    else:
        which = f": {', '.join(map(str, ids))}{rest}" if ids else ""
        typer.echo(f"would {verb} {words.counted(tally.total, 'dead letter')}{which}")
    _check_found(letters, ids)


async def decide_all(
    connection: Connection,
    letters: DeadFilter,
    decide: Decide,
    tally: Tally,
    to_id: int,
    *,
    done: str,
    per_s: float | None,
    as_json: bool,
) -> None:
    """Decide about all of them, a batch at a time, and tell how it went, also where it breaks off."""
    try:
        with progress(done, total=tally.total) as tell:

            def told() -> None:
                tell(tally.total - tally.left)

            await in_batches(connection, letters, decide, tally=tally, to_id=to_id, per_s=per_s, tell=told)
    finally:
        if as_json:
            print_json({done: tally.done, "refused": tally.refused, "left": tally.left})
        else:
            _tell(tally, done)
    _check_found(letters, tally.seen)


def _tell(tally: Tally, done: str) -> None:
    for refusal in tally.refused[:_SHOWN]:
        typer.echo(f"{refusal.id} stays: {refusal.because}")
    if len(tally.refused) > _SHOWN:
        typer.echo(f"{len(tally.refused) - _SHOWN:,} more stay")
    left = f", left {tally.left:,}: run it again" if tally.left else ""
    typer.echo(f"{done} {tally.done:,}, refused {len(tally.refused):,}{left}")


def _check_found(letters: DeadFilter, found: Sequence[int] | set[int]) -> None:
    what = f"open dead letters of group {letters.group}"
    check_found(letters.ids or (), found, what=what, do="'outbox dead show ID' tells what became of one")


async def explain_nothing(connection: Connection, group: str) -> None:
    """Say which groups have open letters where *group* is only the default; complain of one that never ran.

    As far as this role may know.
    """
    if group == DEFAULT_GROUP:
        for name, letters in await dead_list.elsewhere(connection, group):
            note(f"group {name} has {words.counted(letters, 'open dead letter')}: --group {name}")
        return
    try:
        known = await status.groups(connection)
    except psycopg.errors.InsufficientPrivilege:
        return
    check_group_known(group, known, otherwise=DEFAULT_GROUP)


@asynccontextmanager
async def connected() -> AsyncIterator[Connection]:
    """The database, its errors in our words."""
    async with await connect(database_url(), application_name="outbox") as connection:
        with store_errors():
            yield connection
