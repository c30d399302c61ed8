"""Putting messages into queues, and the oldest out of one that may only keep so many."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from outbox.shell.severed import Connection
from outbox.wire import Message

# A queue's row is locked against its deletion, so nothing is put into a queue that is gone. Numbers are drawn in the
# order of the rows: the default is computed above the sort.
_PUT: Final = """
WITH route AS MATERIALIZED (
    SELECT array_agg(q.id ORDER BY b.place) AS ids
    FROM unnest(%(bound)s::text[]) WITH ORDINALITY AS b (routing_key, place)
    LEFT JOIN LATERAL (
        SELECT q.id FROM outbox_broker.queue q
        WHERE q.exchange = %(exchange)s AND q.routing_key = b.routing_key FOR KEY SHARE
    ) q ON true
), put AS (
    INSERT INTO outbox_broker.message
        (queue_id, routing_key, message_id, type, app_id, content_type, headers, body)
    SELECT r.ids[m.route], m.routing_key, m.message_id, m.type, m.app_id, m.content_type, m.headers, m.body
    FROM route r CROSS JOIN unnest(
        %(routes)s::integer[], %(routing_keys)s::text[], %(message_ids)s::text[], %(types)s::text[],
        %(app_ids)s::text[], %(content_types)s::text[], %(headers)s::json[], %(bodies)b::bytea[]
    ) WITH ORDINALITY AS m (route, routing_key, message_id, type, app_id, content_type, headers, body, place)
    WHERE r.ids[m.route] IS NOT NULL
    ORDER BY m.place
)
SELECT ids FROM route
"""
_TRIM: Final = """
DELETE FROM outbox_broker.message
WHERE queue_id = %(queue)s AND token IS NULL AND seq <= (
    SELECT seq FROM outbox_broker.message WHERE queue_id = %(queue)s ORDER BY seq DESC OFFSET %(most)s LIMIT 1
)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Put:
    """One message for the queue that is bound by *bound*; it keeps the *routing_key* it was published with."""

    bound: str
    routing_key: str
    message: Message
    headers: str
    """Those of *message*, as ``json_headers`` gives them."""


async def put(connection: Connection, exchange: str, puts: Sequence[Put]) -> Sequence[int | None]:
    """Put each into the queue that is bound to *exchange* by its key; they are there, in order, on return.

    Returns:
        For each the number of its queue, or None where no queue is bound.
    """
    if not puts:
        return []
    places = {bound: place for place, bound in enumerate(dict.fromkeys(one.bound for one in puts), start=1)}
    asked = {
        "exchange": exchange,
        "bound": list(places),
        "routes": [places[one.bound] for one in puts],
        "routing_keys": [one.routing_key for one in puts],
        "message_ids": [one.message.message_id for one in puts],
        "types": [one.message.type for one in puts],
        "app_ids": [one.message.app_id for one in puts],
        "content_types": [one.message.content_type for one in puts],
        "headers": [one.headers for one in puts],
        "bodies": [one.message.body for one in puts],
    }
    row = await (await connection.execute(_PUT, asked)).fetchone()
    assert row is not None  # noqa: S101 - an aggregate is one row
    ids: Sequence[int | None] = row[0]
    return [ids[places[one.bound] - 1] for one in puts]


async def trim(connection: Connection, queue_id: int, *, most: int) -> None:
    """Leave *most* messages in the queue: the oldest that nobody has in hand are dropped."""
    await connection.execute(_TRIM, {"queue": queue_id, "most": most})


def json_headers(message: Message) -> str:
    """The headers of *message* as they are stored. What JSON has no word for becomes text."""
    return json.dumps(dict(message.headers), default=str)
