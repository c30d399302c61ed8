"""The broker's nodes: alarms and file handles."""

from typing import Final

from outbox_admin.doctor.facts import Management
from outbox_admin.doctor.finding import Finding, ok, problem, warning

_TIGHT: Final = 0.8
#: What some thousand lanes take; a quorum queue costs two.
_LEAST: Final = 16_384


def judge(management: Management) -> list[Finding]:
    """One line per alarm and per tight node; one for all if there is none."""
    found = []
    for node in management.nodes:
        if node.has_memory_alarm:
            says = f"{node.name} has a memory alarm: publishers are blocked"
            found.append(problem("broker alarms", says, "give it memory, or raise vm_memory_high_watermark"))
        if node.has_disk_alarm:
            says = f"{node.name} has a disk alarm: publishers are blocked"
            found.append(problem("broker alarms", says, "free its disk, or lower disk_free_limit"))
        found += _handles(node.name, node.handles, node.handles_max)
    return found or [ok("broker nodes", f"{len(management.nodes)} nodes without alarms, with file handles left")]


def _handles(name: str, used: int | None, most: int | None) -> list[Finding]:
    if most is None:
        return []
    remedy = "raise its limit on open files (ulimit -n 65536, LimitNOFILE=65536)"
    if used is not None and used > _TIGHT * most:
        return [problem("file handles", f"{name} uses {used:,} of {most:,}: a quorum queue costs two", remedy)]
    if most < _LEAST:
        return [warning("file handles", f"{name} may open {most:,} files: a quorum queue costs two", remedy)]
    return []
