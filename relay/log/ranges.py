"""Reading the ring log: the rows of a lane, or of many, that a window holds."""

from collections.abc import Sequence
from typing import Final, LiteralString

from outbox.shell.arrays import numbers, texts
from relay.decide.pieces import Piece, Row, Stream
from relay.log.ringlog import Bounds
from relay.log.rows import EVENT_COLUMNS, event_of
from relay.log.store import Connection, deadline

# The two functions hide the transaction numbers from the planner, which then has one index to take. A window that
# opens at 1:1: belongs to a group that started in the past: the consumer's gate takes keyed events older than the
# start for handled, so none of them is sent, though its number lies between others.
_RANGE: Final[LiteralString] = f"""
SELECT e.seq, {EVENT_COLUMNS} FROM (
    SELECT r.*, sum(octet_length(payload)) OVER (ORDER BY seq ROWS UNBOUNDED PRECEDING) AS so_far FROM (
        SELECT * FROM outbox.event
        WHERE tenant_hash = %(hash)s AND seq > %(after)s AND seq <= %(z)s AND tier = %(tier)s AND tenant = %(tenant)s
          AND NOT pg_visible_in_snapshot(xid, %(lo)s::pg_snapshot)
          AND pg_visible_in_snapshot(xid, %(hi)s::pg_snapshot)
          AND NOT coalesce(ordering_key IS NOT NULL AND ledger_at < (
              SELECT started_at FROM outbox.consumer_group
              WHERE group_name = %(group)s AND %(lo)s::pg_snapshot::text = '1:1:'), false)
        ORDER BY seq LIMIT %(rows)s
    ) r
) e
WHERE e.so_far - octet_length(e.payload) < %(bytes)s
ORDER BY e.seq"""  # noqa: S608 (its parts are constants of this package)

# By the slot, or all of them would be looked into for each lane.
_RANGES: Final[LiteralString] = f"""
SELECT w.number, e.* FROM unnest(
    %s::integer[], %s::smallint[], %s::text[], %s::bigint[], %s::smallint[], %s::text[],
    %s::text[]::pg_snapshot[], %s::text[]::pg_snapshot[], %s::bigint[], %s::bigint[]
) AS w (number, slot, group_name, tenant_hash, tier, tenant, lo, hi, after, z)
CROSS JOIN LATERAL (
    SELECT e.seq, {EVENT_COLUMNS} FROM outbox.event e
    WHERE e.slot = w.slot AND e.tenant_hash = w.tenant_hash AND e.seq > w.after AND e.seq <= w.z
      AND e.tier = w.tier AND e.tenant = w.tenant
      AND NOT pg_visible_in_snapshot(e.xid, w.lo) AND pg_visible_in_snapshot(e.xid, w.hi)
      AND NOT coalesce(e.ordering_key IS NOT NULL AND e.ledger_at < (
          SELECT g.started_at FROM outbox.consumer_group g
          WHERE g.group_name = w.group_name AND w.lo::text = '1:1:'), false)
    OFFSET 0
) e ORDER BY w.number, e.seq"""  # noqa: S608 (its parts are constants of this package)


async def rows_of(connection: Connection, stream: Stream, piece: Piece, after: int, bounds: Bounds) -> Sequence[Row]:
    """Read a lane's next rows of *piece*, in order; none means that it is exhausted.

    The first comes whatever it weighs.
    """
    parameters = {
        "hash": stream.tenant_hash,
        "tier": int(stream.lane.tier),
        "tenant": stream.lane.tenant,
        "lo": piece.lo,
        "hi": piece.hi,
        "group": stream.lane.group,
        "after": after,
        "z": piece.z,
        "rows": bounds.rows,
        "bytes": bounds.bytes,
    }
    async with deadline(connection, bounds.seconds), connection.cursor(binary=True) as cursor:
        await cursor.execute(_RANGE, parameters)
        return [Row(row[0], event_of(row[1:])) for row in await cursor.fetchall()]


async def rows_of_all(
    connection: Connection, pieces: Sequence[tuple[Stream, Piece]], *, within_s: float
) -> Sequence[Sequence[Row]]:
    """Read all rows of each of *pieces*, of which nothing was read and the slots are known, in one go."""
    asked = [(number, slot, *one) for number, one in enumerate(pieces) for slot in _slots(one[1])]
    lanes = [stream.lane for _, _, stream, _ in asked]
    parameters = (
        numbers([number for number, _, _, _ in asked]),
        numbers([slot for _, slot, _, _ in asked]),
        texts([lane.group for lane in lanes]),
        numbers([stream.tenant_hash for _, _, stream, _ in asked]),
        numbers([int(lane.tier) for lane in lanes]),
        texts([lane.tenant for lane in lanes]),
        texts([piece.lo for _, _, _, piece in asked]),
        texts([piece.hi for _, _, _, piece in asked]),
        numbers([piece.after for _, _, _, piece in asked]),
        numbers([piece.z for _, _, _, piece in asked]),
    )
    found: list[list[Row]] = [[] for _ in pieces]
    async with deadline(connection, within_s), connection.cursor(binary=True) as cursor:
        await cursor.execute(_RANGES, parameters)
        for row in await cursor.fetchall():
            found[row[0]].append(Row(row[1], event_of(row[2:])))
    return found


def _slots(piece: Piece) -> list[int]:
    assert piece.slots is not None  # noqa: S101 (what relay.decide.together chooses has them)
    return [slot for slot in range(piece.slots.bit_length()) if piece.slots >> slot & 1]
