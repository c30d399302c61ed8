"""Connections, transactions that stay open, replication slots, and poolers in between."""

from typing import Final

from outbox_admin.doctor.facts import Session, Sessions
from outbox_admin.doctor.finding import Finding, ok, problem, warning

_TIGHT: Final = 0.8
_PREPARED_S: Final = 60.0
_OPEN_S: Final = 300.0
_HELD: Final = 1_000_000


def connections(sessions: Sessions) -> list[Finding]:
    """Whether the server takes as many connections as are wanted."""
    free_for_us = sessions.max_connections - sessions.reserved
    says = f"{sessions.used} of {free_for_us} connections are in use; our processes take up to {sessions.wanted}"
    remedy = f"ALTER SYSTEM SET max_connections = {2 * sessions.max_connections}, restart, or run fewer slots"
    if sessions.wanted > free_for_us:
        return [problem("connections", says, remedy)]
    if sessions.used > _TIGHT * free_for_us:
        return [warning("connections", says, remedy)]
    return [ok("connections", says)]


def transactions(sessions: Sessions) -> list[Finding]:
    """Whether a transaction stays open, so that nothing can be cleaned up, or an event of it not be published."""
    found = []
    if sessions.prepared and sessions.prepared_oldest_s > _PREPARED_S:
        found.append(
            warning(
                "prepared transactions",
                f"{sessions.prepared} wait for their end, the oldest for {sessions.prepared_oldest_s:.0f} s;"
                " their events are not published",
                "SELECT gid, prepared FROM pg_prepared_xacts; then COMMIT PREPARED or ROLLBACK PREPARED",
            )
        )
    if sessions.open_oldest_s > _OPEN_S:
        found.append(
            warning(
                "open transactions",
                f"one is open for {sessions.open_oldest_s:.0f} s ({sessions.open_oldest_by}); its events wait, and"
                " vacuum with them",
                f"SELECT pg_terminate_backend({sessions.open_oldest_by.split()[1]}), if nobody needs it",
            )
        )
    prepares = f"up to {sessions.max_prepared} can be prepared" if sessions.max_prepared else "none can be prepared"
    return found or [ok("transactions", f"none is open for longer than {_OPEN_S:.0f} s; {prepares}")]


def slots(sessions: Sessions) -> list[Finding]:
    """Whether a replication slot keeps dead rows of all tables."""
    held = [
        warning(
            "replication slots",
            f"slot {name} holds back {age:,} transactions: vacuum removes nothing since",
            f"SELECT pg_drop_replication_slot('{name}'), if its standby or subscriber is gone",
        )
        for name, age in sessions.slots.items()
        if age > _HELD
    ]
    return held or [ok("replication slots", f"{len(sessions.slots)} hold a snapshot, none of long ago")]


def pooler(session: Session) -> list[Finding]:
    """Whether a pooler shares sessions, which leases, LISTEN and prepared statements do not survive."""
    if session.keeps_backend and session.keeps_settings:
        return [ok("pooler", "a session is one server process, as LISTEN and prepared statements need")]
    return [
        problem(
            "pooler",
            "a session moves between server processes: a pooler that shares them by transaction or statement",
            "point relay and consumer at the server itself, or set pool_mode = session",
        )
    ]
