"""JSON as both ends agree on it: what PostgreSQL, Python and every other language read alike.

Refused are NaN and infinities, duplicate keys, more than 64 levels, NUL in a string, lone
surrogates, and anything that is not UTF-8. A value that passes means the same to every reader.
"""

import json
from collections.abc import Iterable
from typing import Final, NoReturn

LEVELS_MAX: Final = 64


class NotStrict(ValueError):
    """The text is no JSON, or JSON that readers disagree on. The message names the reason, never the text."""


def dumps(value: object) -> bytes:
    """Serialise *value*, or raise NotStrict. Non-ASCII text is kept as UTF-8; no spaces are added."""
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
        data = text.encode()
    except RecursionError:
        raise NotStrict(f"want at most {LEVELS_MAX} levels") from None
    except UnicodeEncodeError:
        raise NotStrict("want Unicode text, got a lone surrogate") from None
    except (TypeError, ValueError) as error:
        raise NotStrict(_reason(error)) from None
    loads(data)
    return data


def loads(data: bytes) -> object:
    """Parse *data*, or raise NotStrict. Never recurses deeper than the level limit."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise NotStrict(f"want UTF-8, got another byte at position {error.start}") from None
    if data.count(b"[") + data.count(b"{") > LEVELS_MAX:
        _check_levels(text)
    try:
        value = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_object)
    except NotStrict:
        raise
    except (ValueError, RecursionError) as error:
        raise NotStrict(_reason(error)) from None
    if b"\\u" in data:  # only an escape can spell NUL or half a character
        _check_strings(value)
    return value


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise NotStrict("want every key once, got a duplicate")
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise NotStrict(f"want finite numbers, got {name}")


def _check_levels(text: str) -> None:
    level = 0
    in_string = escaped = False
    for char in text:
        if in_string:
            in_string = escaped or char != '"'
            escaped = char == "\\" and not escaped
        elif char == '"':
            in_string = True
        elif char in "[{":
            level += 1
            if level > LEVELS_MAX:
                raise NotStrict(f"want at most {LEVELS_MAX} levels")
        elif char in "]}":
            level -= 1


def _check_strings(value: object) -> None:
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            if "\0" in item:
                raise NotStrict("want text without NUL, got \\u0000")
            if any("\ud800" <= char <= "\udfff" for char in item):
                raise NotStrict("want Unicode text, got a lone surrogate")
        elif isinstance(item, dict):
            waiting.extend(_both(item.items()))
        elif isinstance(item, list):
            waiting.extend(item)


def _both(items: Iterable[tuple[object, object]]) -> Iterable[object]:
    for pair in items:
        yield from pair


def _reason(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"want JSON, got an error at position {error.pos}"
    if isinstance(error, RecursionError):
        return f"want at most {LEVELS_MAX} levels"
    if isinstance(error, TypeError):
        return f"want values that JSON has, got another kind ({error})"
    return "want finite numbers of a sensible length" if "digits" in str(error) or "float" in str(error) else str(error)
