"""What the broker's answers mean for the rows they are about, and which lanes must wait before they go on.

Every published row ends here: confirmed, given back and sent again, or failed and deferred. No I/O and no clock.
"""

import math
import random
import time
from collections.abc import Collection, Sequence
from typing import Final, assert_never
from uuid import UUID

import structlog

from outbox.backoff import Jitter, backoff_s
from outbox.naming import Lane
from relay.decide.flight import AllWell, BrokerSilent, LanesSilent
from relay.decide.holdings import Holdings
from relay.decide.pieces import Piece, Retry, Sent, Stream
from relay.engine.directory import Answer, Directory
from relay.gauges import Gauges
from relay.limits import Limits
from relay.log.deferred import FailedAgain, Failure, State, fate
from relay.log.positions import Findings
from relay.ports import Category, Confirmed, Failed, LaneFault, Nacked, Settlement

log = structlog.get_logger(__name__)

_SAID: Final = {State.RETRY: "event deferred", State.DEAD: "event dead", State.VOID: "void deferred"}
_NACK_BASE_S: Final = 0.05
_NACK_CAP_S: Final = 10.0
_FAULT_BASE_S: Final = 1.0
_FAULT_CAP_S: Final = 60.0
_SILENCE_CAP_S: Final = 60.0
# A silent lane is only asked, which costs the others nothing, so it is back soon after it answers again.
_SILENT_CAP_S: Final = 8.0


