"""JSON as both ends agree on it: what PostgreSQL, Python and every other language read alike.

Refused are NaN and infinities, duplicate keys, more than 64 levels, NUL in a string, lone
surrogates, and anything that is not UTF-8. A value that passes means the same to every reader.
"""

import json
from collections.abc import Iterable
from math import isinf
from typing import Final, NoReturn

LEVELS_MAX: Final = 64


class NotStrict(ValueError):
    """The text is no JSON, or JSON that readers disagree on. The message names the reason, never the text."""


def encode(value: object) -> bytes:
    """Serialise *value*, unchecked but for what the encoder itself refuses; ``loads`` checks the rest.

    For callers that look at the size in between; others call ``dumps``.
    """
    try:
        return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()
    except RecursionError:
        raise _too_deep() from None
    except UnicodeEncodeError:
        raise NotStrict("want Unicode text, got a lone surrogate") from None
    except (TypeError, ValueError) as error:
        raise NotStrict(_reason(error)) from None


def dumps(value: object) -> bytes:
    """Serialise *value*, or raise NotStrict. Non-ASCII text is kept as UTF-8; no spaces are added."""
    data = encode(value)
    loads(data)
    return data


def loads(data: bytes) -> object:
    """Parse *data*, or raise NotStrict. The caller limits its size: time and memory are proportional to it."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise NotStrict(f"want UTF-8, got another byte at position {error.start}") from None
    try:
        value: object = _DECODER.decode(text)
    except NotStrict:
        raise
    except RecursionError:  # the parser counts its levels and stops well before the stack ends
        raise _too_deep() from None
    except ValueError as error:
        raise NotStrict(_reason(error)) from None
    if data.count(b"[") + data.count(b"{") > LEVELS_MAX:
        _check_levels(value)
    if b"\\u" in data:  # only an escape can spell NUL or half a character
        _check_strings(value)
    return value


def canonical(data: bytes) -> bytes:
    """Return the one spelling of the JSON in *data* that equal values share: keys sorted, no spaces."""
    return json.dumps(loads(data), sort_keys=True, separators=(",", ":")).encode()


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise NotStrict("want every key once, got a duplicate")
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise NotStrict(f"want finite numbers, got {name}")


def _finite_float(text: str) -> float:
    value = float(text)
    if isinf(value):  # 1e999 is valid JSON that one reader takes for infinity and another refuses
        raise NotStrict("want finite numbers, got one out of range")
    return value


_DECODER: Final = json.JSONDecoder(
    parse_constant=_refuse_constant, parse_float=_finite_float, object_pairs_hook=_object
)


def _check_levels(value: object) -> None:
    layer = [value]
    for _ in range(LEVELS_MAX):
        layer = [child for item in layer for child in _children(item) if isinstance(child, dict | list)]
        if not layer:
            return
    raise _too_deep()


def _check_strings(value: object) -> None:
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            _check_string(item)
            continue
        if isinstance(item, dict):
            waiting.extend(item)
        waiting.extend(_children(item))


def _check_string(text: str) -> None:
    if "\0" in text:
        raise NotStrict("want text without NUL, got \\u0000")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise NotStrict("want Unicode text, got a lone surrogate") from None


def _children(item: object) -> Iterable[object]:
    if isinstance(item, dict):
        return item.values()
    return item if isinstance(item, list) else ()


def _too_deep() -> NotStrict:
    return NotStrict(f"want at most {LEVELS_MAX} levels, got more")


def _reason(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"want JSON, got an error at position {error.pos}"
    if isinstance(error, TypeError):
        return f"want values that JSON has, got another kind ({error})"
    if "Circular" in str(error):
        return "want a tree, got a value that holds itself"
    return "want finite numbers of a sensible length, got another"
