"""Run by an installed Python: what importing all of ``outbox`` does beside that, and what it loads; one JSON object.

What it stands on is loaded first, so that all that is told of is ours.
"""

import json
import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping, MutableMapping

import pydantic
import sqlalchemy.dialects.postgresql
import sqlalchemy.orm  # noqa: F401 - loaded, that is all

_WATCHED = ("socket.", "subprocess.", "os.fork", "os.exec", "os.putenv", "_thread.start", "signal.", "os.system")
_LOOKS_PAST = ("os", "_collections_abc", "collections.abc", __name__)

seen: list[str] = []


class _Loaded(pydantic.BaseModel):
    """Has pydantic load, with what it reads of the environment, all that a model needs."""

    text: str


class _Environment(MutableMapping[str, str]):
    """The environment, which notes who of ours looks into it."""

    def __init__(self, real: MutableMapping[str, str]) -> None:
        self._real = real

    def __getitem__(self, name: str) -> str:
        self._note(name)
        return self._real[name]

    def __setitem__(self, name: str, value: str) -> None:
        self._note(name)
        self._real[name] = value

    def __delitem__(self, name: str) -> None:
        self._note(name)
        del self._real[name]

    def __iter__(self) -> Iterator[str]:
        self._note("all of it")
        return iter(self._real)

    def __len__(self) -> int:
        return len(self._real)

    def _note(self, name: str) -> None:
        frame = sys._getframe(2)
        while frame.f_back is not None and frame.f_globals.get("__name__") in _LOOKS_PAST:
            frame = frame.f_back
        seen.append(f"environment: {name} by {frame.f_globals.get('__name__')}")


def _audit(event: str, arguments: tuple[object, ...]) -> None:
    is_written = event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax+")
    if event.startswith(_WATCHED) or is_written:
        seen.append(f"{event}: {arguments[:2]!r}")


def _state() -> Mapping[str, object]:
    """What a library must leave as it is."""
    root = logging.getLogger()
    return {
        "handlers": [repr(handler) for handler in root.handlers],
        "level": root.level,
        "own level": logging.getLogger("outbox").level,
        "disabled": root.manager.disable,
        "logger class": repr(logging.getLoggerClass()),
        "warnings": [repr(one) for one in warnings.filters],
        "showwarning": repr(warnings.showwarning),
        "signals": {str(number): repr(signal.getsignal(number)) for number in signal.valid_signals()},
        "excepthook": repr(sys.excepthook),
        "threads": [thread.name for thread in threading.enumerate()],
        "path": list(sys.path),
        "recursion": sys.getrecursionlimit(),
        "switch": sys.getswitchinterval(),
    }


# Loaded before, for others; that our own import of it does nothing more is what is asked.
if sys.version_info < (3, 14):
    import uuid_utils.compat  # noqa: F401

before, loaded, real = _state(), set(sys.modules), os.environ
os.environ = _Environment(os.environ)  # type: ignore[assignment]  # noqa: B003 - it is put back
sys.addaudithook(_audit)
import outbox  # noqa: E402
from outbox import *  # noqa: E402, F403 - each name is loaded when it is used

seen, done = [], seen
os.environ = real  # noqa: B003
after = _state()
print(
    json.dumps(
        {
            "seen": done,
            "changed": {name: [before[name], after[name]] for name in before if before[name] != after[name]},
            "loaded": sorted(set(sys.modules) - loaded),
            "file": outbox.__file__,
        }
    )
)