class Outcomes:
    """The answers of one tenure. Rows that failed wait in *findings* for the next persist."""

    def __init__(
        self,
        *,
        holdings: Holdings,
        directory: Directory,
        limits: Limits,
        gauges: Gauges,
        rng: random.Random,
    ) -> None:
        self._flight = holdings.flight
        self._offer = holdings.offer
        self._directory = directory
        self._limits = limits
        self._gauges = gauges
        self._rng = rng
        self._held: dict[Stream, None] = {}
        self._failures: list[Failure] = []
        self._failed_again: list[FailedAgain] = []
        self._published_deferred: list[tuple[str, UUID]] = []
        self.unsettled_retries = 0
        """How many deferred events are with the broker."""
        self.news = 0
        """How many rows were settled since ``findings``."""

    def hear(self, settlements: Sequence[Settlement], now: float) -> None:
        """Apply what the broker has said."""
        pieces: dict[Piece, None] = {}
        streams: dict[Stream, None] = {}
        confirmed: dict[Stream, None] = {}
        heard_at = time.time()
        for settlement in settlements:
            sent = self._ended(settlement, now)
            if sent is None:
                continue
            streams[sent.stream] = None
            if isinstance(sent.origin, Piece):
                pieces[sent.origin] = None
            if isinstance(settlement, Confirmed):
                took_s = now - sent.sent_at
                sent.stream.pace.confirmed(took_s, now)
                self._gauges.confirmed_one(sent.row.event, took_s=took_s, at=heard_at)
                confirmed[sent.stream] = None
            self._settle(sent, is_published=isinstance(settlement, Confirmed))
        for piece in pieces:
            piece.settle()
        for stream in confirmed:
            self._flight.prove(stream.lane)
        for stream in streams:
            self._recovered(stream, now)

    def answered(self, answers: Sequence[Answer], now: float) -> None:
        """Apply what the broker has said of lanes that were to be declared."""
        for answer in answers:
            stream, fault = answer.stream, answer.fault
            if fault is None and stream.held_until is not None:
                self._hold(stream, now)
            elif fault is None:
                self._offer(stream)
            else:
                self._refused(stream, fault, now)

    def judge(self, now: float) -> bool:
        """Hold the lanes that keep silent; return True when the connection itself does."""
        verdict = self._flight.verdict(now, confirm_s=self._limits.confirm_s)
        match verdict:
            case AllWell():
                return False
            case BrokerSilent():
                return True
            case LanesSilent(streams=streams):
                for stream in streams:
                    stream.is_faulty = True
                    stream.strikes += 1
                    self._directory.doubt(stream.lane)
                    self._hold(stream, now + self._delay_s(stream, self._limits.confirm_s, _SILENCE_CAP_S))
                    log.warning("lane silent", lane=stream.lane.queue, unconfirmed=stream.outstanding)
                return False
            case _:
                assert_never(verdict)

    def due_again(self, now: float) -> list[Sent]:
        """End the holds that are over, and return what those lanes must be sent again first, in publishing order.

        A lane that is not known to be well is asked for before, and held until it has answered.
        """
        due = [stream for stream in self._held if stream.held_until is not None and stream.held_until <= now]
        again: list[Sent] = []
        for stream in due:
            if stream.outstanding and not self._directory.is_declared(stream.lane):
                self._ask(stream)
                continue
            again += [sent for sent in self._flight.unsettled_of(stream) if sent.is_nacked or stream.is_faulty]
            self._release(stream)
        return again

    def try_first(self, sents: Sequence[Sent]) -> Collection[Stream]:
        """Of lanes that are not proven let the first of *sents* go alone; return those lanes.

        Each is held until that is settled, and then sent the others, which count as given back.
        """
        unproven = {stream for stream in {sent.stream for sent in sents} if not self._flight.is_proven(stream.lane)}
        tried: set[Stream] = set()
        for sent in sents if unproven else ():
            if sent.stream in tried:
                sent.is_nacked = True
                self._hold(sent.stream, math.inf)
            elif sent.stream in unproven:
                tried.add(sent.stream)
        return unproven

    def next_due(self) -> float:
        """When the next hold ends; infinite if none does by itself."""
        return min((stream.held_until for stream in self._held if stream.held_until is not None), default=math.inf)

    def reconnected(self) -> None:
        """A new connection stands: end every hold, and have what is unsettled sent again as its lane answers."""
        self._flight.reconnected()
        for stream in list(self._held):
            self._release(stream)
        for sent in self._flight.unsettled():
            sent.is_nacked, sent.is_second_try = True, False
            if sent.stream.held_until is None:
                self._ask(sent.stream)

    def findings(self) -> Findings:
        """What the next persist must write down; it is forgotten here, and by the tenure if that persist fails."""
        findings = Findings(
            failures=tuple(self._failures),
            failed_again=tuple(self._failed_again),
            published_deferred=tuple(self._published_deferred),
        )
        self._failures.clear()
        self._failed_again.clear()
        self._published_deferred.clear()
        self.news = 0
        return findings

    def forget(self, streams: Sequence[Stream], gone: Sequence[Sent]) -> None:
        """These lanes are no longer ours to hold, nor what is *gone* with them to settle."""
        for stream in streams:
            self._held.pop(stream, None)
        self.unsettled_retries -= sum(isinstance(sent.origin, Retry) for sent in gone)

    @property
    def waiting(self) -> Collection[Lane]:
        """The lanes that are held."""
        return [stream.lane for stream in self._held]

    @property
    def held(self) -> int:
        """How many lanes are held."""
        return len(self._held)

    @property
    def held_rows(self) -> int:
        """How many rows of theirs are unsettled."""
        return sum(stream.outstanding for stream in self._held)

    @property
    def faulty(self) -> int:
        """How many of them keep silent."""
        return sum(stream.is_faulty for stream in self._held)

    def _refused(self, stream: Stream, fault: LaneFault, now: float) -> None:
        """The lane cannot stand: its events wait in the log, and those that came back for want of it are deferred."""
        stream.strikes += 1
        if fault.is_silent:
            log.warning("lane silent", lane=stream.lane.queue, reason=fault.reason, unconfirmed=stream.outstanding)
            stream.is_faulty = True
            self._hold(stream, now + self._delay_s(stream, _FAULT_BASE_S, _SILENT_CAP_S))
            return
        log.warning("lane refused", lane=stream.lane.queue, category=fault.category.value, reason=fault.reason)
        for sent in self._flight.unsettled_of(stream):
            if sent.is_second_try and sent.is_nacked:
                self._flight.land(sent.tag, now)
                self._write_down(sent, fault.category, fault.reason)
                self._settle(sent, is_published=False)
                if isinstance(sent.origin, Piece):
                    sent.origin.settle()
        self._hold(stream, now + self._delay_s(stream, _FAULT_BASE_S, _FAULT_CAP_S))

    def _settle(self, sent: Sent, *, is_published: bool) -> None:
        sent.is_settled = True
        sent.stream.outstanding -= 1
        self.news += 1
        if isinstance(sent.origin, Retry):
            self.unsettled_retries -= 1
            if is_published:
                self._published_deferred.append((sent.stream.lane.group, sent.row.event.id))
                self._gauges.voids += sent.row.event.is_void
                self._gauges.retried += not sent.row.event.is_void

    def _ended(self, settlement: Settlement, now: float) -> Sent | None:
        """The row whose end *settlement* is; None if it goes on, or was published anew since."""
        match settlement:
            case Confirmed():
                self._gauges.confirmed += 1
                return self._flight.land(settlement.tag, now)
            case Nacked():
                self._nacked(settlement, now)
                return None
            case Failed():
                return self._failed(settlement, now)
            case _:
                assert_never(settlement)

    def _nacked(self, nacked: Nacked, now: float) -> None:
        sent = self._flight.nacked(nacked.tag, now)
        self._gauges.nacked += 1
        if sent is not None and sent.stream.held_until in (None, math.inf):
            sent.stream.strikes += 1
            self._hold(sent.stream, now + self._delay_s(sent.stream, _NACK_BASE_S, _NACK_CAP_S))

    def _failed(self, failed: Failed, now: float) -> Sent | None:
        """Return the row if that is its end."""
        is_unroutable = failed.category is Category.UNROUTABLE
        self._gauges.returned += is_unroutable
        sent = self._flight.nacked(failed.tag, now)
        if sent is None:
            return None
        if is_unroutable and not sent.is_second_try:
            # Its queue may have been deleted: declare it once more. It keeps its place until then.
            sent.is_second_try = True
            self._ask(sent.stream)
            return None
        self._flight.land(failed.tag, now)
        self._write_down(sent, failed.category, failed.reason)
        return sent

    def _write_down(self, sent: Sent, category: Category, reason: str) -> None:
        stream, event = sent.stream, sent.row.event
        attempts = 1 + (sent.origin.attempts if isinstance(sent.origin, Retry) else 0)
        ahead = fate(
            category, attempts=attempts, attempts_max=self._limits.attempts, is_void=event.is_void, rng=self._rng
        )
        self._gauges.deferred += 1
        self._gauges.dead += ahead.is_dead
        log.warning(
            _SAID[ahead.state],
            event_id=str(event.id),
            tenant=event.tenant,
            group=stream.lane.group,
            category=category.value,
            reason=reason,
            attempt=attempts,
        )
        if isinstance(sent.origin, Retry):
            self._failed_again.append(
                FailedAgain(group=stream.lane.group, event_id=event.id, category=category, reason=reason, fate=ahead)
            )
        else:
            self._failures.append(
                Failure(
                    lane=stream.lane,
                    tenant_hash=stream.tenant_hash,
                    seq=sent.row.seq,
                    category=category,
                    reason=reason,
                    fate=ahead,
                )
            )

    def _recovered(self, stream: Stream, now: float) -> None:
        if stream.is_faulty or stream.held_until == math.inf:
            # It speaks again: what it still owes will come by itself, save what it gave back.
            stream.is_faulty = False
            self._hold(stream, now)
        if stream.held_until is None:
            stream.strikes = 0
            self._offer(stream)

    def _ask(self, stream: Stream) -> None:
        self._hold(stream, math.inf)
        self._directory.want(stream)

    def _hold(self, stream: Stream, until: float) -> None:
        stream.held_until = until
        self._held[stream] = None

    def _release(self, stream: Stream) -> None:
        stream.held_until = None
        stream.is_faulty = False
        self._held.pop(stream, None)
        self._offer(stream)

    def _delay_s(self, stream: Stream, base_s: float, cap_s: float) -> float:
        return backoff_s(stream.strikes, base_s=base_s, cap_s=cap_s, jitter=Jitter.EQUAL, rng=self._rng)
