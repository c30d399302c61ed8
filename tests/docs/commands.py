"""Shell commands in pages, held against the programs that they start."""

import re
import shlex
import tomllib
from collections.abc import Iterator
from typing import Any, Final

from consumer.cli import app as outbox_consumer
from outbox_admin.cli import app as outbox
from relay.cli import app as outbox_relay
from tests.docs.pages import ROOT
from tests.docs.setting_checks import variable_problems

OURS: Final = {"outbox": outbox, "outbox-relay": outbox_relay, "outbox-consumer": outbox_consumer}
# Programs of others that pages may start. A name that is not here is most often a slip of the pen.
OTHERS: Final = frozenset(
    [
        "alembic",
        "apt-get",
        "cat",
        "cd",
        "celery",
        "cp",
        "createdb",
        "curl",
        "docker",
        "echo",
        "export",
        "false",
        "fastapi",
        "git",
        "kill",
        "ls",
        "mkdir",
        "pg_dump",
        "psql",
        "pytest",
        "python",
        "python3",
        "rabbitmqctl",
        "sh",
        "source",
        "systemctl",
        "true",
        "ulimit",
        "uvicorn",
    ]
)
_ENDS: Final = frozenset({"&&", "||", "|", ";", "&", "(", ")"})
_ASSIGNMENT: Final = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_PLACEHOLDER: Final = re.compile(r"[A-Z][A-Z_]*")
_REDIRECTION: Final = re.compile(r"\d?>&\d|\d?[<>]{1,2} *[^\s<>&|;()]+")


def problems(text: str) -> list[str]:
    """What is wrong with the commands in *text*, a shell script; nothing, if each would be understood."""
    found = []
    given: dict[str, str] = {}
    try:
        for command in commands(text):
            found += _problems_of(command, given)
    except ValueError as error:
        found.append(f"{error}: {text.strip()!r}")
    return found + variable_problems(given)


def commands(text: str) -> Iterator[list[str]]:
    """The words of each simple command, comments and redirections left out, assignments before it included."""
    for line in re.sub(r"\\\n", " ", _plain(text)).splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="();&|")
        lexer.whitespace_split = True
        command: list[str] = []
        for word in [*lexer, ";"]:
            if word not in _ENDS:
                command.append(word)
            elif command:
                yield command
                command = []


def invocation_problems(words: list[str], *, is_complete: bool) -> list[str]:
    """What is wrong with a command of ours.

    Args:
        is_complete: it must be there with all that it requires, as in a script; else it may be a mere mention.
    """
    command: Any = OURS[words[0]]
    path, rest = words[:1], [word for word in words[1:] if word != "..."]
    context: Any = None
    while rest != ["--help"]:
        is_group = hasattr(command, "commands")
        if is_group and not rest and not command.invoke_without_command:
            return [f"{' '.join(path)}: want a command behind it, got none"] if is_complete else []
        context = command.context_class(command, info_name=path[-1], parent=context, **command.context_settings)
        try:
            command.parse_args(context, list(rest))
        except Exception as error:  # noqa: BLE001 - typer brings a click of its own, whose errors have no public name
            return _told(error, words, is_complete=is_complete)
        if not is_group:
            break
        rest = [*context._protected_args, *context.args]
        if not rest:
            break
        if rest[0] not in command.commands:
            return [f"{shlex.join(words)}: {' '.join(path)} has no command {rest[0]!r}"]
        path.append(rest[0])
        _, command, rest = command.resolve_command(context, rest)
    return []


def _told(error: Exception, words: list[str], *, is_complete: bool) -> list[str]:
    kind = type(error).__name__
    is_placeholder = kind == "BadParameter" and any(_PLACEHOLDER.fullmatch(word) for word in words)
    if is_placeholder or (not is_complete and kind in ("BadParameter", "MissingParameter", "BadOptionUsage")):
        return []
    return [f"{shlex.join(words)}: {getattr(error, 'format_message', lambda: repr(error))()}"]


def _problems_of(command: list[str], given: dict[str, str]) -> list[str]:
    """What is wrong with *command*; the variables that it sets are added to *given*."""
    found: list[str] = []
    if command[0] == "export":
        command = command[1:]
    while command and (assignment := _ASSIGNMENT.fullmatch(command[0])):
        given[assignment[1]] = assignment[2]
        command = command[1:]
    if not command:
        return found
    program, *rest = command
    program = program.rpartition("/")[2]
    if program in OURS:
        return found + invocation_problems([program, *rest], is_complete=True)
    if program in ("python", "python3") and rest[:2] == ["-m", "pip"]:
        program, rest = "pip", rest[2:]
    if program == "pip":
        return found + _pip_problems(rest)
    if program == "make":
        return found + _make_problems(rest)
    return found if program in OTHERS else [*found, f"{program}: a program that tests/docs/commands.py does not know"]


def _pip_problems(rest: list[str]) -> list[str]:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    found = [
        f"{word}: want a folder that has a pyproject.toml"
        for word in rest
        if word.startswith("./") and not (ROOT / word / "pyproject.toml").is_file()
    ]
    if any(word.startswith(".[") for word in rest) and not {"./relay", "./consumer"} <= set(rest):
        found.append("pip install .[...]: want ./relay and ./consumer too, of which no registry has these")
    for word in rest:
        wanted = re.fullmatch(r"(?:fairpost|\.)\[([\w,]+)\].*", word)
        found += (
            [f"{word}: there is no extra {name}" for name in wanted[1].split(",") if name not in extras]
            if wanted
            else []
        )
    return found


def _make_problems(rest: list[str]) -> list[str]:
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    return [f"make {word}: no such target" for word in rest if re.fullmatch(r"[a-z-]+", word) and word not in targets]


def _plain(text: str) -> str:
    """*text* without here-documents and redirections."""
    text = re.sub(r"<<-?\s*'?(\w+)'?([^\n]*)\n.*?^\1$", r"\2", text, flags=re.DOTALL | re.MULTILINE)
    return _REDIRECTION.sub(" ", text)
