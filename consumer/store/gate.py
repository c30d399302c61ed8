"""The order of keyed events, in the database: who may run, who waits, and who is next.

A key's events are handled alone: whoever handles one in a transaction holds the key's lock until that ends; a leased
handler, which has none open, holds it by a row of ``consumer.key_claim`` for as long as its process's lease does
(``consumer.store.claims``). The lock is taken first and never waited for, so it is part of no deadlock.
``consumer.decide.order`` says what a position means; here it is read and moved.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from psycopg.rows import TupleRow

from consumer.decide.order import Position, Turn, decide
from consumer.store import stored as stored_message
from consumer.store import work
from consumer.store.plans import by_index, fresh
from consumer.store.stored import Connection
from consumer.store.work import NewWork, Reason
from outbox.event import Event, Tier
from outbox.wire import Message

#: A waiting row comes up by itself when its predecessor is older than the horizon, but no more often than this.
_RECHECK_S: Final = 600.0


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Key:
    """An ordering key as one group knows it."""

    group: str
    tenant: str
    tier: Tier
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockedKey:
    """A key whose events wait, and what they wait for: event *number*, which is *by*.

    *by* is the reason of its work row, ``dead`` for a dead letter (*dead_id*), or ``elsewhere``: it has not
    arrived, or is being handled. *waiting* counts the events behind it that wait here.
    """

    tier: Tier
    tenant: str
    key: str
    number: int
    by: str
    dead_id: int | None
    waiting: int
    waiting_since: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockedKeys:
    """How many keys are blocked, and those that have been for longest."""

    total: int
    longest: tuple[BlockedKey, ...]


def key_of(group: str, event: Event) -> Key:
    """The key of *event*, which must have one."""
    assert event.ordering is not None  # noqa: S101 - callers ask only for keyed events
    return Key(group=group, tenant=event.tenant, tier=event.tier, key=event.ordering.key)


async def look(connection: Connection, group: str, event: Event, *, horizon: timedelta) -> Turn:
    """Whether it is the turn of *event*, without a lock: for what is taken out of a buffer, or may be parked."""
    return await _turn(connection, key_of(group, event), event, horizon, lock=None)


async def enter(connection: Connection, group: str, event: Event, *, horizon: timedelta) -> Turn:
    """As ``look``, and locks the key until the caller's transaction ends. BUSY if another transaction has it.

    Call it first in the handler's transaction, before the ledger; end the transaction soon if the event may
    not run. Never waits.
    """
    key = key_of(group, event)
    return await _turn(connection, key, event, horizon, lock=lock_of(key))


async def enter_all(connection: Connection, group: str, events: Sequence[Event], *, horizon: timedelta) -> list[Turn]:
    """As ``enter``, for one event each of several keys: their turns, in order. None is waited for."""
    keys = [key_of(group, event) for event in events]
    values = {
        "groups": [key.group for key in keys],
        "tenants": [key.tenant for key in keys],
        "tiers": [int(key.tier) for key in keys],
        "keys": [key.key for key in keys],
        "locks": [lock_of(key) for key in keys],
        "events": [event.id for event in events],
    }
    rows = await (await connection.execute(_READ_ALL, values)).fetchall()
    return [
        await _judge(connection, key, event, horizon, row) for key, event, row in zip(keys, events, rows, strict=True)
    ]


async def advance(connection: Connection, passed: Iterable[tuple[Key, int]], *, unless_dead: bool = False) -> None:
    """Record, in the caller's transaction, that those numbers were handled; a position never falls.

    Call it in the transaction of an event's last handler, after the ledger's rows and before work rows. Once
    that is committed, ``work.make_due`` the number after.

    Args:
        unless_dead: leave a number alone that has an open dead letter, of another of its handlers: that holds the
            key until it is replayed or discarded.
    """
    for key, number in sorted(passed):
        await connection.execute(_ADVANCE, {**_names(key), "number": number, "unless_dead": unless_dead})


async def park(
    connection: Connection,
    group: str,
    event: Event,
    message: Message,
    *,
    horizon: timedelta,
    attempts: int = 0,
    handlers: tuple[str, ...] | None = None,
    owner: UUID | None = None,
) -> bool:
    """Keep *event*, which is early, as a work row until its predecessor is handled or counts as handled.

    Returns false if it has a work row already that *owner* does not own; that stays as it is, and the event is
    as safe there.
    """
    assert event.ordering is not None  # noqa: S101 - only a keyed event can be early
    row = NewWork(
        group=group,
        event_id=event.id,
        stored=stored_message.of_event(event, message),
        reason=Reason.WAITING,
        delay_s=_RECHECK_S,
        not_before=(event.ordering.previous_time or event.ledger_time) + horizon,
        attempts=attempts,
        handlers=handlers,
    )
    return bool(await work.park(connection, [row], owner=owner))


async def sweep(connection: Connection, group: str) -> int:
    """Make due every waiting event of *group* whose predecessor is handled. Returns how many that were.

    Once a second, on a connection with autocommit: it finds what ``work.make_due`` missed, be it that the event
    was parked while its predecessor committed, or that a process died between the two.
    """
    async with by_index(connection):
        cursor = await fresh(connection, _SWEEP, {"group": group})
    return cursor.rowcount


async def blocked_keys(connection: Connection, group: str, *, limit: int = 100) -> BlockedKeys:
    """The keys of *group* whose events wait, longest first, and those that an open dead letter holds."""
    cursor = await fresh(connection, _BLOCKED, {"group": group, "limit": limit})
    rows = await cursor.fetchall()
    keys = [
        BlockedKey(
            tier=Tier(tier),
            tenant=tenant,
            key=key,
            number=number,
            by=by,
            dead_id=dead_id,
            waiting=waiting,
            waiting_since=since,
        )
        for _, tier, tenant, key, number, by, dead_id, waiting, since in rows
    ]
    return BlockedKeys(total=rows[0][0] if rows else 0, longest=tuple(keys))


def lock_of(key: Key) -> int:
    """The number of the advisory lock that stands for *key*. Two keys that share one only take turns."""
    name = "\0".join(("fairpost.key", key.group, key.tenant, str(int(key.tier)), key.key))
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big", signed=True)


async def _turn(connection: Connection, key: Key, event: Event, horizon: timedelta, *, lock: int | None) -> Turn:
    values = {**_names(key), "lock": lock, "event": event.id}
    row = await (await connection.execute(_READ, values)).fetchone()
    assert row is not None  # noqa: S101 - a function's result
    return await _judge(connection, key, event, horizon, row)


async def _judge(connection: Connection, key: Key, event: Event, horizon: timedelta, read: TupleRow) -> Turn:
    assert event.ordering is not None  # noqa: S101 - key_of was asked before
    is_ours, number, now, group_started_at = read
    if not is_ours:
        return Turn.BUSY
    position = Position(number=number, now=now, group_started_at=group_started_at)
    turn = decide(event.ordering, position, ledger_time=event.ledger_time, horizon=horizon)
    if turn is Turn.ORPHAN and await _is_here(connection, key, event.ordering.number - 1):
        return Turn.EARLY
    return turn


async def _is_here(connection: Connection, key: Key, number: int) -> bool:
    """Whether event *number* of *key* waits as a work row, or is an open dead letter."""
    cursor = await fresh(connection, _IS_HERE, {**_names(key), "number": number})
    return await cursor.fetchone() is not None


def _names(key: Key) -> dict[str, object]:
    return {"group": key.group, "tenant": key.tenant, "tier": int(key.tier), "key": key.key}


_READ: Final = """
    SELECT * FROM consumer.read_key(
        %(group)s, %(tenant)s, %(tier)s::smallint, %(key)s, %(lock)s::bigint, %(event)s::uuid
    )
