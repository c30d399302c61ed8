"""Run one benchmark by name; the last line printed is one JSON object."""

import importlib
import json
import sys

NAMES = (
    "relay",
    "relay-noisy",
    "relay-scale",
    "latency",
    "takeover",
    "idle",
    "consumer",
    "brokers",
    "fairness",
    "scheduler",
    "memory",
    "lanes",
    "import",
)
#: A module cannot have a keyword's name.
_MODULES = {"import": "import_time"}


def main() -> None:
    """Run the benchmark named on the command line."""
    if len(sys.argv) != 2 or sys.argv[1] not in NAMES:
        print(f"bench: want NAME={' | '.join(NAMES)}, got {' '.join(sys.argv[1:]) or 'nothing'}", file=sys.stderr)
        raise SystemExit(64)
    name = _MODULES.get(sys.argv[1], sys.argv[1].replace("-", "_"))
    module = importlib.import_module(f"benchmarks.{name}")
    print(json.dumps(module.main()))


main()
