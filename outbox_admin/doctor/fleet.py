"""The fleet: relays, groups, what waits, what failed. Judged by what ``status`` of relay and consumer says."""

from collections.abc import Sequence

from consumer import status as consumer_status
from consumer.status import Status as ConsumerStatus
from outbox.shell.words import counted
from outbox_admin.doctor.finding import Finding, ok, problem, warning
from relay import status as relay_status
from relay.status import Status as RelayStatus


def relays(status: RelayStatus) -> list[Finding]:
    """Whether relays share the log, and what keeps events in it."""
    waiting = sum(lag.events for group in status.groups for lag in group.lag)
    made = problem if waiting else warning
    found = [made("relays", says, "outbox-relay status") for says in relay_status.problems(status)]
    if not found:
        buckets = sum(one.buckets for one in status.relays)
        found = [
            ok(
                "relays",
                f"{len(status.relays)} alive, with leases on {buckets} buckets; {counted(waiting, 'event')} waiting",
            )
        ]
    used = [slot for slot in status.slots if slot.size_bytes]
    if not any(slot.overdue for slot in status.slots):
        size_mb = sum(slot.size_bytes for slot in status.slots) / 1e6
        found.append(ok("retention", f"events are in {len(used)} of the log's slots, {size_mb:.1f} MB, none overdue"))
    deferred = sum(row.events for group in status.groups for row in group.deferred)
    if deferred:
        found.append(warning("deferred", f"{counted(deferred, 'event')} not published yet", "outbox deferred list"))
    return found


def groups(added: Sequence[str], statuses: Sequence[ConsumerStatus]) -> list[Finding]:
    """Whether each group that was *added* has a consumer, and what keeps its events waiting."""
    found = []
    by_name = {status.group: status for status in statuses}
    for name in added:
        status = by_name.get(name)
        alive = [one for one in status.incarnations if one.is_alive] if status else []
        if not alive:
            says = f"group {name} has no consumer that is alive"
            found.append(warning("groups", says, f"outbox-consumer run app:consumer, or outbox group remove {name}"))
    for status in statuses:
        letters = sum(one.letters for one in status.dead)
        for says in consumer_status.held_up(status):
            found.append(warning("groups", f"{status.group}: {says}", f"outbox-consumer status --group {status.group}"))
        if letters:
            found.append(
                warning(
                    "dead letters",
                    f"{status.group}: {counted(letters, 'open dead letter')}",
                    f"outbox dead groups --group {status.group}",
                )
            )
    return found or [ok("groups", f"{', '.join(added) or 'none'}: consumed, nothing is stuck, no dead letters")]
