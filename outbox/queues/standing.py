"""Which queues stand: made, bound, unbound, counted and deleted."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from outbox.queues.wakes import Wake, WakeKind, wake
from outbox.shell.severed import Connection
from outbox.topology import BoundQueue

_LOOK: Final = """
SELECT w.name, q.arguments, q.arguments = w.arguments, (q.exchange, q.routing_key) = (w.exchange, w.routing_key)
FROM unnest(%(names)s::text[], %(arguments)s::jsonb[], %(exchanges)s::text[], %(keys)s::text[])
    AS w (name, arguments, exchange, routing_key)
LEFT JOIN outbox_broker.queue q ON q.name = w.name
"""
_MAKE: Final = """
INSERT INTO outbox_broker.queue AS q (name, arguments, exchange, routing_key)
SELECT * FROM unnest(%(names)s::text[], %(arguments)s::jsonb[], %(exchanges)s::text[], %(keys)s::text[])
ORDER BY 1
ON CONFLICT (name) DO UPDATE SET exchange = excluded.exchange, routing_key = excluded.routing_key
WHERE q.arguments = excluded.arguments
"""
_UNBIND: Final = "UPDATE outbox_broker.queue SET exchange = NULL, routing_key = NULL WHERE name = %s"
_IDS: Final = "SELECT name, id FROM outbox_broker.queue WHERE name = ANY (%s::text[])"
# Live leases only count as hands: what a dead one has is there to be taken.
_COUNTS: Final = """
SELECT q.name, m.ready, m.held
FROM outbox_broker.queue q CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE l.token IS NULL) AS ready, count(l.token) AS held
    FROM outbox_broker.message m
    LEFT JOIN outbox_broker.lease l ON l.token = m.token AND l.expires_at > clock_timestamp()
    WHERE m.queue_id = q.id
) m
WHERE q.name = ANY (%s::text[])
"""
_LOCK: Final = "SELECT id FROM outbox_broker.queue WHERE name = %s FOR UPDATE"
_HAS_ANY: Final = "SELECT EXISTS (SELECT FROM outbox_broker.message WHERE queue_id = %s)"
_EMPTY: Final = "DELETE FROM outbox_broker.message WHERE queue_id = %s"
_DELETE: Final = "DELETE FROM outbox_broker.queue WHERE id = %s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """A queue that exists with other arguments; *reason* names what was wanted and what exists."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueCount:
    """What is in one queue: *ready* to be taken, and *held* by leases that have not run out."""

    ready: int
    held: int


async def declare(connection: Connection, queues: Sequence[BoundQueue]) -> Sequence[Mismatch]:
    """Make sure that *queues* stand and are bound; return those that exist with other arguments, untouched."""
    if not queues:
        return []
    asked = {
        "names": [queue.name for queue in queues],
        "arguments": [_json(queue.arguments) for queue in queues],
        "exchanges": [queue.exchange for queue in queues],
        "keys": [queue.routing_key for queue in queues],
    }
    found = await (await connection.execute(_LOOK, asked)).fetchall()
    if not all(is_same and is_bound for _, _, is_same, is_bound in found):
        wanted = {queue.name: queue for queue in queues}.values()
        await connection.execute(
            _MAKE,
            {
                "names": [queue.name for queue in wanted],
                "arguments": [_json(queue.arguments) for queue in wanted],
                "exchanges": [queue.exchange for queue in wanted],
                "keys": [queue.routing_key for queue in wanted],
            },
        )
        found = await (await connection.execute(_LOOK, asked)).fetchall()
    arguments = {queue.name: queue.arguments for queue in queues}
    return [
        Mismatch(name=name, reason=f"queue {name}: want arguments {_json(arguments[name])}, got {_json(existing)}")
        for name, existing, is_same, _ in found
        if not is_same and existing is not None
    ]


async def unbind(connection: Connection, name: str) -> None:
    """Let nothing more be routed to the queue; safe where there is none."""
    await connection.execute(_UNBIND, (name,))


async def ids(connection: Connection, names: Sequence[str]) -> Mapping[str, int]:
    """The numbers of those of *names* that exist. A queue that is made anew has another."""
    return dict(await (await connection.execute(_IDS, (list(names),))).fetchall())


async def counts(connection: Connection, names: Sequence[str]) -> Mapping[str, QueueCount]:
    """What is in those of *names* that exist."""
    found = await (await connection.execute(_COUNTS, (list(names),))).fetchall()
    return {name: QueueCount(ready=ready, held=held) for name, ready, held in found}


async def delete(connection: Connection, name: str, *, if_empty: bool = False) -> bool:
    """Delete the queue with all that is in it; with *if_empty* only if nothing is, and False if something was.

    Who publishes to it at that moment is waited for first; who comes later finds no queue.
    """
    async with connection.transaction():
        row = await (await connection.execute(_LOCK, (name,))).fetchone()
        if row is None:
            return True
        if if_empty and await (await connection.execute(_HAS_ANY, row)).fetchone() != (False,):
            return False
        await connection.execute(_DELETE, row)
        await connection.execute(_EMPTY, row)
    await wake(connection, [Wake(queue_id=row[0], kind=WakeKind.GONE)])
    return True


def _json(arguments: Mapping[str, object]) -> str:
    return json.dumps(dict(arguments), sort_keys=True)
