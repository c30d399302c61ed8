"""What operators do with dead letters: handle them again, or let them go.

Each call is one transaction with one audit row, and bodies never leave the database for it. No dead letter is
locked before its work row is written, as a process that buries an event writes in that order too; what changed
in between makes the call fail as a whole.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Final
from uuid import UUID

from psycopg import sql
from psycopg.types.json import Jsonb

from consumer.decide.horizon import slot_of
from consumer.store import stored as stored_message
from consumer.store.dead_list import FITS, DeadFilter, parameters
from consumer.store.plans import fresh
from consumer.store.pruning import read_ring
from consumer.store.stored import Connection
from outbox.errors import TransientError

_BUSY: Final = "a process is handling this event; try again when it is through"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A dead letter that stays as it is, and why, in one sentence."""

    id: int
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """What a call did: the ids of the dead letters that are resolved now, and those that were refused."""

    ids: tuple[int, ...]
    refused: tuple[Refusal, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Open:
    id: int
    event_id: UUID | None
    ledger_at: datetime | None
    handlers: tuple[str, ...]
    is_keyed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Again:
    """*handlers* as a work row has them."""

    letter: _Open
    event_id: UUID
    handlers: tuple[str, ...] | None


async def replay(
    connection: Connection, dead_filter: DeadFilter, *, actor: str, limit: int = 1000, per_s: float | None = None
) -> Resolved:
    """Have the open dead letters that fit handled again, oldest first, from their first attempt on.

    Each becomes a work row with the reason ``replay``; the process that takes it verifies it like any delivery.
    Refused is what the ledger says is done, what carries no event id, and what a process is handling.

    Args:
        actor: who asks, for the audit.
        limit: how many at most; call again for more.
        per_s: how many become due each second; all at once if not given.

    Raises:
        TransientError: one of them changed meanwhile; nothing was done.
    """
    async with connection.transaction():
        letters = await _open(connection, dead_filter, limit)
        done = await _done(connection, dead_filter.group, letters)
        again, refused = _split(letters, done)
        taken = await _make_work(connection, again, per_s)
        refused += [Refusal(id=one.letter.id, because=_BUSY) for one in again if one.event_id not in taken]
        resolved = [one.letter for one in again if one.event_id in taken]
        await _resolve(connection, resolved, "replayed", actor)
        return await _audited(connection, dead_filter, "dead.replay", actor, resolved, refused)


async def discard(connection: Connection, dead_filter: DeadFilter, *, actor: str, limit: int = 1000) -> Resolved:
    """Let the open dead letters that fit go: they are never handled, and the keys they held move on.

    A keyed one becomes a void work row, which passes the gate in its turn like the event would have; where
    other handlers of the event wait, their row does that. Refused is what a process is handling.

    Raises:
        TransientError: one of them changed meanwhile; nothing was done.
    """
    async with connection.transaction():
        letters = await _open(connection, dead_filter, limit)
        keyed = [letter.id for letter in letters if letter.is_keyed and letter.event_id is not None]
        cursor = await connection.execute(_MAKE_VOIDS, {"ids": keyed})
        void = {event_id for (event_id,) in await cursor.fetchall()}
        busy = [letter for letter in letters if letter.id in set(keyed) and letter.event_id not in void]
        gone = [letter for letter in letters if letter not in busy]
        await _resolve(connection, gone, "discarded", actor)
        refused = [Refusal(id=letter.id, because=_BUSY) for letter in busy]
        return await _audited(connection, dead_filter, "dead.discard", actor, gone, refused)


async def _open(connection: Connection, dead_filter: DeadFilter, limit: int) -> list[_Open]:
    await connection.execute(_TAKE_TURNS)
    cursor = await fresh(connection, _OPEN, {**parameters(dead_filter), "limit": limit})
    return [
        _Open(id=id_, event_id=event_id, ledger_at=ledger_at, handlers=tuple(handlers), is_keyed=is_keyed)
        for id_, event_id, ledger_at, handlers, is_keyed in await cursor.fetchall()
    ]


async def _done(connection: Connection, group: str, letters: Iterable[_Open]) -> frozenset[tuple[UUID, str]]:
    """Every event and handler of *letters* that the ledger calls done or skipped."""
    ring = await read_ring(connection)
    by_slot = sorted(
        (slot_of(letter.ledger_at, ring), letter.event_id)
        for letter in letters
        if letter.ledger_at is not None and letter.event_id is not None
    )
    done: set[tuple[UUID, str]] = set()
    for slot, found in groupby(by_slot, key=lambda pair: pair[0]):
        query = _DONE.format(ledger=sql.Identifier("consumer", f"ledger_{slot}"))
        cursor = await connection.execute(query, {"group": group, "events": [event_id for _, event_id in found]})
        done.update([(event_id, handler) for event_id, handler in await cursor.fetchall()])
    return frozenset(done)


def _split(letters: Iterable[_Open], done: frozenset[tuple[UUID, str]]) -> tuple[list[_Again], list[Refusal]]:
    again, refused = [], []
    for letter in letters:
        if letter.event_id is None:
            refused.append(Refusal(id=letter.id, because="its envelope could not be read: there is no event"))
            continue
        left = tuple(name for name in letter.handlers if (letter.event_id, name) not in done)
        if letter.handlers and not left:
            refused.append(Refusal(id=letter.id, because="the ledger says that it was handled meanwhile"))
            continue
        again.append(_Again(letter=letter, event_id=letter.event_id, handlers=left or None))
    return again, refused


async def _make_work(connection: Connection, again: Sequence[_Again], per_s: float | None) -> frozenset[UUID]:
    rows = [
        {
            "id": one.letter.id,
            "handlers": None if one.handlers is None else list(one.handlers),
            "delay_s": 0.0 if per_s is None else place / per_s,
        }
        for place, one in enumerate(again)
    ]
    cursor = await connection.execute(_MAKE_WORK, {"rows": Jsonb(rows)})
    return frozenset([event_id for (event_id,) in await cursor.fetchall()])


async def _resolve(connection: Connection, letters: Sequence[_Open], resolution: str, actor: str) -> None:
    rows = [{"id": letter.id, "handlers": list(letter.handlers)} for letter in letters]
    cursor = await connection.execute(_RESOLVE, {"rows": Jsonb(rows), "resolution": resolution, "actor": actor})
    if cursor.rowcount != len(letters):
        raise TransientError(
            f"dead letters: want {len(letters)} unchanged, got {cursor.rowcount}; nothing was done, try again"
        )


async def _audited(
    connection: Connection,
    dead_filter: DeadFilter,
    action: str,
    actor: str,
    letters: Sequence[_Open],
    refused: Sequence[Refusal],
) -> Resolved:
    resolved = Resolved(ids=tuple(letter.id for letter in letters), refused=tuple(refused))
    detail = Jsonb({"ids": list(resolved.ids), "refused": {str(one.id): one.because for one in refused}})
    await connection.execute(_AUDIT, {"actor": actor, "action": action, "group": dead_filter.group, "detail": detail})
    return resolved


# One operator at a time: two that replay the same letters would otherwise wait for each other.
_TAKE_TURNS: Final = "SELECT pg_advisory_xact_lock(hashtextextended('fairpost.dead', 0))"

_OPEN: Final = (
    sql.SQL("""
    SELECT d.id, d.event_id, d.ledger_at, d.handlers, d.ordering_key IS NOT NULL FROM consumer.dead d
    WHERE {fits} AND d.resolution IS NULL ORDER BY d.id LIMIT %(limit)s
    """)
    .format(fits=FITS)
    .as_bytes()
)

_DONE: Final = sql.SQL("""
    SELECT event_id, handler FROM {ledger}
    WHERE group_name = %(group)s AND event_id = ANY(%(events)s) AND state IN ('done', 'skipped')
""")

_MESSAGE: Final = {
    "columns": sql.SQL(", ").join(map(sql.Identifier, stored_message.COLUMNS.split(", "))),
    "of_row": sql.SQL(", ").join(sql.Identifier("d", column) for column in stored_message.COLUMNS.split(", ")),
}

# Another handler of the event may have a work row of its own: it is tried again together with those that died.
_MAKE_WORK: Final = (
    sql.SQL("""
    INSERT INTO consumer.work AS w (group_name, event_id, reason, due_at, attempts, handlers, {columns})
    SELECT d.group_name, d.event_id, 'replay', clock_timestamp() + make_interval(secs => r.delay_s), 0, r.handlers,
           {of_row}
    FROM jsonb_to_recordset(%(rows)s) AS r (id bigint, handlers text[], delay_s double precision)
    JOIN consumer.dead d USING (id)
    ORDER BY d.event_id
    ON CONFLICT (group_name, event_id) DO UPDATE SET
        reason = 'replay', due_at = excluded.due_at, attempts = 0, last_error = NULL,
        handlers = CASE WHEN w.handlers IS NULL OR excluded.handlers IS NULL THEN NULL
            ELSE ARRAY(SELECT name FROM unnest(w.handlers || excluded.handlers) name GROUP BY name ORDER BY name) END
    WHERE w.owner IS NULL
    RETURNING w.event_id
    """)
    .format(**_MESSAGE)
    .as_bytes()
)

# Where other handlers of the event have a work row, it stays as it is, but locked: who claims it afterwards sees
# that the dead letter is gone, and moves the key on.
_MAKE_VOIDS: Final = (
    sql.SQL("""
    INSERT INTO consumer.work AS w (group_name, event_id, reason, due_at, attempts, handlers, {columns})
    SELECT d.group_name, d.event_id, 'replay', clock_timestamp(), 0, '{{}}', {of_row}
    FROM consumer.dead d WHERE d.id = ANY(%(ids)s)
    ORDER BY d.event_id
    ON CONFLICT (group_name, event_id) DO UPDATE SET due_at = w.due_at WHERE w.owner IS NULL
    RETURNING w.event_id
    """)
    .format(**_MESSAGE)
    .as_bytes()
)

_RESOLVE: Final = """
    UPDATE consumer.dead d SET resolution = %(resolution)s, resolved_at = clock_timestamp(), resolved_by = %(actor)s
    FROM jsonb_to_recordset(%(rows)s) AS r (id bigint, handlers text[])
    WHERE d.id = r.id AND d.resolution IS NULL AND d.handlers = r.handlers
"""

_AUDIT: Final = """
    INSERT INTO consumer.audit (actor, action, group_name, detail)
    VALUES (%(actor)s, %(action)s, %(group)s, %(detail)s)
"""
