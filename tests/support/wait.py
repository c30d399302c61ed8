"""Waiting for something to become true, with a deadline: what tests do instead of sleeping."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar, overload

T = TypeVar("T")


@overload
async def until(
    predicate: Callable[[], Awaitable[T]], *, deadline_s: float = ..., every_s: float = ..., what: str = ...
) -> T: ...


@overload
async def until(predicate: Callable[[], T], *, deadline_s: float = ..., every_s: float = ..., what: str = ...) -> T: ...


async def until(
    predicate: Callable[[], object], *, deadline_s: float = 30.0, every_s: float = 0.02, what: str = ""
) -> object:
    """Return the first truthy value of *predicate*, asked every *every_s* seconds.

    Args:
        predicate: a function, sync or async; what it raises goes to the caller at once.
        what: what is waited for, in the failure's words; without it the predicate's name and place are.

    Raises:
        AssertionError: it stayed falsy for *deadline_s* seconds; the message has its last value.
    """
    began = time.monotonic()
    while True:
        asked = predicate()
        value: object = await asked if inspect.isawaitable(asked) else asked
        if value:
            return value
        if time.monotonic() - began > deadline_s:
            raise AssertionError(f"waited {deadline_s:g} s for {what or _place(predicate)}, last saw {value!r}")
        await asyncio.sleep(every_s)


def _place(predicate: Callable[..., object]) -> str:
    code = getattr(predicate, "__code__", None)
    name = getattr(predicate, "__qualname__", repr(predicate))
    return name if code is None else f"{name} ({code.co_filename}:{code.co_firstlineno})"
