"""Buckets on their way to other relays: nothing new of theirs is read or published, and they go once all is settled.

What was read of them and not published goes as it stands, as streams: whoever takes the buckets reads on from
there. No clock (every method is given the time) and no I/O. Times are monotonic seconds.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from relay.decide.backlog import Cohort
from relay.decide.holdings import Holdings
from relay.decide.pending import Place
from relay.decide.pieces import Sent, Stream


@dataclass(slots=True, eq=False)
class Departure:
    """One at a time; *holdings* are the tenure's."""

    holdings: Holdings
    _streams: tuple[Stream, ...] = ()
    _leaves_by: float = math.inf
    _cohorts: list[Cohort] = field(default_factory=list)

    @property
    def places(self) -> frozenset[Place]:
        """The groups and buckets that are leaving."""
        return frozenset(self.holdings.leaving)

    def begin(self, count: int, *, leaves_by: float) -> int:
        """Let up to *count* buckets leave, once all that was published of them is settled or at *leaves_by*.

        Return how many: those whose window is being read stay for now.
        """
        holdings = self.holdings
        if holdings.leaving:
            return 0
        # From the end, as takers take from the start; the groups of a bucket together, since one read serves them all.
        chosen = sorted(
            (
                (bucket, group)
                for cohort in holdings.backlog.cohorts
                if not cohort.is_busy
                for bucket, groups in cohort.members.items()
                for group in groups
            ),
            reverse=True,
        )[:count]
        if chosen:
            holdings.leaving.update((group, bucket) for bucket, group in chosen)
            self._cohorts = holdings.backlog.part(holdings.leaving)
            self._streams = tuple(stream for stream in holdings.backlog.streams.values() if holdings.is_leaving(stream))
            self._leaves_by = leaves_by
        return len(chosen)

    def due_at(self) -> float:
        """When they can go: at once if nothing is unsettled, infinite if none are leaving."""
        if not self.holdings.leaving:
            return math.inf
        return self._leaves_by if any(stream.outstanding for stream in self._streams) else -math.inf

    def cut(self) -> tuple[Sequence[Stream], Sequence[Sent]]:
        """Let go of what is still unsettled: from here on no answer of the broker is about it. Return lanes and rows.

        The positions that are stored next say that it is not published; the next owner publishes it again.
        """
        return self._streams, self.holdings.flight.forget(self._streams)

    def end(self) -> None:
        """They are gone: forget all that is known of them."""
        holdings = self.holdings
        holdings.backlog.forget(holdings.leaving, self._cohorts)
        for stream in self._streams:
            # Whoever still has it finds nothing to do.
            stream.pieces.clear()
            stream.outstanding = 0
        holdings.leaving.clear()
        self._streams, self._cohorts, self._leaves_by = (), [], math.inf
