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
)


def main() -> None:
    """Run the benchmark named on the command line."""
    if len(sys.argv) != 2 or sys.argv[1] not in NAMES:
        print(f"bench: want NAME={' | '.join(NAMES)}, got {' '.join(sys.argv[1:]) or 'nothing'}", file=sys.stderr)
        raise SystemExit(64)
    module = importlib.import_module(f"benchmarks.{sys.argv[1].replace('-', '_')}")
    print(json.dumps(module.main()))


main()
