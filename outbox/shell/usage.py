"""A wrong command line in one sentence: what was wanted, what came, and whose help to read."""

import re
from typing import Any, Final

from outbox.shell.commands import suggestion

#: What pydantic found wrong with a value, and what was wanted instead.
_WANTED: Final = {
    "int_parsing": "a whole number",
    "float_parsing": "a number",
    "uuid_parsing": "a UUID",
    "greater_than_equal": "at least {ge:.15g}",
    "less_than_equal": "at most {le:.15g}",
}
_CHOICE: Final = re.compile(r"Value error, (?P<got>.*) is not one of (?P<known>.*?)\.?", re.DOTALL)
_NAMED: Final = re.compile(r"Invalid value for '(?P<name>[^']*)'[^:]*: ")
_CHARS_MAX: Final = 80


def told(program: str, error: Any) -> str:
    """What is wrong, as a message of *program*; its help where *error* is that nothing was given to a group."""
    message = error.format_message()
    # A command group called with nothing "fails" with its own help text, of many lines.
    if not message or "\n" in message.strip():
        return str(message)
    path = getattr(getattr(error, "ctx", None), "command_path", program)
    said = (_of_value(error) or _of_line(message)).rstrip(".") + suggestion(error)
    return f"{program}: {said}{'' if said.endswith('?') else '.'} Try '{path} --help'."


def _of_line(message: str) -> str:
    text = _NAMED.sub(r"\g<name>: ", message, count=1).removeprefix("Invalid value: ")
    text = text.partition(" (Possible options: ")[0]
    return " ".join(text.split())


def _of_value(error: Any) -> str | None:
    """What is wrong with the value of one option or argument; None if it is something else, or not known."""
    parameter, errors = getattr(error, "param", None), getattr(error.__cause__, "errors", None)
    if parameter is None or errors is None:
        return None
    first = errors()[0]
    wanted, got = _WANTED.get(first["type"]), repr(str(first["input"])[:_CHARS_MAX])
    if wanted is not None:
        wanted = wanted.format(**first.get("ctx", {}))
    elif (choice := _CHOICE.fullmatch(first["msg"])) is not None:
        wanted, got = f"one of {choice['known'].replace(chr(39), '')}", choice["got"]
    else:
        return None
    name = parameter.get_error_hint().split(" / ")[0].strip("'")
    return f"{name}: want {wanted}, got {got}"
