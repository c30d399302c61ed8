"""What may be told of an error: what failed and where, never with which values.

PostgreSQL's DETAIL, SQLAlchemy's parameters, a ValueError and most messages people write repeat what they were
given. So a summary keeps names (class, SQLSTATE, constraint) and the first line of the message, less everything in
it that may be a value: what is quoted, bracketed or assigned, long numbers, addresses, tokens, and whatever is known
to stand in the payload. Rather a message that says too little than one that says too much.
"""

import hashlib
import re
import sysconfig
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import islice
from types import FrameType, TracebackType
from typing import Final

from consumer.decide.causes import chain, sqlstate_of

MESSAGE_CHARS_MAX: Final = 512
_NAME_CHARS_MAX: Final = 200
_LINE_CHARS_MAX: Final = 8192  # a longer line is not looked through, and so not shown
_FRAMES: Final = 5
_GONE: Final = "…"

_VALUE_CHARS_MIN: Final = 3  # shorter values are everywhere, and tell nothing
_INSIDE_CHARS_MIN: Final = 6  # a value at least this long is removed even inside a word
_MIXED_CHARS_MIN: Final = 5
_WORD_CHARS_MAX: Final = 24

# What lies between the first and the last of these goes: what is quoted may hold quotes itself.
_ENCLOSED: Final = (
    ("\"'`\u2018\u201c\u00ab", "\"'`\u2019\u201d\u00bb"),
    ("(", ")"),
    ("[", "]"),
    ("{", "}"),
    ("<", ">"),
)
# An apostrophe inside a word ("doesn't") is no quote.
_APOSTROPHE: Final = re.compile(r"(?<=[A-Za-z]{3})'(?=(?:t|s|re|ve|ll|d|m)\b)")
_STAND_IN: Final = "\N{MODIFIER LETTER APOSTROPHE}"
_LONG_NUMBER: Final = re.compile(r"\d(?:[\s.,:-]?\d){4,}")

