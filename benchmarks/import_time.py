"""What importing ``outbox`` costs an app's start, beside what SQLAlchemy costs it anyway.

All names of ``outbox`` are imported: ``import outbox`` by itself loads none of them before it is used.

Fresh interpreters, in turns, so that what else the machine does hits all alike; medians of their differences within a
turn. ``beyond_sqlalchemy_ms`` is over ``import sqlalchemy``, and so has in it what an app that has a ``Session`` loads
anyway: ``beyond_session_ms`` is over that. Pydantic is ours in both. Times are of the process's CPU: starting an
interpreter is all computing once files are cached, and other processes' turns are not counted.
"""

import resource
import statistics
import subprocess
import sys
from typing import Final

_ROUNDS: Final = 25
_CODES: Final = {
    "nothing": "pass",
    "sqlalchemy": "import sqlalchemy",
    "session": "import sqlalchemy.orm, sqlalchemy.dialects.postgresql",
    "outbox": "from outbox import *",
}


def main() -> dict[str, object]:
    """Run the benchmark."""
    for code in _CODES.values():  # files into the cache, bytecode onto the disk
        _cpu_s(code)
    rounds = [{name: _cpu_s(code) for name, code in _CODES.items()} for _ in range(_ROUNDS)]

    def median_ms(name: str, over: str) -> float:
        return statistics.median(1000 * (one[name] - one[over]) for one in rounds)

    import_ms, sqlalchemy_ms = median_ms("outbox", "nothing"), median_ms("sqlalchemy", "nothing")
    return {
        "benchmark": "import",
        "rounds": _ROUNDS,
        "import_ms": round(import_ms, 1),
        "sqlalchemy_ms": round(sqlalchemy_ms, 1),
        "beyond_sqlalchemy_ms": round(median_ms("outbox", "sqlalchemy"), 1),
        "beyond_session_ms": round(median_ms("outbox", "session"), 1),
        "ratio": round(import_ms / sqlalchemy_ms, 2),
    }


def _cpu_s(code: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
