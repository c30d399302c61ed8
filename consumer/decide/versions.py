"""Payload versions: which ones a handler's code reads, and how an older payload becomes one of them.

An upcaster turns a payload of version n into one of n + 1. Those of a type are a chain without gaps, so each is
written once, when its version comes, and never again: a payload is raised step by step to what a handler takes.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from outbox.errors import ConfigError

Upcast: TypeAlias = Callable[[dict[str, Any]], dict[str, Any]]

#: As good as any version: what code takes that does not look at it.
NEWEST: Final = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Versions:
    """The versions that some code reads, both ends included."""

    oldest: int
    newest: int

    def __contains__(self, version: int) -> bool:
        return self.oldest <= version <= self.newest

    def __str__(self) -> str:
        if self.newest == NEWEST:
            return f"{self.oldest} or newer"
        return str(self.newest) if self.oldest == self.newest else f"{self.oldest} to {self.newest}"


class NotRaised(Exception):
    """An upcaster failed. The message names it and the kind of its error, and nothing of the payload."""


class Upcasters:
    """The upcasters of one consumer, by event type."""

    def __init__(self) -> None:
        self._by_type: dict[str, dict[int, Upcast]] = {}

    @property
    def types(self) -> tuple[str, ...]:
        """Every type that has one, sorted."""
        return tuple(sorted(self._by_type))

    def add(self, event_type: str, function: Upcast, *, from_version: int) -> None:
        """Take *function* in. Raises ConfigError if there is one from that version already."""
        of_type = self._by_type.setdefault(event_type, {})
        if from_version in of_type:
            raise ConfigError(
                f"upcasters of {event_type}: want one from version {from_version}, got a second, {_name(function)}"
            )
        of_type[from_version] = function

    def read_by(self, event_type: str, *, newest: int | None) -> Versions:
        """The versions that code reads whose own is *newest*; ``None``: it has none, and takes what upcasters give.

        Without upcasters, older payloads are given as they are.
        """
        of_type = self._by_type.get(event_type)
        if not of_type:
            return Versions(oldest=1, newest=NEWEST if newest is None else newest)
        first = min(of_type)
        if newest is None:
            return Versions(oldest=first, newest=max(of_type) + 1)
        return Versions(oldest=first if first < newest else 1, newest=newest)

    def check(self, event_type: str, *, newest: int | None) -> None:
        """Return if those of *event_type* lead, one version at a time, to *newest*, the highest of its handlers.

        Raises:
            ConfigError: one is missing, or leads further; one sentence says which.
        """
        of_type = self._by_type.get(event_type)
        if not of_type:
            return
        first, last = min(of_type), max(of_type)
        to = last + 1 if newest is None else newest
        if last >= to:
            raise ConfigError(
                f"upcasters of {event_type}: want them to lead up to version {to}, which handlers take,"
                f" got {_name(of_type[last])} from version {last} to {last + 1}"
            )
        missing = [version for version in range(first, to) if version not in of_type]
        if missing:
            raise ConfigError(
                f"upcasters of {event_type}: want one from each version from {first} to {to - 1},"
                f" got none from {', '.join(map(str, missing))}"
            )

    def raised(self, event_type: str, value: Mapping[str, Any], *, version: int, to: int) -> dict[str, Any]:
        """Return *value*, a payload of *version*, as one of version *to*; *value* itself stays as it is.

        Raises:
            NotRaised: an upcaster raised, or returned no JSON object.
        """
        raised = copy.deepcopy(dict(value))
        for number in range(version, to):
            upcast = self._by_type[event_type][number]
            try:
                raised = upcast(raised)
            except Exception as error:  # noqa: BLE001 - an app's function may raise anything
                raise NotRaised(f"{_name(upcast)}, from version {number}: raised {type(error).__name__}") from None
            if not isinstance(raised, dict):
                raise NotRaised(f"{_name(upcast)}, from version {number}: returned a {type(raised).__name__}")
        return raised


def _name(function: Upcast) -> str:
    return str(getattr(function, "__qualname__", function.__class__.__name__)).rpartition("<locals>.")[2][:200]
