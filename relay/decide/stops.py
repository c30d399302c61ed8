"""Where the base of a bucket stops short of a window that its lanes are not done with.

To store a base beyond what a lane has settled takes a stream row for that lane, to be deleted soon after. Where an
event or two of each of many lanes are merely on their way, that would be most of the work. So the base stops before
the oldest window that any of its lanes is not done with. What is settled of that window and later ones comes again
after a crash, and counts among the rows that may. No clock, no I/O.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from relay.decide.pending import Place
from relay.decide.pieces import Piece, Stream

#: So many looks later a lane is still not done with what it had then: it gets its row, and the others go on without it.
PATIENCE: Final = 20
# With more that is settled for each of its lanes, their rows cost next to nothing.
_FEW: Final = 20


@dataclass(frozen=True, slots=True)
class Stop:
    """Windows up to the number *latest* are passed, and *base* is the snapshot between them and the next."""

    latest: int
    base: str
    settled: int
    """How many rows come again though they are settled."""


@dataclass(slots=True, eq=False)
class Stops:
    """What was decided before: a base never goes back, nor waits for the same lane for ever."""

    _passed: dict[Place, int] = field(default_factory=dict)
    """The last window that the stored base is past. Who has none is at the base that was found stored."""
    _looks: list[int] = field(default_factory=list)
    """How many windows there were when it was looked before, the last few times."""

    def passed(self, place: Place, windows: int) -> None:
        """The base of *place* is to be stored past so many *windows*."""
        self._passed[place] = windows

    def forget(self, place: Place) -> None:
        """*place* is another's."""
        self._passed.pop(place, None)

    def look(
        self,
        unsettled: Mapping[Place, Collection[Stream]],
        settled: Mapping[Place, Mapping[int, int]],
        published: Mapping[Place, int],
        *,
        windows: int,
        rows_max: int,
        must_move: Collection[Place],
    ) -> dict[Place, Stop]:
        """Where the bases of places with *unsettled* streams stop; those that are not among them move to the latest.

        While more than *rows_max* would come again though it is settled, who has most of it moves.

        Args:
            settled: how many rows of each place, published past its stored positions, are of pieces that are gone, by
                the number of the window.
            published: how many rows of each place were published past its stored positions.
            windows: how many windows there are.
            must_move: their bases stop nowhere.
        """
        since = self._looks[0] if len(self._looks) >= PATIENCE else 0
        self._looks = [*self._looks[-PATIENCE + 1 :], windows]
        stops: dict[Place, Stop] = {}
        for place, streams in unsettled.items() if rows_max > 0 else ():
            passed = self._passed.get(place)
            if passed is None or place in must_move:
                continue
            stop = _stop(streams, settled.get(place, {}), published.get(place, 0), after=max(passed, since))
            if stop is not None:
                stops[place] = stop
        total = sum([stop.settled for stop in stops.values()])
        for place in sorted(stops, key=lambda one: stops[one].settled, reverse=True) if total > rows_max else ():
            total -= stops.pop(place).settled
            if total <= rows_max:
                break
        return stops


def _stop(streams: Collection[Stream], settled: Mapping[int, int], published: int, *, after: int) -> Stop | None:
    """Before the oldest window after the number *after*; streams of older ones are to have rows."""
    oldest: Piece | None = None
    lanes = outstanding = 0
    for stream in streams:
        first = stream.pieces[0]
        outstanding += stream.outstanding
        if first.window > after:
            lanes += 1
            if oldest is None or first.window < oldest.window:
                oldest = first
    if oldest is None:
        return None
    latest = oldest.window - 1
    again = published - outstanding - sum([rows for at, rows in settled.items() if at <= latest])
    return Stop(latest, oldest.lo, max(0, again)) if again <= _FEW * lanes else None
