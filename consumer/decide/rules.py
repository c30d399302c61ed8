"""Rules: what follows from the failures that an app knows better than we do. The first that matches decides."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias

from consumer.decide.causes import fits, members, own_sqlstate
from consumer.decide.http_errors import answer_of
from consumer.decide.policy import Policy
from consumer.outcome import Dead, DeadLetter, Drop, Retry, RetryLater, Throttled
from outbox.errors import ConfigError

_SQLSTATE: Final = re.compile(r"[0-9A-Z.]{5}")
_STATUS: Final = re.compile(r"[1-5.][0-9.]{2}")


@dataclass(frozen=True, slots=True)
class SqlState:
    """Matches a database error: ``SqlState("23505")``, or ``SqlState("23...")``, a dot being any character."""

    pattern: str

    def __post_init__(self) -> None:
        _check_pattern("SqlState", self.pattern, _SQLSTATE, "five characters of 0-9, A-Z and dots, as 23505 or 23...")


@dataclass(frozen=True, slots=True)
class HttpStatus:
    """Matches an HTTP client's error by the status that came back: ``HttpStatus("409")`` or ``HttpStatus("5..")``."""

    pattern: str

    def __post_init__(self) -> None:
        _check_pattern("HttpStatus", self.pattern, _STATUS, "three characters of 0-9 and dots, as 409 or 5..")


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseLane:
    """Nothing more of the event's lane (its tenant and tier) starts for *for_s*, or until somebody resumes it.

    The event comes back by then, uncharged.
    """

    for_s: float | None = None

    def __post_init__(self) -> None:
        _check_pause(self.for_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseHandler:
    """Nothing more of the event's type starts, of any tenant, for *for_s*, or until somebody resumes it.

    The event comes back by then, uncharged.
    """

    for_s: float | None = None

    def __post_init__(self) -> None:
        _check_pause(self.for_s)


Match: TypeAlias = (
    type[BaseException]
    | SqlState
    | HttpStatus
    | Callable[[BaseException], bool]
    | tuple["type[BaseException] | SqlState | HttpStatus | Callable[[BaseException], bool]", ...]
)
Pause: TypeAlias = PauseLane | PauseHandler
Then: TypeAlias = Policy | Retry | Throttled | DeadLetter | Drop | Pause
_THEN: Final = (Policy, Retry, Throttled, DeadLetter, Drop, PauseLane, PauseHandler)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What follows, *then*, if a handler raises what *match* says.

    Args:
        match: an exception class, ``SqlState``, ``HttpStatus``, a function that is given the error and says whether it
            is meant, or a tuple of such. The error, its causes and, of a group, its members are looked at.
        then: what a handler could have returned (``Retry``, ``Throttled``, ``DeadLetter``, ``Drop``), a ``Policy`` to
            be retried by, or ``PauseLane`` or ``PauseHandler``. A security refusal is
            ``DeadLetter(reason=..., category=DeadCategory.SECURITY)``.

    Raises:
        ConfigError: one of them is nothing of the kind.
    """

    match: Match
    then: Then

    def __post_init__(self) -> None:
        for one in self._matches():
            is_class = isinstance(one, type) and issubclass(one, BaseException)
            is_pattern = isinstance(one, SqlState | HttpStatus)
            if not (is_class or is_pattern or (callable(one) and not isinstance(one, type))):
                raise ConfigError(
                    f"rule: want match to be an exception class, SqlState, HttpStatus or a function, got {one!r}"
                )
        if not self._matches():
            raise ConfigError("rule: want match to name something, got an empty tuple")
        if not isinstance(self.then, _THEN):
            wanted = ", ".join(kind.__name__ for kind in _THEN)
            raise ConfigError(f"rule: want then to be one of {wanted}, got {self.then!r}")

    def matches(self, error: BaseException) -> bool:
        """Whether *error* is meant."""
        links = list(members(error))
        return any(_is_meant(one, link) for one in self._matches() for link in links)

    def _matches(self) -> "tuple[object, ...]":
        return self.match if isinstance(self.match, tuple) else (self.match,)


def check_rules(rules: Iterable[object], *, of: str) -> tuple[Rule, ...]:
    """Return *rules* as they are kept. Raises ConfigError if one is none."""
    kept = tuple(rules)
    for rule in kept:
        if not isinstance(rule, Rule):
            raise ConfigError(f"{of}: want rules as a list of Rule(match=..., then=...), got {rule!r} in it")
    return tuple(rule for rule in kept if isinstance(rule, Rule))


def first_match(rules: Iterable[Rule], error: BaseException) -> Rule | None:
    """Return the rule that decides about *error*, if one of *rules* does.

    What a handler raised to say how it ended (``RetryLater``, ``Dead``) is no failure for a rule to judge.
    """
    if isinstance(error, RetryLater | Dead):
        return None
    return next((rule for rule in rules if rule.matches(error)), None)


def _is_meant(one: object, error: BaseException) -> bool:
    match one:
        case SqlState(pattern=pattern):
            state = own_sqlstate(error)
            return state is not None and fits(state, pattern)
        case HttpStatus(pattern=pattern):
            answer = answer_of(error)
            return answer is not None and fits(str(answer.status), pattern)
        case type():
            return isinstance(error, one)
        case _:
            return callable(one) and _says_yes(one, error)


def _says_yes(predicate: Callable[[BaseException], object], error: BaseException) -> bool:
    try:
        return bool(predicate(error))
    except Exception:  # noqa: BLE001 - one that looks at what another error does not have says no
        return False


def _check_pattern(name: str, pattern: object, form: "re.Pattern[str]", wanted: str) -> None:
    if not (isinstance(pattern, str) and form.fullmatch(pattern)):
        raise ConfigError(f"{name}: want {wanted}, got {pattern!r}")


def _check_pause(for_s: object) -> None:
    is_number = isinstance(for_s, int | float) and not isinstance(for_s, bool)
    if for_s is not None and not (is_number and 0 < for_s < float("inf")):  # type: ignore[operator]
        raise ConfigError(f"pause: want for_s to be seconds above 0, or None until it is resumed, got {for_s!r}")
