"""Which pieces of a large window are read together: small ones, of lanes whose turns come one after another.

Where thousands of lanes wait, a question for each would cost more than their rows. No clock, no I/O.
"""

from collections.abc import Sequence

from outbox.event import Tier
from relay.decide.pieces import Extent, Piece, Stream


class Together:
    """Puts pieces side by side, as many as one read may bring."""

    def __init__(self, most: Extent) -> None:
        self._most = most
        self._last: dict[Tier, tuple[list[tuple[Stream, Piece]], Extent]] = {}

    def put(self, stream: Stream) -> None:
        """Take the last piece of *stream*. Those of one tier are put in the order of their turns."""
        piece = stream.pieces[-1]
        extent = piece.unread
        if extent is None or not extent.fits(rows=self._most.rows, payload_bytes=self._most.payload_bytes):
            return
        tier = stream.lane.tier
        beside, left = self._last.get(tier, ([], self._most))
        if not extent.fits(rows=left.rows, payload_bytes=left.payload_bytes):
            beside, left = [], self._most
        beside.append((stream, piece))
        piece.beside = beside
        self._last[tier] = beside, Extent(left.rows - extent.rows, left.payload_bytes - extent.payload_bytes)


def readable(piece: Piece, *, rows_max: int, bytes_max: int) -> Sequence[tuple[Stream, Piece]]:
    """Of the pieces beside *piece* those that can be read with it, up to that much; none if it is to be read alone."""
    chosen: list[tuple[Stream, Piece]] = []
    for stream, one in piece.beside or ():
        extent = one.unread
        if extent is None or one.slots is None or stream.held_until is not None or stream.current() is not one:
            continue
        if not extent.fits(rows=rows_max, payload_bytes=bytes_max):
            continue
        rows_max -= extent.rows
        bytes_max -= extent.payload_bytes
        chosen.append((stream, one))
    return chosen if any(one is piece for _, one in chosen) else ()
