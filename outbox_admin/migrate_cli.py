"""``outbox migrate``: our tables, made, brought up to date, or removed."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Final

import typer

from outbox.errors import ConfigError
from outbox.shell.commands import OUTPUT, AsJson, command
from outbox.shell.console import print_json, progress
from outbox_admin import migrate as migrations
from outbox_admin.choices import Yes
from outbox_admin.prompt import ask
from outbox_admin.settings import database_url

app: Final = typer.Typer(add_completion=False)


class ChainName(StrEnum):
    """Which tables."""

    OUTBOX = "outbox"
    CONSUMER = "consumer"
    BROKER = "broker"
    ALL = "all"


_CHAINS: Final[Mapping[ChainName, tuple[migrations.Chain, ...]]] = {
    ChainName.OUTBOX: ("outbox",),
    ChainName.CONSUMER: ("consumer",),
    ChainName.BROKER: ("broker",),
    ChainName.ALL: migrations.CHAINS,
}


@command(
    app,
    examples=(
        "outbox migrate",
        "outbox migrate --check",
        "outbox migrate --chain outbox --sql",
    ),
)
def migrate(
    *,
    chain: Annotated[ChainName, typer.Option(help="Which tables; they may live in several databases.")] = ChainName.ALL,
    down: Annotated[bool, typer.Option("--down", help="Remove the tables, and everything in them.")] = False,
    sql: Annotated[
        bool, typer.Option("--sql", help="Print the SQL instead; needs no database.", rich_help_panel=OUTPUT)
    ] = False,
    check: Annotated[bool, typer.Option("--check", help="Only say whether anything is left to apply.")] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Create our tables, or bring them up to date. Safe to repeat; an app's own tables are never touched.

    Use it before the first start and with every deploy, before the new code runs.
    """
    chains = _CHAINS[chain]
    if check and (sql or down):
        raise typer.BadParameter("--check goes with neither --down nor --sql")
    if sql:
        _print_sql(chains, down=down, as_json=as_json)
        return
    url = database_url()
    if check:
        _check(migrations.status(url, chains=chains), as_json=as_json)
        return
    if down:
        if not yes:
            ask(f"Remove {_told(migrations.contents(url, chains=chains))}?")
        with progress("removing tables"):
            migrations.downgrade(url, chains=chains)
    else:
        with progress("migrating"):
            migrations.upgrade(url, chains=chains)
    statuses = migrations.status(url, chains=chains)
    if as_json:
        print_json([_plain(status) for status in statuses])
        return
    for status in statuses:
        typer.echo(f"{status.chain}: {status.current or 'nothing'}")


def _print_sql(chains: tuple[migrations.Chain, ...], *, down: bool, as_json: bool) -> None:
    text = migrations.sql(chains=chains, down=down)
    if as_json:
        print_json({"sql": text})
    else:
        typer.echo(text)


def _check(statuses: Sequence[migrations.Status], *, as_json: bool) -> None:
    behind = [status for status in statuses if not status.is_current]
    if as_json:
        print_json([_plain(status) for status in statuses])
    else:
        for status in statuses:
            typer.echo(f"{status.chain}: {status.current or 'nothing'}, newest {status.newest}")
    if behind:
        names = " and ".join(status.chain for status in behind)
        raise ConfigError(f"want the newest revision, got {names} behind it; run 'outbox migrate'")


def _plain(status: migrations.Status) -> dict[str, object]:
    return {
        "chain": status.chain,
        "current": status.current,
        "newest": status.newest,
        "is_current": status.is_current,
    }


def _told(found: migrations.Contents) -> str:
    schemas = " and ".join(found.schemas) or "nothing"
    return f"{found.tables} tables of {schemas} with about {found.rows:,} rows, {found.size_bytes / 1e6:.1f} MB"
