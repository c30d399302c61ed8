"""What is with the broker: every published row until it is settled, in publishing order, and what silence means.

No clock (every method is given the time) and no I/O. Times are monotonic seconds.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from outbox.naming import Lane
from relay.decide.pieces import Sent, Stream


@dataclass(frozen=True, slots=True, kw_only=True)
class AllWell:
    """Nothing is overdue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LanesSilent:
    """Confirms of these lanes are overdue though others arrive: the lanes are at fault."""

    streams: Sequence[Stream]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSilent:
    """Confirms are overdue and none arrive: the connection is at fault."""


Verdict = AllWell | LanesSilent | BrokerSilent


@dataclass(slots=True, eq=False)
class Flight:
    """Rows that were published and are unsettled. Tags rise and are never used twice."""

    _sent: dict[int, Sent] = field(default_factory=dict)
    _last_tag: int = 0
    _heard_at: float = 0.0
    _heard_tag: int = 0
    _proven: set[Lane] = field(default_factory=set)

    def __len__(self) -> int:
        return len(self._sent)

    def launch(self, sents: Sequence[Sent], now: float) -> None:
        """*sents* are about to be published, in this order. One that was launched before gets a new tag."""
        if not self._sent:
            self._heard_at = now
        for sent in sents:
            if sent.tag:
                self._sent.pop(sent.tag, None)
            self._last_tag += 1
            sent.tag = self._last_tag
            sent.place = sent.place or sent.tag
            sent.sent_at = now
            sent.is_nacked = False
            self._sent[sent.tag] = sent

    def land(self, tag: int, now: float) -> Sent | None:
        """The broker has spoken of *tag*, and the row is with it no more; None if it was published anew since."""
        self._heard(tag, now)
        return self._sent.pop(tag, None)

    def nacked(self, tag: int, now: float) -> Sent | None:
        """The broker gave *tag* back. It keeps its place until it is launched again."""
        self._heard(tag, now)
        sent = self._sent.get(tag)
        if sent is not None:
            sent.is_nacked = True
        return sent

    def is_proven(self, lane: Lane) -> bool:
        """Whether the broker has confirmed an event to *lane* on this connection.

        Until then one event at a time goes there, by itself: nothing else tells whether the queue takes any.
        """
        return lane in self._proven

    def prove(self, lane: Lane) -> None:
        """The broker has confirmed an event to *lane*."""
        self._proven.add(lane)

    def reconnected(self) -> None:
        """What is published from here on goes by a new connection: no lane is proven on it."""
        self._proven.clear()

    def unsettled(self) -> list[Sent]:
        """Everything unsettled."""
        return list(self._sent.values())

    def unsettled_of(self, stream: Stream) -> list[Sent]:
        """What is unsettled of one lane, in the order in which it was first published."""
        return sorted((sent for sent in self._sent.values() if sent.stream is stream), key=lambda sent: sent.place)

    def forget(self, streams: Collection[Stream]) -> list[Sent]:
        """Return what is unsettled of these lanes, in publishing order; it is neither judged nor sent again."""
        lanes = set(streams)
        gone = [sent for sent in self._sent.values() if sent.stream in lanes]
        for sent in gone:
            del self._sent[sent.tag]
        return gone

    def resumed(self, now: float) -> None:
        """The broker could not answer for a while, and can now: count its silence from here."""
        self._heard_at = now
        for sent in self._sent.values():
            sent.sent_at = max(sent.sent_at, now)

    def verdict(self, now: float, *, confirm_s: float) -> Verdict:
        """What the silence since *now* - *confirm_s* means. Lanes known to be faulty are not counted.

        Where nothing else is heard the connection is at fault, unless by lanes that have failed before and are not
        proven: those would have it replaced each time that they are tried.
        """
        overdue: dict[Stream, None] = {}
        first_tag = 0
        for sent in self._sent.values():
            if sent.sent_at > now - confirm_s:
                break
            if not sent.stream.is_faulty and not sent.is_nacked:
                overdue[sent.stream] = None
                first_tag = first_tag or sent.tag
        if not overdue:
            return AllWell()
        is_heard = self._heard_at > now - confirm_s or self._heard_tag > first_tag
        is_theirs = is_heard or all(stream.strikes and not self.is_proven(stream.lane) for stream in overdue)
        return LanesSilent(streams=list(overdue)) if is_theirs else BrokerSilent()

    def _heard(self, tag: int, now: float) -> None:
        self._heard_at = now
        # Whoever was published before and is still silent is so for a reason of its own.
        self._heard_tag = max(self._heard_tag, tag)
