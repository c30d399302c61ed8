"""What stands in a group's tables that somebody should know of: rows that wait, and open dead letters."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from consumer.store.plans import fresh
from consumer.store.stored import Connection

#: Beyond it the number says no more than that it is large, and counting on would cost more than it tells.
_COUNTED_MAX: Final = 100_000
_WORK: Final = """
    SELECT reason, count(*) FROM (
        SELECT reason FROM consumer.work WHERE group_name = %(group)s LIMIT %(most)s
    ) w GROUP BY reason
"""
_DEAD: Final = """
    SELECT category, count(*) FROM (
        SELECT category FROM consumer.dead WHERE group_name = %(group)s AND resolution IS NULL LIMIT %(most)s
    ) d GROUP BY category
"""
_OVERDUE: Final = """
    SELECT extract(epoch FROM statement_timestamp() - due_at)::float8 FROM consumer.work
    WHERE group_name = %(group)s AND owner IS NULL AND attempts >= 0 AND due_before_pause IS NULL
    ORDER BY due_at LIMIT 1
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """*work* by reason and *dead* by category, each counted up to 100,000; *overdue_s* is 0 where nothing is due."""

    work: Mapping[str, int]
    dead: Mapping[str, int]
    overdue_s: float


async def read(connection: Connection, group: str) -> Standing:
    """What stands there now. Raises StoreUnavailable, by the caller's desk."""
    asked = {"group": group, "most": _COUNTED_MAX}
    work = await (await fresh(connection, _WORK, asked)).fetchall()
    dead = await (await fresh(connection, _DEAD, asked)).fetchall()
    first = await (await fresh(connection, _OVERDUE, asked)).fetchone()
    return Standing(work=dict(work), dead=dict(dead), overdue_s=0.0 if first is None else max(0.0, first[0]))