# Frames of these say how an error was raised, not where.
_STDLIB: Final = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
_MACHINERY: Final = frozenset(
    {"aio_pika", "aiormq", "asyncpg", "greenlet", "psycopg", "psycopg_pool", "pydantic", "pydantic_core", "sqlalchemy"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorSummary:
    """*fingerprint* is the same for the same class and SQLSTATE raised at the same place, whatever the values."""

    error_class: str
    sqlstate: str | None
    constraint: str | None
    message: str
    fingerprint: str

    def __str__(self) -> str:
        """Return one printable line."""
        names = (self.error_class, self.sqlstate and f"[{self.sqlstate}]", self.constraint and f"({self.constraint})")
        head = " ".join(name for name in names if name)
        return f"{head}: {self.message}" if self.message else head


def summarise(error: BaseException, *, values: Collection[str] = ()) -> ErrorSummary:
    """Say what *error* is, without repeating any value.

    Args:
        values: what stands in the payload, as text (``payload_values``); removed wherever it appears.
    """
    sqlstate = sqlstate_of(error)
    constraint = _diagnosis(error, "constraint_name")
    name = _class_name(error)
    return ErrorSummary(
        error_class=name,
        sqlstate=sqlstate,
        constraint=None if constraint is None else printable(constraint)[:_NAME_CHARS_MAX],
        message=redact(_message(error), values=values),
        fingerprint=_fingerprint(name, sqlstate, error.__traceback__),
    )


def redact(text: str, *, values: Collection[str] = ()) -> str:
    """Return the first line of *text* without anything that may be a value: printable, at most 512 characters."""
    line = next(iter(text.strip().splitlines()), "")
    if len(line) > _LINE_CHARS_MAX:
        return _GONE
    line = _APOSTROPHE.sub(_STAND_IN, _without(line, values))
    for openings, closings in _ENCLOSED:
        line = _without_enclosed(line, openings, closings)
    head, assigned, _value = line.partition("=")
    line = _LONG_NUMBER.sub(_GONE, head + assigned + (_GONE if assigned else ""))
    words = [_GONE if _may_be_value(word) else word for word in line.replace(_STAND_IN, "'").split()]
    line = printable(
        " ".join(word for word, before in zip(words, ["", *words], strict=False) if {word, before} != {_GONE})
    )
    return line if len(line) <= MESSAGE_CHARS_MAX else line[: MESSAGE_CHARS_MAX - 1] + _GONE


def payload_values(payload: object) -> frozenset[str]:
    """Return every key, string and number in *payload*, as parsed from JSON, that is long enough to tell anything."""
    found: set[str] = set()
    left = [payload]
    while left:
        match left.pop():
            case dict() as members:
                left += [*members.keys(), *members.values()]
            case list() as items:
                left += items
            case str() | int() | float() as value if not isinstance(value, bool):
                found.add(str(value).strip())
            case _:
                pass
    return frozenset(value for value in found if len(value) >= _VALUE_CHARS_MIN)


def printable(text: str) -> str:
    """Return *text* with everything that is not printable as an escape: controls, bidi marks, lone surrogates."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _without(line: str, values: Collection[str]) -> str:
    found = {part: len(value) >= _INSIDE_CHARS_MIN for value in values for part in value.splitlines() if part in line}
    for part in sorted(found, key=len, reverse=True):  # a value may lie within another
        if len(part) < _VALUE_CHARS_MIN:
            continue
        pattern = re.escape(part) if found[part] else rf"(?<!\w){re.escape(part)}(?!\w)"
        line = re.sub(pattern, _GONE, line)
    return line


def _without_enclosed(line: str, openings: str, closings: str) -> str:
    start = min((at for at in map(line.find, openings) if at >= 0), default=-1)
    if start < 0:
        return line
    end = max(map(line.rfind, closings))
    return f"{line[:start]}{_GONE}{line[end + 1 :] if end > start else ''}"


def _may_be_value(word: str) -> bool:
    """Whether *word* is an address, a token, an id, or next to something that was removed."""
    if _GONE in word or "@" in word or "://" in word or len(word) > _WORD_CHARS_MAX:
        return True
    is_mixed = any(char.isdigit() for char in word) and any(char.isalpha() for char in word)
    return is_mixed and len(word) >= _MIXED_CHARS_MIN


def _class_name(error: BaseException) -> str:
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return printable(name)[:_NAME_CHARS_MAX]


def _diagnosis(error: BaseException, field: str) -> str | None:
    """Return what the server said in *field*, in the form in which psycopg gives it (``error.diag``)."""
    for link in chain(error):
        text: object = getattr(getattr(link, "diag", None), field, None)
        if isinstance(text, str):
            return text
    return None


def _message(error: BaseException) -> str:
    """Return the primary message of a database error, else what the innermost wrapped error says of itself."""
    if (primary := _diagnosis(error, "message_primary")) is not None:
        return primary
    wrapped: object = getattr(error, "orig", None)
    try:
        return str(wrapped if isinstance(wrapped, BaseException) else error)
    except Exception:  # noqa: BLE001  # an app's __str__ may raise anything, and the error must be told all the same
        return "the error cannot be printed"


def _fingerprint(name: str, sqlstate: str | None, traceback: TracebackType | None) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for part in (name, sqlstate or "", *_places(traceback)):
        digest.update(part.encode(errors="backslashreplace") + b"\0")
    return digest.hexdigest()


def _places(traceback: TracebackType | None) -> list[str]:
    """Return the innermost functions the error came through: the app's, or any where it has none.

    No line numbers, which move with every deploy; a recursion counts once, however deep the payload made it.
    """
    frames = list(_frames(traceback))
    frames.reverse()
    own = [frame for frame in frames if not _is_machinery(frame)]
    names = (f"{_module(frame)}:{frame.f_code.co_qualname}" for frame in own or frames)
    return list(islice(dict.fromkeys(names), _FRAMES))


def _is_machinery(frame: FrameType) -> bool:
    if _module(frame).partition(".")[0] in _MACHINERY:
        return True
    name = frame.f_code.co_filename
    return name.startswith(_STDLIB) and "-packages" not in name


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "?"))


def _frames(traceback: TracebackType | None) -> Iterator[FrameType]:
    while traceback is not None:
        yield traceback.tb_frame
        traceback = traceback.tb_next
