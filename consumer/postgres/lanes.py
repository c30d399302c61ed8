"""Which queues to ask for how many messages, and whose hands each message is in. No I/O, no clock.

A queue is asked while it may have something and there is room for it: when it is attached, when it is told of, when
it gave all it was asked for, when something is handed back, and now and then for what nobody told of.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count

from consumer.postgres.claims import Claimed, Place, Wish
from outbox.queues.wakes import Wake, WakeKind


@dataclass(slots=True, eq=False, kw_only=True)
class _Consumer:
    """A base or an extra consumer; one that is detached still counts what it holds."""

    prefetch: int
    unsettled: int = 0


@dataclass(slots=True, eq=False, kw_only=True)
class _Lane:
    queue: str
    queue_id: int | None = None
    consumers: dict[bool, _Consumer] = field(default_factory=dict)  # by whether it is the extra one
    after: int = 0  # nothing is free at or before this place, as far as is known
    may_have: bool = True

    @property
    def room(self) -> int:
        return sum(max(0, one.prefetch - one.unsettled) for one in self.consumers.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    place: Place
    lane: _Lane
    consumer: _Consumer


class Lanes:
    """The queues of one connection after the other: what is attached outlives a connection, what is held does not."""

    def __init__(self) -> None:
        self._lanes: dict[str, _Lane] = {}
        self._by_id: dict[int, _Lane] = {}
        self._unknown: dict[_Lane, None] = {}
        self._stirred: dict[_Lane, None] = {}  # may have something, and perhaps room; first come, first asked
        self._held: dict[int, _Held] = {}
        self._tags = count(1)

    @property
    def held(self) -> Sequence[Place]:
        """All that is in hand."""
        return [held.place for held in self._held.values()]

    def attach(self, queue: str, *, prefetch: int, is_extra: bool) -> None:
        """Ask *queue* for as much more. Attaching what is attached changes nothing."""
        lane = self._lanes.get(queue)
        if lane is None:
            lane = self._lanes[queue] = _Lane(queue=queue)
            self._unknown[lane] = None
        if is_extra not in lane.consumers:
            lane.consumers[is_extra] = _Consumer(prefetch=prefetch)
            self._stir(lane)

    def detach(self, queue: str, *, is_extra: bool) -> None:
        """Ask for no more by that consumer; what it holds stays."""
        lane = self._lanes.get(queue)
        if lane is not None:
            lane.consumers.pop(is_extra, None)
            if not lane.consumers:
                self._drop(lane)

    def unknown(self) -> Sequence[str]:
        """The queues whose numbers are not known."""
        return [lane.queue for lane in self._unknown]

    def known(self) -> Sequence[str]:
        """The queues whose numbers are known."""
        return [lane.queue for lane in self._by_id.values()]

    def resolve(self, asked: Iterable[str], ids: dict[str, int]) -> Sequence[str]:
        """Take in the numbers of those *asked* for; return those that do not exist, or are others by now: lost."""
        gone = []
        for queue in asked:
            lane = self._lanes.get(queue)
            if lane is None:
                continue
            queue_id = ids.get(queue)
            if queue_id is None or lane.queue_id not in (None, queue_id):
                self._drop(lane)
                gone.append(queue)
            else:
                lane.queue_id = queue_id
                self._by_id[queue_id] = lane
                self._unknown.pop(lane, None)
                if lane.may_have:
                    self._stirred[lane] = None
        return gone

    def stir(self, wakes: Iterable[Wake]) -> Sequence[str]:
        """Take in what was told; return the queues that are said to be gone."""
        gone = []
        for one in wakes:
            lane = self._by_id.get(one.queue_id)
            if lane is None:
                continue
            match one.kind:
                case WakeKind.NEW:
                    self._stir(lane)
                case WakeKind.BACK:
                    self._stir(lane, after=0)
                case WakeKind.GONE:
                    gone.append(lane.queue)
        return gone

    def stir_all(self) -> None:
        """Any queue may have something, anywhere."""
        for lane in self._lanes.values():
            self._stir(lane, after=0)

    def wishes(self, *, most: int) -> Sequence[Wish]:
        """What to ask now, of *most* queues at once; until it is answered nothing more is asked of these."""
        found: list[Wish] = []
        while self._stirred and len(found) < most:
            lane = next(iter(self._stirred))
            del self._stirred[lane]
            if lane.room and lane.queue_id is not None:  # else it comes again once there is
                lane.may_have = False
                found.append(Wish(queue_id=lane.queue_id, after=lane.after, room=lane.room))
        return found

    def take(
        self, wishes: Iterable[Wish], claimed: Iterable[Claimed]
    ) -> tuple[Sequence[tuple[int, str, Claimed]], Sequence[Place]]:
        """Take in what was *claimed* for *wishes*.

        Returns:
            Each with its tag and its queue's name, in the same order; and what nobody has room for any more, since
            its consumer was detached meanwhile: to be handed back.
        """
        taken, homeless = [], []
        got: dict[int, list[int]] = {}
        for one in claimed:
            place = one.place
            got.setdefault(place.queue_id, []).append(place.seq)
            lane = self._by_id.get(place.queue_id)
            consumer = None if lane is None else _with_room(lane)
            if lane is None or consumer is None:
                homeless.append(place)
                continue
            consumer.unsettled += 1
            tag = next(self._tags)
            self._held[tag] = _Held(place=place, lane=lane, consumer=consumer)
            taken.append((tag, lane.queue, one))
        for wish in wishes:
            seqs = got.get(wish.queue_id, [])
            lane = self._by_id.get(wish.queue_id)
            if lane is None or not seqs:
                continue
            if len(seqs) >= wish.room:
                self._stir(lane)
            if lane.after == wish.after:  # else something has come back meanwhile, perhaps before these
                lane.after = max(seqs)
        return taken, homeless

    def settle(self, tag: int, *, is_back: bool = False) -> Place | None:
        """What *tag* names is in hand no more; None if it was not."""
        held = self._held.pop(tag, None)
        if held is None:
            return None
        held.consumer.unsettled -= 1
        lane = held.lane
        if is_back or lane.may_have:
            self._stir(lane, after=held.place.seq - 1 if is_back else lane.after)
        return held.place

    def lose(self) -> None:
        """The connection is gone: nothing is in hand, and nothing is known of the queues but their names."""
        self._held.clear()
        self._by_id.clear()
        self._stirred.clear()
        self._unknown = dict.fromkeys(self._lanes.values())
        for lane in self._lanes.values():
            lane.queue_id, lane.may_have, lane.after = None, True, 0
            for consumer in lane.consumers.values():
                consumer.unsettled = 0

    def _stir(self, lane: _Lane, *, after: int | None = None) -> None:
        lane.may_have = True
        if after is not None:
            lane.after = min(lane.after, after)
        self._stirred[lane] = None

    def _drop(self, lane: _Lane) -> None:
        self._lanes.pop(lane.queue, None)
        self._unknown.pop(lane, None)
        self._stirred.pop(lane, None)
        if lane.queue_id is not None:
            self._by_id.pop(lane.queue_id, None)


def _with_room(lane: _Lane) -> _Consumer | None:
    return next((one for one in lane.consumers.values() if one.unsettled < one.prefetch), None)
