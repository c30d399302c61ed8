"""What is waiting for one lane: its pieces of windows, in order, and how far each is settled.

A *window* ``(lo, hi]`` is what became visible between two snapshots. A lane's part of one is a *piece*:
rows in hand, or a range of sequence numbers that is read a chunk at a time. Pieces follow one another
as windows do; within a piece rows follow their sequence numbers. Both orders are that of commits which
depend on each other, so a lane's pieces may be joined, but never swapped. No clock, no I/O.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

from outbox.event import Event, Tier
from outbox.naming import Lane
from relay.decide.pace import Pace

# What a message weighs beside its payload: headers, properties, frames.
_HEADERS_BYTES: Final = 600


class Row(NamedTuple):
    """One event and its number in the log."""

    seq: int
    event: Event

    @property
    def size_bytes(self) -> int:
        """About what it weighs on the wire."""
        return len(self.event.payload) + _HEADERS_BYTES


class Extent(NamedTuple):
    """How much a range holds."""

    rows: int
    payload_bytes: int

    def fits(self, *, rows: int, payload_bytes: int) -> bool:
        """Whether it is no more than that."""
        return self.rows <= rows and self.payload_bytes <= payload_bytes


class Part(NamedTuple):
    """One tenant and tier's part of a window, for every group alike.

    *after* is a number below its first row and *z* its last row's. ``rows`` is ``None`` where there
    were too many to bring along; *extent* then says how many.
    """

    tier: Tier
    tenant: str
    tenant_hash: int
    bucket: int
    after: int
    z: int
    rows: Sequence[Row] | None
    extent: Extent | None = None
    slots: int | None = None
    """The slots of the log that hold its rows, and maybe others: bit n for slot n. None where that is not known."""


class StreamPosition(NamedTuple):
    """How far a lane that is behind is published: inside window ``(lo, hi]`` up to *after*, its last row being *z*."""

    lane: Lane
    tenant_hash: int
    bucket: int
    lo: str
    hi: str
    after: int
    z: int


@dataclass(slots=True, eq=False)
class Retry:
    """A deferred event on its way again. *attempts* are those that failed already."""

    attempts: int


@dataclass(slots=True, eq=False)
class Sent:
    """One row on its way to one lane: published, and unsettled until *is_settled*."""

    row: Row
    stream: "Stream"
    origin: "Piece | Retry"
    tag: int = 0
    place: int = 0
    """Its first tag: where it stands among the lane's, however often it is sent again."""
    sent_at: float = 0.0
    is_settled: bool = False
    is_nacked: bool = False
    """The broker gave it back, or the connection was lost under it; it goes out again when its lane's hold ends."""
    is_second_try: bool = False
    """It came back as unroutable once, and its lane was declared again."""


class Piece:
    """One lane's part of the window ``(lo, hi]``."""

    __slots__ = ("_read_to", "_rows", "_sent", "after", "beside", "hi", "lo", "slots", "taken", "unread", "window", "z")

    def __init__(
        self,
        lo: str,
        hi: str,
        after: int,
        z: int,
        rows: Sequence[Row] | None = None,
        extent: Extent | None = None,
        *,
        slots: int | None = None,
        window: int = 0,
    ) -> None:
        """A piece with *rows* in hand, all there are, or a range to be read when *rows* is None.

        *slots* are a ``Part``'s. *window* numbers the windows as they were taken in; one that is stored already has 0.
        """
        self.lo = lo
        self.hi = hi
        self.z = z
        self.after = after
        """Every row up to this number is settled."""
        self.taken = 0
        """How many rows were handed out to be published."""
        self._rows: list[Row] = [] if rows is None else list(rows)
        self._read_to = after if rows is None else z
        self.unread = extent
        """What the range holds, where that is known and nothing of it was read."""
        self.beside: list[tuple[Stream, Piece]] | None = None
        """Those that are worth reading along with this one, itself among them, while nothing of it was read."""
        self.slots = slots
        self.window = window
        self._sent: list[Sent] = []

    @property
    def read_after(self) -> int | None:
        """The number after which to read next; None while rows are in hand, and when all have been read."""
        return self._read_to if not self._rows and self._read_to < self.z else None

    @property
    def has_more(self) -> bool:
        """Whether anything is left to publish."""
        return bool(self._rows) or self._read_to < self.z

    @property
    def is_untouched(self) -> bool:
        """Whether nothing of it was ever published."""
        return not self.taken

    @property
    def is_done(self) -> bool:
        """Whether every row is published and settled."""
        return not self._sent and not self.has_more

    @property
    def unsettled_after(self) -> int:
        """How many rows were published beyond ``after``."""
        return len(self._sent)

    def fill(self, rows: Sequence[Row]) -> None:
        """Take rows that were read after ``read_after``, in order; none means that there are no more."""
        self.unread = self.beside = None
        self._rows.extend(rows)
        self._read_to = rows[-1].seq if rows else self.z

    def take(self, stream: "Stream", *, rows_max: int, bytes_max: int) -> list[Sent]:
        """Hand out rows in hand, within both bounds; the first goes whatever it weighs."""
        count = 0
        for row in self._rows[:rows_max]:
            bytes_max -= row.size_bytes
            if bytes_max < 0 and count:
                break
            count += 1
        taken = [Sent(row, stream, self) for row in self._rows[:count]]
        del self._rows[:count]
        self._sent += taken
        self.taken += count
        return taken

    def settle(self) -> None:
        """Move ``after`` to the end of the settled prefix. Call it when rows of this piece were settled."""
        count = 0
        for sent in self._sent:
            if not sent.is_settled:
                break
            count += 1
        if count:
            self.after = self._sent[count - 1].row.seq
            del self._sent[:count]

    def joined(self, later: "Piece") -> "Piece":
        """One range for this piece and a *later* one, both untouched and with none of the lane's between them."""
        mine, others = self._extent(), later._extent()
        extent = None if mine is None or others is None else Extent(*map(sum, zip(mine, others, strict=True)))
        slots = None if self.slots is None or later.slots is None else self.slots | later.slots
        after, z = min(self.after, later.after), max(self.z, later.z)
        return Piece(self.lo, later.hi, after, z, extent=extent, slots=slots, window=self.window)

    def _extent(self) -> Extent | None:
        """What an untouched piece holds, if that is known."""
        if self._read_to < self.z:
            return self.unread
        return Extent(len(self._rows), sum(len(row.event.payload) for row in self._rows))


