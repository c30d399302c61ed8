"""Looks from time to time at what waits, for whoever watches the metrics. Nothing depends on it."""

from typing import Final

from consumer.engine.tally import Tally
from consumer.store import standing
from consumer.store.desk import Desk
from consumer.store.work import Reason

# No more often than metrics are commonly read.
_EVERY_S: Final = 15.0


class Lookout:
    """Of one group; *tally* is written to."""

    def __init__(self, *, group: str, desk: Desk, tally: Tally) -> None:
        self._group = group
        self._desk = desk
        self._tally = tally

    async def look(self) -> float:
        """Look; says after how many seconds to do it again."""
        async with self._desk.use() as connection:
            found = await standing.read(connection, self._group)
        tally = self._tally
        tally.work_rows = dict.fromkeys(Reason, 0) | dict(found.work)
        tally.dead_letters, tally.overdue_s = dict(found.dead), found.overdue_s
        return _EVERY_S