"""

_READ_ALL: Final = """
    SELECT k.* FROM unnest(
        %(groups)s::text[], %(tenants)s::text[], %(tiers)s::smallint[], %(keys)s::text[], %(locks)s::bigint[],
        %(events)s::uuid[]
    ) WITH ORDINALITY AS a (group_name, tenant, tier, ordering_key, lock, event_id, place)
    CROSS JOIN LATERAL consumer.read_key(
        a.group_name, a.tenant, a.tier, a.ordering_key, a.lock, a.event_id
    ) k
    ORDER BY a.place
"""

_IS_HERE: Final = """
    SELECT FROM consumer.work
    WHERE group_name = %(group)s AND tenant = %(tenant)s AND tier = %(tier)s AND ordering_key = %(key)s
      AND key_number = %(number)s
    UNION ALL
    SELECT FROM consumer.dead
    WHERE group_name = %(group)s AND tenant = %(tenant)s AND tier = %(tier)s AND ordering_key = %(key)s
      AND key_number = %(number)s AND resolution IS NULL
    LIMIT 1
"""

_ADVANCE: Final = """
    INSERT INTO consumer.key_position AS p (group_name, tenant, tier, ordering_key, number)
    SELECT %(group)s, %(tenant)s, %(tier)s, %(key)s, %(number)s
    WHERE NOT (%(unless_dead)s AND EXISTS (
        SELECT FROM consumer.dead
        WHERE group_name = %(group)s AND tenant = %(tenant)s AND tier = %(tier)s AND ordering_key = %(key)s
          AND key_number = %(number)s AND resolution IS NULL
    ))
    ON CONFLICT (group_name, tenant, tier, ordering_key) DO UPDATE
        SET number = excluded.number, updated_at = statement_timestamp()
        WHERE p.number < excluded.number