class Stream:
    """One lane's pieces, oldest first, and what holds the lane back. Nothing else knows a lane's order."""

    __slots__ = (
        "__weakref__",
        "bucket",
        "held_until",
        "is_faulty",
        "lane",
        "outstanding",
        "pace",
        "pieces",
        "strikes",
        "tenant_hash",
    )

    def __init__(self, *, lane: Lane, tenant_hash: int, bucket: int) -> None:
        self.lane = lane
        self.tenant_hash = tenant_hash
        self.bucket = bucket
        self.pieces: list[Piece] = []
        self.outstanding = 0
        """How many rows are with the broker, unsettled."""
        self.pace = Pace()
        self.held_until: float | None = None
        """While set, nothing new is published to the lane."""
        self.is_faulty = False
        """Its confirms are missing though others arrive."""
        self.strikes = 0
        """How often in a row the lane refused or kept silent."""

    @property
    def has_more(self) -> bool:
        """Whether anything is left to publish."""
        # Pieces are published in order, so only the last can tell.
        return bool(self.pieces) and self.pieces[-1].has_more

    @property
    def is_idle(self) -> bool:
        """Whether the lane can be forgotten: nothing waits and nothing is unsettled."""
        return not self.pieces and not self.outstanding

    @property
    def published(self) -> int:
        """How many rows of its pieces were published, settled or not."""
        return sum([piece.taken for piece in self.pieces])

    @property
    def unpersisted(self) -> int:
        """How many rows were published past the position that ``position`` returns."""
        if not self.pieces:
            return 0
        # Only the first piece's prefix is stored: what is settled in later ones would be published again.
        first = self.pieces[0]
        return self.published - first.taken + first.unsettled_after

    def add(self, piece: Piece) -> None:
        """Append the lane's part of a later window; never more than two pieces stay untouched."""
        self.pieces.append(piece)
        pieces = self.pieces
        if len(pieces) > 2 and pieces[-3].is_untouched:  # noqa: PLR2004 (the third from the end)
            last, before = pieces.pop(), pieces.pop()
            # Nobody asks for it any more; its reference to what refers to it would keep it in memory.
            before.beside = None
            pieces.append(before.joined(last))

    def current(self) -> Piece | None:
        """The piece to publish from next, None when everything is published."""
        for piece in self.pieces:
            if piece.has_more:
                return piece
        return None

    def take(self, *, rows_max: int, bytes_max: int) -> list[Sent]:
        """Hand out rows in hand, in order, within both bounds; never past a piece that must be read first."""
        taken: list[Sent] = []
        while (piece := self.current()) is not None and piece.read_after is None:
            more = piece.take(self, rows_max=rows_max - len(taken), bytes_max=bytes_max)
            taken += more
            if piece.has_more or piece is self.pieces[-1] or len(taken) >= rows_max:
                break
            bytes_max -= sum([sent.row.size_bytes for sent in more])
            if bytes_max <= 0:
                break
        self.outstanding += len(taken)
        return taken

    def drop_done(self) -> Sequence[Piece]:
        """Forget the pieces that are settled, up to the first that is not; return them."""
        count = 0
        for piece in self.pieces:
            if not piece.is_done:
                break
            count += 1
        done = self.pieces[:count]
        del self.pieces[:count]
        return done

    def position(self) -> StreamPosition:
        """What must be stored of a stream whose first piece is unsettled."""
        first = self.pieces[0]
        return StreamPosition(self.lane, self.tenant_hash, self.bucket, first.lo, first.hi, first.after, first.z)

    def is_in_order(self) -> bool:
        """Whether each piece ends before the next begins to be published; for assertions."""
        return all(not (earlier.has_more and later.taken) for earlier, later in pairwise(self.pieces))
