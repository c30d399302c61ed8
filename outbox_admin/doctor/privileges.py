"""Privileges: what a process's role lacks, with the statement that gives it."""

from outbox_admin.doctor.facts import Privileges
from outbox_admin.doctor.finding import Finding, ok, problem


def judge(privileges: Privileges) -> list[Finding]:
    """One line per object and privilege that lacks; none where there is no object, as before `outbox migrate`."""
    if not privileges.objects:
        return []
    if not privileges.missing:
        says = f"{privileges.role} has all {privileges.objects} privileges that {privileges.process} needs"
        return [ok("privileges", says)]
    return [
        problem(
            "privileges", f"{privileges.role} lacks {one.privilege} on {one.what} for {privileges.process}", one.grant
        )
        for one in privileges.missing
    ]
