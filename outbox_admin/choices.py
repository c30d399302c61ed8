"""What a person chooses by, in every command that lists rows and decides about them: ids, a filter, or all there is."""

import functools
import inspect
import re
from collections.abc import Callable, Collection, Hashable
from datetime import timedelta
from typing import Annotated, Any, Concatenate, Final, TypeAlias, TypeVar

import typer

from outbox.errors import ConfigError
from outbox.shell.commands import SAFETY, WHICH
from outbox.shell.options import group_option

C = TypeVar("C")
R = TypeVar("R")

Tenant: TypeAlias = Annotated[
    str | None, typer.Option(metavar="TENANT", help="Only this tenant's.", rich_help_panel=WHICH)
]
EventType: TypeAlias = Annotated[
    str | None, typer.Option("--type", metavar="TYPE", help="Only events of this type.", rich_help_panel=WHICH)
]
Group: TypeAlias = Annotated[str | None, group_option("Only this group's.")]
OneGroup: TypeAlias = Annotated[str, group_option("Whose dead letters.")]
Everything: TypeAlias = Annotated[bool, typer.Option("--all", help="All there are.", rich_help_panel=WHICH)]
DryRun: TypeAlias = Annotated[
    bool, typer.Option("--dry-run", help="Only say what it would do.", rich_help_panel=SAFETY)
]
Yes: TypeAlias = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.", rich_help_panel=SAFETY)]
Actor: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Who asks, for the audit; your login if not given.", rich_help_panel=SAFETY),
]

_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_AGE: Final = re.compile(r"(\d{1,6})([smhd])")


def choosing(choice: Callable[..., C]) -> Callable[[Callable[Concatenate[C, ...], R]], Callable[..., R]]:
    """What gives a command, which takes a *choice* first, the options that *choice* is made of."""
    options = inspect.signature(choice).parameters

    def give(command: Callable[Concatenate[C, ...], R]) -> Callable[..., R]:
        own = list(inspect.signature(command).parameters.values())[1:]

        @functools.wraps(command)
        def run(**given: Any) -> R:
            chosen = choice(**{name: given.pop(name) for name in options})
            return command(chosen, **given)

        # What the command line is made from.
        signature = inspect.Signature([*options.values(), *own])
        run.__annotations__ = {name: one.annotation for name, one in signature.parameters.items()}
        setattr(run, "__signature__", signature)  # noqa: B010 - functions have no such attribute for a type checker
        return run

    return give


def check_chosen(*given: object, everything: bool) -> None:
    """Return if something was chosen; raises BadParameter where neither that nor ``--all`` was."""
    if not (everything or any(given)):
        raise typer.BadParameter("want ids, a filter or --all, got nothing")


def check_found(wanted: Collection[Hashable], found: Collection[Hashable], *, what: str, do: str) -> None:
    """Complain of the ids that were given and not *found*; *what* says what they should have named, *do* what next."""
    missing = set(wanted) - set(found)
    if missing:
        raise ConfigError(f"want {what}, got no such: {', '.join(map(str, sorted(missing, key=str)))}; {do}")


def check_group_known(group: str, known: Collection[str], *, otherwise: str) -> None:
    """Complain of a *group* that nobody knows, rather than say that there is nothing of it."""
    if group not in known:
        raise ConfigError(f"group: want one of {', '.join(known) or otherwise}, got {group[:80]!r}")


def age(option: str, text: str) -> timedelta:
    """Return how long *text* is, as ``90s``, ``15m``, ``2h`` or ``7d``. Raises BadParameter naming *option*."""
    found = _AGE.fullmatch(text)
    if found is None:
        raise typer.BadParameter(f"{option}: want an age as 90s, 15m, 2h or 7d, got {text[:80]!r}")
    return timedelta(**{_UNITS[found[2]]: int(found[1])})
