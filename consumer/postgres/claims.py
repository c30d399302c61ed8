"""Taking messages, committed before anything is done with them, and letting them go with the token they were taken by.

What a claim has to pass by at a queue's head, held or dead rows that vacuum may not remove yet, it passes once: it
begins after the place that is known to have nothing before it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, LiteralString

from outbox.shell.severed import Connection
from outbox.wire import Message

# Looked up and not joined, see FIXED_PLANS.
_AT: Final[LiteralString] = """ctid = ANY (ARRAY(
        SELECT found.ctid
        FROM unnest(%(queues)s::bigint[], %(seqs)s::bigint[]) AS place (queue_id, seq)
        CROSS JOIN LATERAL (
            SELECT ctid FROM outbox_broker.message WHERE queue_id = place.queue_id AND seq = place.seq OFFSET 0
        ) found)) AND token = %(token)s"""
_SETTLE: Final[LiteralString] = f"DELETE FROM outbox_broker.message WHERE {_AT}"  # noqa: S608 (constants)
_HAND_BACK: Final[LiteralString] = f"UPDATE outbox_broker.message SET token = NULL WHERE {_AT}"  # noqa: S608
# A lease that has run out takes nothing. The tokens of dead ones are given, not looked up: a row that is read anew
# because another has just written it must not be judged by a lease that this statement does not see yet.
_CLAIM: Final[LiteralString] = f"""
WITH settled AS (
    {_SETTLE}
), picked AS MATERIALIZED (
    SELECT m.place
    FROM unnest(%(wanted)s::bigint[], %(after)s::bigint[], %(rooms)s::integer[]) AS lane (queue_id, after, room)
    CROSS JOIN LATERAL (
        SELECT m.ctid AS place FROM outbox_broker.message m
        WHERE m.queue_id = lane.queue_id AND m.seq > lane.after
            AND (m.token IS NULL OR m.token = ANY (%(dead)s::bigint[]))
        ORDER BY m.seq LIMIT lane.room FOR UPDATE SKIP LOCKED
    ) m
    WHERE EXISTS (SELECT FROM outbox_broker.lease WHERE token = %(token)s AND expires_at > clock_timestamp())
)
UPDATE outbox_broker.message m SET token = %(token)s, deliveries = m.deliveries + 1
WHERE m.ctid = ANY (ARRAY(SELECT place FROM picked))
RETURNING m.queue_id, m.seq, m.deliveries, m.routing_key, m.message_id, m.type, m.app_id, m.content_type, m.headers,
    m.body
"""  # noqa: S608 (its parts are constants)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a message is: its queue's number, and its own there."""

    queue_id: int
    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """Of one queue: at most *room* messages, looked for behind *after*."""

    queue_id: int
    after: int
    room: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """A message that is ours now. *is_redelivered*: somebody has had it before."""

    place: Place
    routing_key: str
    message: Message
    is_redelivered: bool


async def claim(
    connection: Connection, token: int, wishes: Sequence[Wish], *, dead: Sequence[int], done: Sequence[Place] = ()
) -> list[Claimed]:
    """Take the oldest free messages of each queue, those with *dead* tokens included; in order per queue.

    Args:
        done: settled in the same statement, as by ``settle``: taking the next is half the work of a round trip.
    """
    cursor = await connection.execute(
        _CLAIM,
        {
            **_asked(token, done),
            "dead": list(dead),
            "wanted": [wish.queue_id for wish in wishes],
            "after": [wish.after for wish in wishes],
            "rooms": [wish.room for wish in wishes],
        },
    )
    found = [_claimed(row) for row in await cursor.fetchall()]
    return sorted(found, key=lambda one: one.place.seq)


async def settle(connection: Connection, token: int, places: Sequence[Place]) -> None:
    """Those of *places* that are still taken by *token* are done with, and gone."""
    await connection.execute(_SETTLE, _asked(token, places))


async def hand_back(connection: Connection, token: int, places: Sequence[Place]) -> None:
    """Those of *places* that are still taken by *token* are free again, in their old places."""
    await connection.execute(_HAND_BACK, _asked(token, places))


def _asked(token: int, places: Sequence[Place]) -> dict[str, object]:
    return {
        "token": token,
        "queues": [place.queue_id for place in places],
        "seqs": [place.seq for place in places],
    }


def _claimed(row: tuple[Any, ...]) -> Claimed:
    queue_id, seq, deliveries, routing_key, message_id, message_type, app_id, content_type, headers, body = row
    return Claimed(
        place=Place(queue_id=queue_id, seq=seq),
        routing_key=routing_key,
        message=Message(
            message_id=message_id,
            type=message_type,
            app_id=app_id,
            content_type=content_type,
            headers=headers,
            body=body,
        ),
        is_redelivered=deliveries > 1,
    )
