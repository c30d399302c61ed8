"""``cli.md``: every command and option of the three programs, from typer's own tree and by typer's own generator."""

import copy
import re
from typing import Any, Final

from typer.cli import get_docs_for_click

from consumer.cli import app as outbox_consumer
from outbox.shell.commands import PROMPT, Pending
from outbox_admin.cli import app as outbox
from reference.markdown import page, table
from relay.cli import app as outbox_relay

_PROGRAMS: Final[dict[str, Any]] = {
    "outbox": outbox,
    "outbox-relay": outbox_relay,
    "outbox-consumer": outbox_consumer,
}
# Every command has it, and it says of itself what it does.
_COMMON: Final = re.compile(r"^\* `(-h, )?--help[ `].*\n", re.MULTILINE)
_EMPTY: Final = re.compile(r"^\*\*Options\*\*:\n\n(?!\*)", re.MULTILINE)
_COMMANDS: Final = re.compile(r"^\*\*Commands\*\*:\n\n(\* .*\n)+", re.MULTILINE)
_HEADING: Final = re.compile(r"^(#+) `(.*)`$", re.MULTILINE)
_EXAMPLES: Final = re.compile(rf"^Examples?:\n((?:{re.escape(PROMPT)}.*\n)+)", re.MULTILINE)


def render() -> str:
    """The page."""
    about = (
        "Every command knows `--help`. How they end: [exit codes](errors.md#exit-codes). What they read:"
        " [settings](settings.md)."
    )
    return page("Command line", about, *(_program(name, _shown(command)) for name, command in _PROGRAMS.items()))


def _shown(command: Any) -> Any:
    """*command* with all below it imported, without what processes start each other by: nobody types that."""
    command = copy.copy(command.entry.load() if isinstance(command, Pending) else command)
    # A help text that was printed once has lost its line breaks, as a page may do without them.
    command.help = "\n\n".join(" ".join(part.split()) for part in (command.help or "").split("\n\n"))
    if hasattr(command, "commands"):
        command.commands = {name: _shown(inner) for name, inner in command.commands.items() if not inner.hidden}
    return command


def _program(name: str, command: Any) -> str:
    overview = table(("command", "what it does"), _overview(command, name))
    text = get_docs_for_click(obj=command, ctx=command.context_class(command, info_name=name), name=name, indent=1)
    head, _, rest = text.partition("\n### ")
    return _plain(f"{head}\n\n{overview}\n### {rest}")


def _overview(command: Any, path: str) -> list[tuple[str, str]]:
    """Each command that does something, with the first sentence of its help."""
    below = getattr(command, "commands", {})
    rows = [row for name, inner in below.items() for row in _overview(inner, f"{path} {name}")]
    if not below or (command.invoke_without_command and " " in path):
        rows.insert(0, (f"[`{path}`](#{path.replace(' ', '-')})", _first_sentence(command.help or "")))
    return rows


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=[.])\s", " ".join(text.split()), maxsplit=1)[0]


def _plain(text: str) -> str:
    """As a page has it: usages are no sessions, headings no code, and lists of shortened sentences are left out."""
    text = _EMPTY.sub("", _COMMON.sub("", _COMMANDS.sub("", text))).replace("```console\n$ ", "```text\n")
    text = _EXAMPLES.sub(lambda found: f"```bash\n{found[1].replace(PROMPT, '')}```\n", f"{text}\n")
    return re.sub(r"\n{3,}", "\n\n", _HEADING.sub(r"\1 \2", text))
