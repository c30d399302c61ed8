"""What stands behind an error: the chain of what caused it, and what foreign errors say of themselves."""

import re
from collections.abc import Iterator
from typing import Final

_CHAIN_MAX: Final = 32
_SQLSTATE: Final = re.compile(r"[0-9A-Z]{5}")


def chain(error: BaseException) -> Iterator[BaseException]:
    """Yield *error* and what caused it, outermost first: what a wrapper wraps (``orig``), then ``__cause__``.

    Ends on a loop and after 32. What was merely being handled when *error* was raised (``__context__``) is not a cause.
    """
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen and len(seen) < _CHAIN_MAX:
        seen.add(id(link))
        yield link
        link = wrapped(link) or link.__cause__


def members(error: BaseException) -> Iterator[BaseException]:
    """Yield what ``chain`` does, and for each group in it what its members' chains have."""
    for link in chain(error):
        yield link
        if isinstance(link, BaseExceptionGroup):
            for member in link.exceptions:
                yield from members(member)


def sqlstate_of(error: BaseException) -> str | None:
    """Return the first SQLSTATE along *error*'s chain of causes."""
    return next((state for link in chain(error) if (state := own_sqlstate(link)) is not None), None)


def own_sqlstate(error: BaseException) -> str | None:
    """Return the SQLSTATE that *error* itself has."""
    for name in ("sqlstate", "pgcode"):
        state = read(error, name)
        if isinstance(state, str) and _SQLSTATE.fullmatch(state):
            return state
    return None


def fits(code: str, pattern: str) -> bool:
    """Whether *code*, an HTTP status or a SQLSTATE, is what *pattern* says, a dot being any character."""
    return all(wanted in {".", came} for wanted, came in zip(pattern, code, strict=True))


def wrapped(error: BaseException) -> BaseException | None:
    """Return what *error* wraps, as SQLAlchemy's errors do a driver's."""
    found = read(error, "orig")
    return found if isinstance(found, BaseException) else None


def read(thing: object, name: str) -> object:
    """Return an attribute of a foreign object, None where it has none or fails to say."""
    try:
        found: object = getattr(thing, name, None)
    except Exception:  # noqa: BLE001 - a property of somebody else's error may raise anything
        return None
    return found
