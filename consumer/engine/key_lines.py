"""The events of each ordering key that are in this process's hands: which one runs, and which waits longest."""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

from consumer.store.gate import Key
from outbox.event import Ordering


@dataclass(slots=True, eq=False)
class _Line:
    """Which one runs, and a heap of those that wait, by number. Some of those wait no more: they are passed over."""

    running: int | None = None
    waiting: list[tuple[int, int]] = field(default_factory=list)


class KeyLines:
    """Lines by key; items go by their number within the process. A line without items is forgotten."""

    def __init__(self, is_behind: Callable[[int], bool]) -> None:
        """*is_behind* says whether an item still waits in its line."""
        self._is_behind = is_behind
        self._lines: dict[Key, _Line] = {}

    def known(self) -> list[Key]:
        """Those with anything that runs or waits."""
        return list(self._lines)

    def enter(self, key: Key, ident: int, ordering: Ordering) -> bool:
        """Let *ident* run if none of its key does and none with a lower number waits; False if one does."""
        line = self._lines.setdefault(key, _Line())
        self._drop_stale(line)
        if line.running is not None:
            return False
        if line.waiting and line.waiting[0][0] < ordering.number and not ordering.is_first:
            return False
        line.running = ident
        return True

    def wait(self, key: Key, ident: int, number: int) -> None:
        """*ident* is behind another of its key."""
        heapq.heappush(self._lines.setdefault(key, _Line()).waiting, (number, ident))

    def leave(self, key: Key) -> None:
        """What ran of *key* runs no more; ask ``next`` who may try."""
        self._lines[key].running = None

    def next(self, key: Key) -> int | None:
        """Take out the first that waits, if none runs."""
        line = self._lines[key]
        self._drop_stale(line)
        if line.running is not None:
            return None
        found = heapq.heappop(line.waiting)[1] if line.waiting else None
        if not line.waiting:
            del self._lines[key]
        return found

    def _drop_stale(self, line: _Line) -> None:
        while line.waiting and not self._is_behind(line.waiting[0][1]):
            heapq.heappop(line.waiting)
