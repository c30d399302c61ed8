"""``outbox config``: what is set, what is wrong with it, and where a value comes from."""

import os
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.table import Table
from rich.text import Text

from outbox.errors import ConfigError
from outbox.shell.commands import AsJson, command, group
from outbox.shell.console import console, note, print_json, table
from outbox.shell.logs import harmless
from outbox.shell.setting_table import READ_ELSEWHERE
from outbox.shell.words import counted
from outbox_admin import configuration

app: Final = group(
    help="Settings: what is in force and where it comes from, what is wrong, what one means. Asks no server.",
    epilog="The first that has a setting wins: options, the environment, .env (or OUTBOX_ENV_FILE), outbox.toml (or"
    " OUTBOX_CONFIG), libpq's PG*, the default.",
)


class ProcessName(StrEnum):
    """Whose settings."""

    RELAY = "relay"
    CONSUMER = "consumer"
    ADMIN = "admin"


Processes = Annotated[
    list[ProcessName] | None,
    typer.Option(
        *("--process", "-p"),
        metavar="PROCESS",
        help="Whose settings: relay, consumer or admin, may be repeated; else of all that are configured here.",
    ),
]


@command(app, examples=("outbox config show", "outbox config show --process relay --json"))
def show(*, process: Processes = None, as_json: AsJson = False) -> None:
    """Show every setting, its value and where that comes from; passwords are masked.

    Use it when a process does not do what you have set.
    """
    found = _find(process)
    if as_json:
        print_json({one.process.name: _plain(one) for one in found})
    else:
        for number, one in enumerate(found):
            console().print(*([""] if number else []), one.process.command, _table(one), sep="\n", markup=False)
    wrong = configuration.problems(found)
    if not as_json:
        _tell(wrong)
    _end(wrong)


@command(app, examples=("outbox config check", "outbox config check --process consumer"))
def check(*, process: Processes = None, as_json: AsJson = False) -> None:
    """Say everything that is wrong with the settings, and end with 78; or that nothing is.

    Use it before a deploy, where its environment is. Where outbox-relay and outbox-consumer are installed, their own
    `check` also tries the servers.
    """
    every = configuration.find(os.environ, directory=Path(), names=_names(process))
    found = every if process else configuration.meant(every)
    wrong = configuration.problems(found)
    if as_json:
        left = [one.process.name for one in every if one not in found]
        print_json({"processes": [one.process.name for one in found], "not_looked_at": left, "problems": list(wrong)})
    else:
        _tell(wrong)
    _end(wrong)
    if as_json:
        return
    typer.echo(f"ok: the settings of {_listed(found)} are in order")
    for one in every:
        if one not in found:
            typer.echo(f"not looked at: {one.process.command}, which lacks {one.lacks}")


@command(app, examples=("outbox config explain OUTBOX_RELAY_LEASE_S", "outbox config explain lease_s"))
def explain(
    name: Annotated[str, typer.Argument(metavar="NAME", help="As OUTBOX_RELAY_LEASE_S, lease_s or relay.lease_s.")],
    *,
    process: Processes = None,
    as_json: AsJson = False,
) -> None:
    """Say what a setting is, what it may be, what it is now, and where it is looked for, in which order.

    Use it before you change one.
    """
    if name.upper() in READ_ELSEWHERE:
        story = f"{name.upper()}: {READ_ELSEWHERE[name.upper()]}"
        if as_json:
            print_json([{"name": name.upper(), "story": story}])
        else:
            typer.echo(story)
        return
    told = configuration.called(name, configuration.find(os.environ, directory=Path(), names=_names(process)))
    if not told:
        near = configuration.near(name)
        wanted = f", such as {near}" if near else " ('outbox config show' has them all)"
        raise typer.BadParameter(f"want the name of a setting{wanted}, got {name[:80]!r}")
    if as_json:
        print_json([configuration.plain(one, row) | {"story": configuration.story(one, row)} for one, row in told])
    else:
        typer.echo("\n\n".join(configuration.story(one, row) for one, row in told))


def _tell(wrong: Sequence[str]) -> None:
    for problem in wrong:
        note(problem)


def _end(wrong: Sequence[str]) -> None:
    if wrong:
        raise ConfigError(f"{counted(len(wrong), 'problem')} in the settings, told above")


def _find(process: list[ProcessName] | None) -> list[configuration.Found]:
    found = configuration.find(os.environ, directory=Path(), names=_names(process))
    return found if process else configuration.meant(found)


def _names(process: list[ProcessName] | None) -> list[str]:
    return [one.value for one in process or ()]


def _listed(found: list[configuration.Found]) -> str:
    *most, last = [one.process.command for one in found]
    return f"{', '.join(most)} and {last}" if most else last


def _plain(one: configuration.Found) -> dict[str, object]:
    return {
        "settings": [configuration.plain(one, row) for row in one.reading.rows],
        "problems": list(one.reading.problems),
    }


def _table(one: configuration.Found) -> Table:
    made = table("setting", "value", "from", unbroken={"setting"})
    for row in one.reading.rows:
        is_missing = row.setting.field in one.reading.missing
        value = "missing" if is_missing else row.setting.shown(row.value)
        # As text: a `[relay]` would be taken for markup.
        made.add_row(row.setting.variable, Text(harmless(value)), Text(harmless("" if is_missing else row.origin)))
    return made
