"""What is with the broker: every published row until it is settled, in publishing order, and what silence means.

No clock (every method is given the time) and no I/O. Times are monotonic seconds.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

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
    _heard: set[Stream] = field(default_factory=set)

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
            sent.sent_at = now
            sent.is_nacked = False
            self._sent[sent.tag] = sent

    def land(self, tag: int, now: float) -> Sent | None:
        """The broker has spoken of *tag*, and the row is with it no more; None if it was published anew since."""
        self._heard_at = now
        sent = self._sent.pop(tag, None)
        if sent is not None:
            self._heard.add(sent.stream)
        return sent

    def nacked(self, tag: int, now: float) -> Sent | None:
        """The broker gave *tag* back. It keeps its place until it is launched again."""
        self._heard_at = now
        sent = self._sent.get(tag)
        if sent is not None:
            sent.is_nacked = True
        return sent

    @property
    def has_heard(self) -> bool:
        """Whether the broker has spoken of anything since ``reconnected``."""
        return bool(self._heard)

    def reconnected(self) -> None:
        """What is published from here on goes by a new channel, on which nothing was heard of any lane."""
        self._heard.clear()

    def suspect(self) -> Stream | None:
        """The lane at which a channel that has fallen silent stands: the first in order of which it never heard."""
        for sent in self._sent.values():
            if not sent.is_nacked and sent.stream not in self._heard:
                return sent.stream
        return None

    def unsettled(self) -> list[Sent]:
        """Everything unsettled, in publishing order: what a new channel must be given before anything new."""
        return list(self._sent.values())

    def unsettled_of(self, stream: Stream) -> list[Sent]:
        """What is unsettled of one lane, in publishing order."""
        return [sent for sent in self._sent.values() if sent.stream is stream]

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
        """What the silence since *now* - *confirm_s* means. Lanes known to be faulty are not counted."""
        overdue: dict[Stream, None] = {}
        for sent in self._sent.values():
            if sent.sent_at > now - confirm_s:
                break
            if not sent.stream.is_faulty and not sent.is_nacked:
                overdue[sent.stream] = None
        if not overdue:
            return AllWell()
        if self._heard_at > now - confirm_s:
            return LanesSilent(streams=list(overdue))
        return BrokerSilent()
