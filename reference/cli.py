"""``cli.md``: every command and option of the three programs, from typer's own tree and by typer's own generator."""

import re
from typing import Any, Final

import typer
from typer.cli import get_docs_for_click

from admin.cli import app as outbox
from consumer.cli import app as outbox_consumer
from reference.markdown import page, table
from relay.cli import app as outbox_relay

_PROGRAMS: Final = {"outbox": outbox, "outbox-relay": outbox_relay, "outbox-consumer": outbox_consumer}
# Every command has these, and they say of themselves what they do.
_COMMON: Final = re.compile(r"^\* `--(help|install-completion|show-completion)[ `].*\n", re.MULTILINE)
_EMPTY: Final = re.compile(r"^\*\*Options\*\*:\n\n(?!\*)", re.MULTILINE)
_BARE: Final = re.compile(r"^(#+) `(.*)`$", re.MULTILINE)


def render() -> str:
    """The page."""
    about = (
        "Every command knows `--help`, and every program `--install-completion`. How they end:"
        " [exit codes](errors.md#exit-codes). What they read: [settings](settings.md)."
    )
    return page("Command line", about, *(_program(name, app) for name, app in _PROGRAMS.items()))


def _program(name: str, app: typer.Typer) -> str:
    command: Any = typer.main.get_command(app)
    # What processes start each other by is nothing that a person types.
    command.commands = {word: inner for word, inner in command.commands.items() if not inner.hidden}
    overview = table(("command", "what it does"), _overview(command, name))
    text = get_docs_for_click(obj=command, ctx=command.context_class(command, info_name=name), name=name, indent=1)
    head, _, rest = text.partition("\n### ")
    about = head.partition("**Usage**")[0]
    return _plain(f"{about}\n{overview}\n### {rest}")


def _overview(command: Any, path: str) -> list[tuple[str, str]]:
    """Each command that does something, with the first sentence of its help."""
    if not hasattr(command, "commands"):
        return [(f"[`{path}`](#{path.replace(' ', '-')})", _first_sentence(command.help or ""))]
    rows = []
    if command.invoke_without_command:
        rows.append((f"[`{path}`](#{path.replace(' ', '-')})", _first_sentence(command.help or "")))
    for name, inner in command.commands.items():
        rows += _overview(inner, f"{path} {name}")
    return rows


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=[.])\s", " ".join(text.split()), maxsplit=1)[0]


def _plain(text: str) -> str:
    """As a page has it: usages are no sessions, headings no code, and lists of shortened sentences are left out."""
    text = re.sub(r"\*\*Commands\*\*:\n\n(\* .*\n)+", "", text)
    text = _EMPTY.sub("", _COMMON.sub("", text)).replace("```console\n$ ", "```text\n")
    text = _BARE.sub(r"\1 \2", text)
    return re.sub(r"\n{3,}", "\n\n", text)
