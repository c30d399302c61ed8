"""How many deliveries the ledger recognised as done before, read from the consumer's log."""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path


def count(log: Path) -> Mapping[str, int]:
    """Per tenant, from a log in JSON."""
    found: Counter[str] = Counter()
    if not log.exists():
        return found
    for line in log.read_text(errors="replace").splitlines():
        record = json.loads(line) if line.startswith("{") and line.endswith("}") else {}
        if record.get("event") == "delivery settled" and record.get("outcome") == "duplicate":
            found[str(record.get("tenant"))] += 1
    return found
