"""What one tenure holds in memory, and loses at its end."""

from dataclasses import dataclass, field

from relay.decide.backlog import Backlog
from relay.decide.flight import Flight
from relay.decide.pieces import Stream
from relay.decide.turns import Turns


@dataclass(frozen=True, slots=True, eq=False)
class Holdings:
    """Read and unpublished, published and unsettled, settled and unpersisted; and whose turn it is."""

    backlog: Backlog = field(default_factory=Backlog)
    flight: Flight = field(default_factory=Flight)
    turns: Turns[Stream] = field(default_factory=Turns[Stream])

    def offer(self, stream: Stream) -> None:
        """Let *stream* wait for a turn, if it has something to publish and nothing holds it."""
        if stream.has_more and stream.held_until is None:
            self.turns.offer(stream, stream.lane.tier)
