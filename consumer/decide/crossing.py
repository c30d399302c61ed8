"""What a handler returned or raised, as JSON, for the way from one process of ours to another. No I/O.

Nothing is built from what is read but exceptions, and those of classes alone that this process has loaded by itself;
their constructors are not run. What cannot be rebuilt keeps its name and its text.
"""

import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from enum import Enum
from typing import Final, cast

from consumer.decide.causes import read
from consumer.decide.http_errors import answer_of, response_like
from consumer.outcome import (
    Dead,
    DeadCategory,
    DeadLetter,
    Done,
    Drop,
    Outcome,
    Retry,
    RetryLater,
    Snooze,
    Throttled,
)
from outbox.errors import PermanentError

_OUTCOMES: Final[Mapping[str, type[Outcome]]] = {
    kind.__name__: kind for kind in (Done, Retry, Snooze, Throttled, DeadLetter, Drop)
}
#: What errors are known by, beside their class.
_MARKS: Final = ("sqlstate", "pgcode", "status_code", "status", "code", "retry_after_s")
_CAUSES_MAX: Final = 8


def outcome_to_json(outcome: Outcome) -> dict[str, object]:
    """*outcome* as JSON; a result that is none is left as it is, for whoever writes it."""
    fields = {name: value.value if isinstance(value, Enum) else value for name, value in asdict(outcome).items()}
    return {"kind": type(outcome).__name__, "fields": fields}


def outcome_from_json(content: Mapping[str, object]) -> Outcome:
    """The outcome that ``outcome_to_json`` was given. Raises PermanentError: it is none."""
    kind = _OUTCOMES.get(str(content.get("kind")))
    fields = content.get("fields")
    if kind is None or not isinstance(fields, dict):
        raise PermanentError("isolated handler: want an Outcome, got another answer")
    if "category" in fields:
        fields = {**fields, "category": DeadCategory(fields["category"])}
    return kind(**fields)


def error_to_json(error: BaseException, *, levels: int = _CAUSES_MAX) -> dict[str, object]:
    """*error* and what caused it: its classes, its plain values and its trace."""
    state = {name: value for name, value in vars(error).items() if _is_plain(value)}
    marks = {name: value for name in _MARKS if _is_plain(value := read(error, name)) and value is not None}
    answer = answer_of(error)
    cause = getattr(error, "orig", None) or error.__cause__
    return {
        "classes": [[kind.__module__, kind.__qualname__] for kind in type(error).__mro__[:-2]],
        "args": [arg if _is_plain(arg) else repr(arg)[:200] for arg in error.args],
        "text": str(error)[:2000],
        "state": state | marks,
        "outcome": outcome_to_json(error.outcome) if isinstance(error, RetryLater | Dead) else None,
        "answer": None if answer is None else {"status": answer.status, "headers": _plain_headers(answer.headers)},
        "code": None if answer is None else answer.code,
        "cause": error_to_json(cause, levels=levels - 1) if isinstance(cause, BaseException) and levels else None,
        "trace": "".join(traceback.format_exception(error)) if levels == _CAUSES_MAX else "",
    }


def error_from_json(content: Mapping[str, object]) -> BaseException:
    """An error that rules and classes tell as they would have told the one that ``error_to_json`` was given."""
    classes = cast("Sequence[tuple[str, str]]", content["classes"])
    args, text = tuple(cast("list[object]", content["args"])), str(content["text"])
    error = next((made for module, name in classes if (made := _rebuilt(module, name, args)) is not None), None)
    if error is None or type(error).__qualname__ != classes[0][1]:
        # Known by the class nearest to it, but called by its own name.
        base = Exception if error is None else type(error)
        error = type(
            classes[0][1].rpartition(".")[2], (base,), {"__module__": classes[0][0], "__str__": lambda _: text}
        )(*args)
    state = dict(cast("dict[str, object]", content["state"]))
    if content["answer"] is not None:
        answer = cast("dict[str, object]", content["answer"])
        state["response"] = response_like(answer["status"], answer["headers"], code=content["code"])
    if content["outcome"] is not None:
        state["outcome"] = outcome_from_json(cast("dict[str, object]", content["outcome"]))
    for name, value in state.items():
        try:
            setattr(error, name, value)
        except (AttributeError, TypeError):
            continue  # it has that by its class
    if content["cause"] is not None:
        error.__cause__ = error_from_json(cast("dict[str, object]", content["cause"]))
    if content["trace"]:
        error.add_note(str(content["trace"]))
    return error


def _rebuilt(module: str, name: str, args: tuple[object, ...]) -> BaseException | None:
    found: object = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if not (isinstance(found, type) and issubclass(found, BaseException)):
        return None
    try:
        error = found.__new__(found, *args)
        error.args = args
        str(error)
    except Exception:  # noqa: BLE001 - a foreign class: what is wrong with it does not matter, there is another way
        return None
    return error


def _plain_headers(headers: object) -> dict[str, str]:
    try:
        return {str(name): str(value) for name, value in dict(headers or {}).items()}  # type: ignore[call-overload]
    except (TypeError, ValueError):
        return {}


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, bool | int | float | str)