"""

# Of each key only the lowest waiting number is looked at: the others are behind it.
_SWEEP: Final = """
    WITH RECURSIVE head AS (
        (SELECT tenant, tier, ordering_key, key_number, event_id, due_at FROM consumer.work
         WHERE group_name = %(group)s AND reason = 'waiting' AND ordering_key IS NOT NULL
         ORDER BY tenant, tier, ordering_key, key_number LIMIT 1)
        UNION ALL
        SELECT next.* FROM head CROSS JOIN LATERAL (
            SELECT w.tenant, w.tier, w.ordering_key, w.key_number, w.event_id, w.due_at FROM consumer.work w
            WHERE w.group_name = %(group)s AND w.reason = 'waiting' AND w.ordering_key IS NOT NULL
              AND (w.tenant, w.tier, w.ordering_key) > (head.tenant, head.tier, head.ordering_key)
            ORDER BY w.tenant, w.tier, w.ordering_key, w.key_number LIMIT 1
        ) next
    ), ready AS MATERIALIZED (
        SELECT head.event_id FROM head CROSS JOIN LATERAL (
            SELECT p.number FROM consumer.key_position p
            WHERE p.group_name = %(group)s AND p.tenant = head.tenant AND p.tier = head.tier
              AND p.ordering_key = head.ordering_key OFFSET 0
        ) p
        WHERE head.due_at > statement_timestamp() AND p.number >= head.key_number - 1
    ), taken AS MATERIALIZED (
        SELECT w.event_id FROM ready CROSS JOIN LATERAL (
            SELECT w.event_id FROM consumer.work w
            WHERE w.group_name = %(group)s AND w.event_id = ready.event_id AND w.reason = 'waiting' AND w.owner IS NULL
              AND w.due_before_pause IS NULL
            FOR UPDATE SKIP LOCKED
        ) w
    )
    UPDATE consumer.work SET due_at = statement_timestamp()
    WHERE group_name = %(group)s AND event_id = ANY(ARRAY(SELECT event_id FROM taken))
"""

_BLOCKED: Final = """
    WITH waiting AS (
        SELECT tier, tenant, ordering_key, count(*) AS waiting, min(key_number) AS first, min(created_at) AS since
        FROM consumer.work WHERE group_name = %(group)s AND reason = 'waiting' AND ordering_key IS NOT NULL
        GROUP BY tier, tenant, ordering_key
    ), held AS (
        SELECT tier, tenant, ordering_key, min(key_number) AS first, min(dead_at) AS since
        FROM consumer.dead d
        WHERE group_name = %(group)s AND resolution IS NULL AND ordering_key IS NOT NULL
        GROUP BY tier, tenant, ordering_key
    ), blocked AS (
        SELECT tier, tenant, ordering_key, coalesce(waiting.waiting, 0) AS waiting,
               coalesce(p.number + 1, least(waiting.first - 1, held.first)) AS number,
               coalesce(waiting.since, held.since) AS since
        FROM waiting FULL JOIN held USING (tier, tenant, ordering_key)
        LEFT JOIN LATERAL (
            SELECT number FROM consumer.key_position p
            WHERE p.group_name = %(group)s AND p.tenant = coalesce(waiting.tenant, held.tenant)
              AND p.tier = coalesce(waiting.tier, held.tier)
              AND p.ordering_key = coalesce(waiting.ordering_key, held.ordering_key)
        ) p ON true
        WHERE waiting.waiting IS NOT NULL OR p.number IS NULL OR held.first > p.number
    )
    SELECT count(*) OVER (), b.tier, b.tenant, b.ordering_key, b.number,
           CASE WHEN d.id IS NOT NULL THEN 'dead' ELSE coalesce(w.reason, 'elsewhere') END,
           d.id, b.waiting, b.since
    FROM blocked b
    LEFT JOIN LATERAL (
        SELECT id FROM consumer.dead d
        WHERE d.group_name = %(group)s AND d.tenant = b.tenant AND d.tier = b.tier AND d.ordering_key = b.ordering_key
          AND d.key_number = b.number AND d.resolution IS NULL LIMIT 1
    ) d ON true
    LEFT JOIN LATERAL (
        SELECT reason FROM consumer.work w
        WHERE w.group_name = %(group)s AND w.tenant = b.tenant AND w.tier = b.tier AND w.ordering_key = b.ordering_key
          AND w.key_number = b.number LIMIT 1
    ) w ON true
    ORDER BY b.since LIMIT %(limit)s
"""
