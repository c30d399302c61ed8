"""What one tenure holds in memory, and loses at its end."""

from dataclasses import dataclass, field

from relay.decide.backlog import Backlog
from relay.decide.flight import Flight
from relay.decide.pending import Place
from relay.decide.pieces import Stream
from relay.decide.turns import Turns


@dataclass(frozen=True, slots=True, eq=False)
class Holdings:
    """Read and unpublished, published and unsettled, settled and unpersisted; and whose turn it is."""

    backlog: Backlog = field(default_factory=Backlog)
    flight: Flight = field(default_factory=Flight)
    turns: Turns[Stream] = field(default_factory=Turns[Stream])
    leaving: set[Place] = field(default_factory=set)
    """Nothing new of these is read or published; see ``relay.decide.departure``."""

    def is_leaving(self, stream: Stream) -> bool:
        """Whether *stream* is of a bucket that is on its way to another relay."""
        return bool(self.leaving) and (stream.lane.group, stream.bucket) in self.leaving

    def offer(self, stream: Stream) -> None:
        """Let *stream* wait for a turn, if it has something to publish and nothing holds it."""
        if stream.has_more and stream.held_until is None and not self.is_leaving(stream):
            self.turns.offer(stream, stream.lane.tier)
