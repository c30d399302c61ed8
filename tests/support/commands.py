"""The command trees of the three programs, every command in them, imported."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from typer.core import TyperGroup

from consumer.cli import app as outbox_consumer
from outbox.shell.commands import PROMPT
from outbox_admin.cli import app as outbox
from relay.cli import app as outbox_relay

PROGRAMS: Final = {"outbox": outbox, "outbox-relay": outbox_relay, "outbox-consumer": outbox_consumer}
_EXAMPLE: Final = re.compile(rf"^\s*{re.escape(PROMPT)}(.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """One command of the tree, hidden ones left out: what is typed for it, and what typer made of it."""

    path: tuple[str, ...]
    command: Any

    @property
    def is_group(self) -> bool:
        """Whether it has commands below it."""
        return isinstance(self.command, TyperGroup)

    @property
    def name(self) -> str:
        """What is typed for it."""
        return " ".join(self.path)

    @property
    def examples(self) -> list[str]:
        """The command lines that its help shows."""
        return _EXAMPLE.findall(self.command.epilog or "")

    @property
    def options(self) -> set[str]:
        """Every spelling of every option."""
        return {name for parameter in self.command.params for name in (*parameter.opts, *parameter.secondary_opts)}


def every() -> list[Known]:
    """Every command of every program, the programs first."""
    return [known for name, program in PROGRAMS.items() for known in _walk((name,), program)]


def parse(line: str) -> Known:
    """Parse *line* as its program would, down to the command it names; nothing runs. Raises what typer raises."""
    program, *arguments = shlex.split(line)
    command: Any = PROGRAMS[program]
    path, context = [program], command.make_context(program, list(arguments), obj={})
    while isinstance(command, TyperGroup) and context._protected_args:
        name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        path.append(str(name))
        context = command.make_context(name, rest, parent=context)
    return Known(path=tuple(path), command=command)


def _walk(path: tuple[str, ...], command: Any) -> Iterator[Known]:
    yield Known(path=path, command=command)
    if isinstance(command, TyperGroup):
        context = command.make_context(path[0], [], resilient_parsing=True)
        for name in command.list_commands(context):
            _, below, _ = command.resolve_command(context, [name])
            if below is not None and not below.hidden:
                yield from _walk((*path, name), below)
