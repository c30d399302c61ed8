"""Command lines with one set of manners: ``-h``, ``--version``, ``--debug``, examples, commands loaded when run.

A command of ours is made by ``command``, which asks for examples; tests walk the tree and hold the rest of it.
"""

import difflib
import importlib
import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeAlias, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup
from typer.models import Default

F = TypeVar("F", bound=Callable[..., object])

DISTRIBUTION: Final = "fairpost"
#: The key of the root context's object under which ``--debug`` is found.
DEBUG: Final = "debug"
#: What an example's line begins with, in every help text.
PROMPT: Final = "$ "

#: What narrows a command down, and what makes it safe or says how it prints: each has its panel in every help text.
WHICH: Final = "Which ones"
SAFETY: Final = "Safety and audit"
OUTPUT: Final = "Output"

AsJson: TypeAlias = Annotated[
    bool, typer.Option("--json", help="Print one JSON document and nothing else.", rich_help_panel=OUTPUT)
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A command that is imported when it is run: the overview needs its name and *line* alone.

    *module* has a ``typer.Typer`` named ``app``: the command itself if *is_group*, else what has it under *name*.
    """

    name: str
    module: str
    line: str
    panel: str
    is_group: bool = False

    def load(self) -> Any:
        """The command itself."""
        found = typer.main.get_command(importlib.import_module(self.module).app)
        if not self.is_group and isinstance(found, TyperGroup):
            found = found.commands[self.name]
        found.name = self.name
        return found


class Command(TyperCommand):
    """A command whose help names no type where there is only a flag."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print it."""
        _tidy(self, ctx)
        super().format_help(ctx, formatter)


class Pending(Command):
    """What stands in the overview for a command that is not imported yet."""

    def __init__(self, entry: Entry) -> None:
        super().__init__(entry.name, short_help=entry.line, rich_help_panel=entry.panel)
        self.entry = entry


class Commands(TyperGroup):
    """A group of commands, some of them pending; it suggests what a mistyped option may have meant."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print it."""
        _tidy(self, ctx)
        super().format_help(ctx, formatter)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that *args* begin with, imported."""
        name, found, rest = super().resolve_command(ctx, args)
        return name, found.entry.load() if isinstance(found, Pending) else found, rest


def application(*, help: str, epilog: str, entries: Iterable[Entry] = ()) -> TyperGroup:
    """Return a program whose commands are *entries*."""
    return extended(root(help=help, epilog=epilog), entries)


def root(*, help: str, epilog: str) -> typer.Typer:
    """Return a program's root, to which commands can be added."""
    made = typer.Typer(
        cls=Commands,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        epilog=epilog,
    )

    def options(
        context: typer.Context,
        *,
        version: Annotated[  # noqa: ARG001 - its callback has answered
            bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
        ] = False,
        debug: Annotated[
            bool, typer.Option("--debug", help="Print the traceback of an error that is a fault of ours.")
        ] = False,
    ) -> None:
        context.ensure_object(dict)[DEBUG] = debug

    made.callback(help=help)(options)
    return made


def extended(app: typer.Typer, entries: Iterable[Entry] = ()) -> TyperGroup:
    """Return the command line of *app*, with *entries* after its own commands."""
    made = typer.main.get_command(app)
    assert isinstance(made, TyperGroup)  # noqa: S101 - a root has a callback
    for entry in entries:
        made.add_command(Pending(entry))
    return made


def group(*, help: str | None = None, epilog: str | None = None) -> typer.Typer:
    """Return a group of commands, to be mounted in a program.

    *help*: its callback's docstring if not given; a group that does something by itself has one.
    """
    return typer.Typer(
        cls=Commands,
        no_args_is_help=help is not None,
        add_completion=False,
        pretty_exceptions_enable=False,
        epilog=epilog,
        help=Default(None) if help is None else help,
    )


def command(
    app: typer.Typer, name: str | None = None, *, examples: Sequence[str], panel: str | None = None
) -> Callable[[F], F]:
    """Add a function to *app* as the command *name*. Its docstring is the help; *examples* are whole command lines."""
    add = app.command(name, cls=Command, epilog=shown_examples(*examples), rich_help_panel=panel)

    def adding(function: F) -> F:
        add(function)
        return function

    return adding


def shown_examples(*lines: str) -> str:
    """Return *lines* as the end of a help text, each on its line."""
    return "\n".join(("Examples:" if len(lines) > 1 else "Example:", *(PROMPT + line for line in lines)))


def suggestion(error: Exception) -> str:
    """What a wrong option in *error* may have meant, as the end of a sentence; empty if nothing is near."""
    wrong, context = getattr(error, "option_name", None), getattr(error, "ctx", None)
    if wrong is None or context is None:
        return ""
    known = [name for parameter in context.command.get_params(context) for name in parameter.opts]
    near = difflib.get_close_matches(wrong, [name for name in known if name.startswith("-")], n=1)
    return f". Did you mean {near[0]!r}?" if near else ""


def _print_version(context: typer.Context, _parameter: object, is_wanted: bool) -> None:
    if is_wanted and not context.resilient_parsing:
        from importlib import metadata  # noqa: PLC0415 - it takes longer than all of typer

        typer.echo(f"{context.find_root().info_name} {metadata.version(DISTRIBUTION)}")
        raise typer.Exit


def _tidy(command: Any, context: Any) -> None:
    """Let paragraphs wrap by the terminal, not where the docstring did, and flags have no type."""
    paragraphs = inspect.cleandoc(command.help or "").split("\n\n")
    command.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    for parameter in command.get_params(context):
        if getattr(parameter, "is_flag", False) and parameter.metavar is None:
            parameter.metavar = ""
