"""The event loop that consumers, and the handlers in them, run on: uvloop, or Python's own.

Much of what an event costs here is waiting for sockets, which uvloop does in C.
"""

import asyncio
from collections.abc import Coroutine
from importlib import import_module
from importlib.util import find_spec
from typing import Literal, TypeAlias, TypeVar

T = TypeVar("T")
LoopName: TypeAlias = Literal["auto", "uvloop", "asyncio"]


def check_loop(name: LoopName) -> LoopName:
    """Return *name*. Raises ValueError: one sentence says that it is not installed."""
    if name == "uvloop" and not _has_uvloop():
        raise ValueError("want uvloop installed, got none of it: pip install uvloop, or choose auto")
    return name


def run_on(name: LoopName, main: Coroutine[object, object, T]) -> T:
    """Run *main* to its end on a new loop, as ``asyncio.run`` does; *auto* is uvloop where it is installed."""
    is_uvloop = name != "asyncio" and _has_uvloop()
    factory = import_module("uvloop").new_event_loop if is_uvloop else None
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(main)


def _has_uvloop() -> bool:
    return find_spec("uvloop") is not None
