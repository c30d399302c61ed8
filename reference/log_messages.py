"""``log-messages.md``: every log message of the shipped packages, found in their source."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from reference.log_words import WORDS
from reference.markdown import code, page, table

_ROOT: Final = Path(__file__).parents[1]
_PACKAGES: Final = {
    "relay": "outbox-relay",
    "consumer": "outbox-consumer",
    "outbox": "Both, and apps",
    "outbox_admin": "outbox",
}
_LEVELS: Final = ("debug", "info", "warning", "error", "critical")
_LOGGERS: Final = ("log", "_log", "logger", "_logger")
_OF_OUTCOME: Final = "info or worse"


@dataclass(slots=True, kw_only=True)
class _Message:
    """A message wherever it is logged."""

    levels: set[str] = field(default_factory=set)
    modules: set[str] = field(default_factory=set)
    fields: dict[str, None] = field(default_factory=dict)


def render() -> str:
    """The page."""
    blocks = []
    used: set[str] = set()
    for package, title in _PACKAGES.items():
        found = _messages(package)
        used |= found.keys()
        if found:
            rows = [_row(text, message) for text, message in sorted(found.items())]
            blocks += [f"## {title}", table(("message", "level", "fields", "module", "what it means"), rows)]
    if idle := WORDS.keys() - used:
        raise LookupError(f"reference/log_words.py: want words for messages that are logged, got {sorted(idle)}")
    return page(
        "Log messages",
        "A message is constant, so it can be counted and alerted on; what differs stands in fields, beside time,"
        " level and logger. No payload and no password is ever logged.",
        *blocks,
    )


def _row(text: str, message: _Message) -> tuple[str, ...]:
    levels = [level for level in (*_LEVELS, _OF_OUTCOME) if level in message.levels]
    if text not in WORDS and levels not in (["info"], ["debug"], [_OF_OUTCOME]):
        raise LookupError(f"reference/log_words.py: want words for the {levels[-1]} {text!r}, got none")
    modules = ", ".join(code(module) for module in sorted(message.modules))
    return code(text), ", ".join(levels), ", ".join(map(code, message.fields)), modules, WORDS.get(text, "")


def _messages(package: str) -> dict[str, _Message]:
    found: defaultdict[str, _Message] = defaultdict(_Message)
    for path in sorted((_ROOT / package).rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        module = ".".join(path.relative_to(_ROOT).with_suffix("").parts)
        for function, call, level in _calls(tree):
            given = call.args[1] if level == "log" else call.args[0]
            for text in _texts(given, tree, function):
                message = found[text]
                message.levels.add({"exception": "error", "log": _OF_OUTCOME}.get(level, level))
                message.modules.add(module)
                message.fields |= {keyword.arg or "...": None for keyword in call.keywords if keyword.arg != "exc_info"}
    return dict(found)


def _calls(tree: ast.Module) -> Iterator[tuple[str, ast.Call, str]]:
    """Each call of a logger, with the function it is in and the method that is called, each that it may be."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        inside = list(ast.walk(function))
        chosen = {
            target.id: node.value
            for node in inside
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for call in inside:
            if isinstance(call, ast.Call) and call.args:
                method = chosen.get(call.func.id) if isinstance(call.func, ast.Name) else call.func
                for level in _methods(method):
                    yield function.name, call, level


def _methods(called: ast.expr | None) -> list[str]:
    """The logger's methods that *called* may be; none if it is something else."""
    match called:
        case ast.IfExp(body=body, orelse=orelse):
            return [*_methods(body), *_methods(orelse)]
        case ast.Attribute(value=logger, attr=name) if ast.unparse(logger).rpartition(".")[2] in _LOGGERS:
            return [name] if name in (*_LEVELS, "exception", "log") else []
        case _:
            return []


def _texts(given: ast.expr, tree: ast.Module, function: str) -> list[str]:
    """The messages that an expression may be: itself, either side of a choice, a value of a table, an argument."""
    match given:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.IfExp(body=body, orelse=orelse):
            may_be = [body, orelse]
        case ast.Subscript(value=ast.Name(id=name)):
            may_be = [
                value
                for node in ast.walk(tree)
                if isinstance(node, ast.AnnAssign) and _is_named(node, name) and isinstance(node.value, ast.Dict)
                for value in node.value.values
            ]
        case ast.Name():
            may_be = [node.args[0] for node in ast.walk(tree) if isinstance(node, ast.Call) and _is_of(node, function)]
        case _:
            raise LookupError(f"reference/log_messages.py: want a constant message, got {ast.unparse(given)}")
    return [text for one in may_be for text in _texts(one, tree, function)]


def _is_named(node: ast.AnnAssign, name: str) -> bool:
    return isinstance(node.target, ast.Name) and node.target.id == name


def _is_of(node: ast.Call, name: str) -> bool:
    return isinstance(node.func, ast.Attribute) and node.func.attr == name
