"""``outbox result``: what handlers returned for one event."""

import asyncio
import json
from typing import Annotated, Final
from uuid import UUID

import typer
from rich.table import Table

from consumer.status import groups
from consumer.store import results
from consumer.store.results import Result
from outbox.errors import ConfigError
from outbox.shell.commands import AsJson, command
from outbox.shell.console import console, print_json, table
from outbox.shell.database import connect, store_errors
from outbox.shell.logs import harmless
from outbox.shell.words import in_utc
from outbox_admin.choices import Group
from outbox_admin.settings import database_url

app: Final = typer.Typer(add_completion=False)


@command(app, examples=("outbox result 019ad5f0-7c2e-7bb0-8d7e-3a5b5c1d2e4f",))
def result(
    event_id: Annotated[UUID, typer.Argument(metavar="EVENT_ID", help="The event's id, as emit returned it.")],
    *,
    group: Group = None,
    as_json: AsJson = False,
) -> None:
    """Show what handlers returned for an event, for as long as OUTBOX_CONSUMER_RESULT_DAYS keeps it.

    Use it when an app asks what became of an event.
    """
    found = asyncio.run(_read(event_id, group))
    if as_json:
        print_json([_plain(one) for one in found])
    elif found:
        console().print(_table(found))
    else:
        typer.echo(f"no result of event {event_id} is kept{f' in group {group}' if group else ''}")


async def _read(event_id: UUID, group: str | None) -> list[Result]:
    async with await connect(database_url(), application_name="outbox") as connection:
        with store_errors():
            found = await results.of_event(connection, event_id, group=group)
            if group is not None and not found and group not in (known := await groups(connection)):
                wanted = f"one of {', '.join(known)}" if known else "one that has run, and none has"
                raise ConfigError(f"group: want {wanted}, got {group[:80]!r}")
            return found


def _plain(one: Result) -> dict[str, object]:
    return {
        "group": one.group,
        "handler": one.handler,
        "tenant": one.tenant,
        "at": one.at.isoformat(),
        "result": one.result,
    }


def _table(found: list[Result]) -> Table:
    made = table("group", "handler", "at", "result")
    for one in found:
        text = json.dumps(one.result, ensure_ascii=False)
        at = in_utc(one.at)
        made.add_row(one.group, harmless(one.handler), at, harmless(text))
    return made
