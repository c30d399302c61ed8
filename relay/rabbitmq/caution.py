"""Finding the one event that makes a broker close the channel, without blaming its neighbours.

A refused publish (a body over the broker's own limit, say) closes the channel and leaves everything
unsettled unknown. What was unsettled is suspect from then on: sent again, each suspect goes out alone
and is waited for, until the broker closes on one that was alone. That one is condemned, the others are
cleared. Verdicts outlive the connection, since reaching one costs it. No I/O, no clock.
"""

from collections import deque
from collections.abc import Sequence
from uuid import UUID

from outbox.naming import Lane
from relay.ports import Category, Failed, Outgoing

_Key = tuple[Lane, UUID]


class Caution:
    """What must be sent alone, and what must not be sent again."""

    def __init__(self) -> None:
        self._suspects: set[_Key] = set()
        self._verdicts: dict[_Key, str] = {}
        self._waiting: deque[Outgoing] = deque()
        self._alone: _Key | None = None

    @property
    def is_needed(self) -> bool:
        """Whether ``add`` and ``due`` decide what is sent; otherwise anything may be, at once."""
        return bool(self._suspects or self._verdicts or self._waiting or self._alone)

    def refused(self, unsettled: Sequence[Outgoing], *, reason: str) -> None:
        """The broker closed the channel over one of *unsettled*, for *reason*."""
        self._forget_connection()
        keys = [_key(outgoing) for outgoing in unsettled]
        self._suspects = set(keys) if len(keys) > 1 else set()
        if len(keys) == 1:
            self._verdicts[keys[0]] = reason

    def interrupted(self) -> None:
        """The connection was lost for another reason: who was suspect still is."""
        if self._alone is not None:
            self._suspects.add(self._alone)
        self._forget_connection()

    def add(self, batch: Sequence[Outgoing]) -> Sequence[Failed]:
        """Queue *batch* behind what waits, save the condemned, which are returned."""
        failed = []
        for outgoing in batch:
            reason = self._verdicts.pop(_key(outgoing), None)
            if reason is None:
                self._waiting.append(outgoing)
            else:
                failed.append(Failed(tag=outgoing.tag, category=Category.TOO_LARGE, reason=reason))
        return failed

    def due(self, *, is_idle: bool) -> Sequence[Outgoing]:
        """What may be sent now, in order; *is_idle* says that nothing sent is unsettled."""
        if self._alone is not None and not is_idle:
            return ()
        self._alone = None
        run: list[Outgoing] = []
        while self._waiting:
            key = _key(self._waiting[0])
            if key not in self._suspects:
                run.append(self._waiting.popleft())
            elif run or not is_idle:
                break
            else:
                self._suspects.discard(key)
                self._alone = key
                return (self._waiting.popleft(),)
        return run

    def _forget_connection(self) -> None:
        self._waiting.clear()
        self._alone = None


def _key(outgoing: Outgoing) -> _Key:
    return outgoing.lane, outgoing.event.id
