"""How much waits in a group's work rows: for status, not for loops."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from consumer.store.plans import fresh
from consumer.store.stored import Connection
from consumer.store.work import Reason
from outbox.event import Tier

_COUNTS: Final = """
    SELECT tier, tenant, reason, count(*), count(owner),
           count(*) FILTER (WHERE owner IS NULL AND due_at <= statement_timestamp()), min(created_at),
           min(due_at) FILTER (WHERE owner IS NULL AND due_before_pause IS NULL), count(due_before_pause)
    FROM consumer.work WHERE group_name = %(group)s
    GROUP BY tier, tenant, reason ORDER BY tier, tenant, reason
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkCount:
    """How many rows of one tier, tenant and reason wait, and since when.

    *owned* are in a process's hands; *due* and *next_due_at* speak of the others. *paused* were put off by a pause.
    """

    tier: Tier
    tenant: str
    reason: Reason
    rows: int
    owned: int
    due: int
    waiting_since: datetime
    next_due_at: datetime | None
    paused: int = 0


async def read(connection: Connection, group: str) -> list[WorkCount]:
    """How much waits, per tier, tenant and reason. Reads every row of the group: for status, not for loops."""
    cursor = await fresh(connection, _COUNTS, {"group": group})
    return [
        WorkCount(
            tier=Tier(tier),
            tenant=tenant,
            reason=Reason(reason),
            rows=rows,
            owned=owned,
            due=due,
            waiting_since=since,
            next_due_at=next_due_at,
            paused=paused,
        )
        for tier, tenant, reason, rows, owned, due, since, next_due_at, paused in await cursor.fetchall()
    ]
