"""Claims of leased handlers: taken and completed by the batch, with no transaction open in between.

A claim is the ledger's row in the state *running*, with a fencing token that no earlier claim of it had and the
incarnation of the process that took it. It holds while that incarnation's lease does: after that anyone may take it
over (it was **abandoned**), and whoever wakes with the old token completes nothing. While the claim of a keyed event
runs, ``consumer.key_claim`` keeps the key, and the gate reads that.

Batches are written in the order of slots, events and handlers, and keys in theirs, whoever writes them: two batches
that share rows never wait for each other in a ring.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from itertools import groupby
from operator import itemgetter
from typing import Final, LiteralString, TypeAlias
from uuid import UUID

import psycopg
from psycopg import sql

from consumer.decide.horizon import Ring, slot_of
from consumer.decide.order import Turn
from consumer.store import gate, results, work
from consumer.store.gate import Key, key_of
from consumer.store.ledger import ABANDONED, State
from consumer.store.plans import fresh
from consumer.store.stored import Connection
from outbox.event import Event
from outbox.records import record
from outbox.shell.arrays import numbers, texts, uuids

_FIRST: Final = itemgetter(0)


@record
class Ask:
    """What is to be claimed. *is_stored* and *is_replay* as in ``ledger.Claim``."""

    event: Event
    handler: str
    is_stored: bool = False
    is_replay: bool = False


@record
class Taken:
    """A claim that *incarnation* holds. *attempt* counts from 1; a claim that was taken over counts no new one.

    *unended* says how often this attempt was begun, and ended without a word of how it went: the process died or lost
    its lease, or the database was away. After such a start the effect may be there or not.
    """

    attempt: int
    token: int
    incarnation: UUID
    unended: int


#: What came of an ``Ask``: the claim, the state that the ledger has it in, or that it is not its turn.
Answer: TypeAlias = Taken | State | Turn


@record
class Completion:
    """A claim whose handler is done. *result* is JSON text to keep.

    *is_last*: with it every handler of the event is done, so its key moves on (*unless_dead* as in ``gate.advance``)
    and its work row goes, if *owner* has one.
    """

    event: Event
    handler: str
    claim: Taken
    result: str | None = None
    is_last: bool = True
    unless_dead: bool = False
    owner: UUID | None = None

    @property
    def is_plain(self) -> bool:
        """Whether the ledger's row is all there is to write."""
        return self.event.ordering is None and self.owner is None and self.result is None


class Claims:
    """The claims of one group. *connection* is one with autocommit."""

    def __init__(self, *, group: str, ring: Ring, horizon: timedelta) -> None:
        self._group = group
        self._ring = ring
        self._horizon = horizon
        self._take = {slot: _compose(_TAKE, group, slot) for slot in range(ring.slots)}
        self._states = {slot: _compose(_STATES, group, slot) for slot in range(ring.slots)}
        self._complete = {slot: _compose(_COMPLETE, group, slot) for slot in range(ring.slots)}

    async def take(self, connection: Connection, asks: Sequence[Ask], *, incarnation: UUID) -> list[Answer]:
        """Claim *asks* for *incarnation*; the answers, in their order. Committed when this returns.

        Taken is what nobody has done or has, what is abandoned, and what *incarnation* itself had claimed: the answer
        to that was lost, or the attempt was given up, since no process handles an event twice at once.
        """
        answers: dict[int, Answer] = {}
        free = [place for place, ask in enumerate(asks) if ask.event.ordering is None]
        if free:
            answers |= await self._take_each(connection, asks, free, incarnation)
        keyed = [place for place, ask in enumerate(asks) if ask.event.ordering is not None]
        if keyed:
            answers |= await self._take_keyed(connection, asks, keyed, incarnation)
        return [answers[place] for place in range(len(asks))]

    async def take_patiently(self, connection: Connection, ask: Ask, *, incarnation: UUID, patience_s: float) -> Answer:
        """As ``take`` for one alone; RUNNING if another transaction keeps its row for longer than *patience_s*."""
        try:
            async with connection.transaction():
                await connection.execute("SELECT set_config('lock_timeout', %s, true)", (f"{patience_s * 1000:.0f}ms",))
                (answer,) = await self.take(connection, [ask], incarnation=incarnation)
        except psycopg.errors.LockNotAvailable:
            return State.RUNNING
        return answer

    async def complete(self, connection: Connection, completions: Sequence[Completion]) -> frozenset[int]:
        """Record *completions*; the tokens of those that were. Committed when this returns.

        Missing is a claim that is another's by now, or whose incarnation's lease ran out: it is **fenced**, and
        nothing of it was written.

        Raises:
            LeaseLost: a work row is another's by now; nothing was written.
        """
        if all(one.is_plain for one in completions):
            return await self._complete_each(connection, completions)
        async with connection.transaction():
            tokens = await self._complete_each(connection, completions)
            await self._close(connection, [one for one in completions if one.claim.token in tokens])
        return tokens

    async def _take_each(
        self, connection: Connection, asks: Sequence[Ask], places: Sequence[int], incarnation: UUID
    ) -> dict[int, Answer]:
        answers: dict[int, Answer] = {}
        ordered = sorted([(*self._order(asks[place]), place) for place in places])
        for slot, found in groupby(ordered, _FIRST):
            of_slot = [(place, asks[place]) for *_, place in found]
            events = uuids(ask.event.id for _, ask in of_slot)
            values = {
                "events": events,
                "handlers": texts(ask.handler for _, ask in of_slot),
                "tenants": texts(ask.event.tenant for _, ask in of_slot),
                "stored": uuids(ask.event.id for _, ask in of_slot if ask.is_stored),
                "replays": uuids(ask.event.id for _, ask in of_slot if ask.is_replay),
                "incarnation": incarnation,
            }
            rows = await (await connection.execute(self._take[slot], values)).fetchall()
            taken = {
                (event.int, handler): Taken(attempt=attempt, token=token, incarnation=incarnation, unended=unended)
                for event, handler, attempt, token, unended in rows
            }
            states = await self._states_of(connection, slot, events) if len(taken) < len(of_slot) else {}
            for place, ask in of_slot:
                pair = (ask.event.id.int, ask.handler)
                answers[place] = taken.get(pair) or states.get(pair, State.RUNNING)
        return answers

    async def _states_of(self, connection: Connection, slot: int, events: str) -> dict[tuple[int, str], State]:
        """What the ledger says of *events*, not all of which were taken."""
        cursor = await fresh(connection, self._states[slot], {"events": events})
        return {(event.int, handler): State(state) for event, handler, state in await cursor.fetchall()}

    async def _take_keyed(
        self, connection: Connection, asks: Sequence[Ask], places: Sequence[int], incarnation: UUID
    ) -> dict[int, Answer]:
        answers: dict[int, Answer] = {}
        of_key: dict[Key, int] = {}
        for place in places:
            key = key_of(self._group, asks[place].event)
            if key in of_key:
                answers[place] = Turn.BUSY
            else:
                of_key[key] = place
        # Its locks last as long as it does, which is how claims of one key see each other.
        async with connection.transaction():
            entered = list(of_key.values())
            events = [asks[place].event for place in entered]
            turns = await gate.enter_all(connection, self._group, events, horizon=self._horizon)
            answers |= {place: turn for place, turn in zip(entered, turns, strict=True) if not turn.may_run}
            may_run = [place for place, turn in zip(entered, turns, strict=True) if turn.may_run]
            answers |= await self._take_each(connection, asks, may_run, incarnation)
            held = sorted((key, place) for key, place in of_key.items() if isinstance(answers[place], Taken))
            await self._hold(connection, held, asks, answers)
        return answers

    async def _hold(
        self,
        connection: Connection,
        held: Sequence[tuple[Key, int]],
        asks: Sequence[Ask],
        answers: Mapping[int, Answer],
    ) -> None:
        claims = [(key, asks[place].event.id, answers[place]) for key, place in held]
        values = [
            (key.group, key.tenant, int(key.tier), key.key, event, claim.token, claim.incarnation)
            for key, event, claim in claims
            if isinstance(claim, Taken)
        ]
        if values:
            await connection.cursor().executemany(_HOLD, values)

    async def _complete_each(self, connection: Connection, completions: Sequence[Completion]) -> frozenset[int]:
        tokens: set[int] = set()
        ordered = sorted([(*self._order(one), place) for place, one in enumerate(completions)])
        for slot, found in groupby(ordered, _FIRST):
            of_slot = [completions[place] for *_, place in found]
            values = {
                "events": uuids(one.event.id for one in of_slot),
                "handlers": texts(one.handler for one in of_slot),
                "tenants": texts(one.event.tenant for one in of_slot),
                "attempts": numbers(one.claim.attempt for one in of_slot),
                "tokens": numbers(one.claim.token for one in of_slot),
                "incarnations": uuids(one.claim.incarnation for one in of_slot),
            }
            rows = await (await connection.execute(self._complete[slot], values)).fetchall()
            tokens.update(token for (token,) in rows)
        return frozenset(tokens)

    async def _close(self, connection: Connection, completions: Sequence[Completion]) -> None:
        """What a completion moves beside the ledger, in the order in which every transaction writes tables."""
        keyed = [one for one in completions if one.event.ordering is not None]
        await release_keys(connection, self._group, {one.claim.token: one.event for one in keyed})
        for unless_dead in (False, True):
            passed = [
                (key_of(self._group, one.event), one.event.ordering.number)
                for one in keyed
                if one.is_last and one.event.ordering is not None and one.unless_dead is unless_dead
            ]
            await gate.advance(connection, passed, unless_dead=unless_dead)
        for owner in sorted({one.owner for one in completions if one.owner is not None and one.is_last}):
            mine = [one.event.id for one in completions if one.owner == owner and one.is_last]
            await work.finish(connection, self._group, mine, owner=owner)
        kept = [one for one in completions if one.result is not None]
        for one in sorted(kept, key=lambda one: (one.event.id, one.handler)):
            assert one.result is not None  # noqa: S101 - it was looked at
            await results.put(connection, self._group, one.event, handler=one.handler, result=one.result)

    def _order(self, of: Ask | Completion) -> tuple[int, int, str]:
        """The slot of its ledger's row, and where that is written among others: as PostgreSQL sorts its key."""
        return slot_of(of.event.ledger_time, self._ring), of.event.id.int, of.handler


async def release_keys(connection: Connection, group: str, claims: Mapping[int, Event]) -> None:
    """Let the keys go that the claims with those tokens held for their events, in the caller's transaction.

    Call it after the ledger's rows and before ``gate.advance``.
    """
    keyed = sorted((key_of(group, event), token) for token, event in claims.items() if event.ordering is not None)
    if keyed:
        values = [(key.group, key.tenant, int(key.tier), key.key, token) for key, token in keyed]
        await connection.cursor().executemany(_RELEASE, values)


async def forget_keys(connection: Connection, group: str) -> None:
    """Remove what claims of processes that are gone held; nobody minds it any more. Passes over what is in use."""
    await fresh(connection, _FORGET, {"group": group})


def _compose(query: LiteralString, group: str, slot: int) -> bytes:
    return (
        sql.SQL(query)
        .format(
            ledger=sql.Identifier("consumer", f"ledger_{slot}"),
            slot=sql.Literal(slot),
            group=sql.Literal(group),
            abandoned=sql.SQL(ABANDONED),
        )
        .as_bytes(None)
    )


# The rows come sorted and are locked in that order, whether they are there already or not. Which of them came from a
# work row stands in a list of its own: a conflict sees what would have been written, and nothing else of its source.
_TAKE: Final[LiteralString] = """
    INSERT INTO {ledger} AS l (slot, group_name, event_id, handler, tenant, state, attempts, token, incarnation)
    SELECT {slot}, {group}, a.event_id, a.handler, a.tenant, 'running', 1, nextval('consumer.token'), %(incarnation)s
    FROM unnest(%(events)s::uuid[], %(handlers)s::text[], %(tenants)s::text[]) AS a (event_id, handler, tenant)
    ON CONFLICT (event_id, group_name, handler) DO UPDATE SET
        state = 'running', token = excluded.token, incarnation = excluded.incarnation,
        updated_at = statement_timestamp(),
        attempts = CASE WHEN l.state = 'running' THEN l.attempts
            WHEN l.event_id = ANY(%(replays)s::uuid[]) THEN 1 ELSE l.attempts + 1 END,
        unended = CASE WHEN l.state = 'running' THEN l.unended + 1 ELSE 0 END
    WHERE (l.state = 'retry' AND l.event_id = ANY(%(stored)s::uuid[]))
       OR (l.state = 'dead' AND l.event_id = ANY(%(replays)s::uuid[]))
       OR (l.state = 'running' AND l.token < excluded.token AND (l.incarnation = excluded.incarnation OR {abandoned}))
    RETURNING event_id, handler, attempts, token, unended
"""

_STATES: Final[LiteralString] = """
    SELECT event_id, handler, state FROM {ledger} WHERE event_id = ANY(%(events)s::uuid[]) AND group_name = {group}
"""

# An insert that always meets its row: its conflict is what locks the rows in the order they come in, by the index.
_COMPLETE: Final[LiteralString] = """
    INSERT INTO {ledger} AS l (slot, group_name, event_id, handler, tenant, state, attempts, token, incarnation)
    SELECT {slot}, {group}, a.event_id, a.handler, a.tenant, 'done', a.attempts, a.token, a.incarnation
    FROM unnest(
        %(events)s::uuid[], %(handlers)s::text[], %(tenants)s::text[], %(attempts)s::smallint[], %(tokens)s::bigint[],
        %(incarnations)s::uuid[]
    ) AS a (event_id, handler, tenant, attempts, token, incarnation)
    WHERE EXISTS (
        SELECT FROM consumer.incarnation i WHERE i.id = a.incarnation AND i.expires_at > clock_timestamp()
    )
    ON CONFLICT (event_id, group_name, handler) DO UPDATE SET state = 'done', updated_at = statement_timestamp()
    WHERE l.state = 'running' AND l.token = excluded.token
    RETURNING token
"""

_HOLD: Final = """
    INSERT INTO consumer.key_claim (group_name, tenant, tier, ordering_key, event_id, token, incarnation)
    VALUES (%s, %s, %s, %s, %s, %s, %s)
    ON CONFLICT (group_name, tenant, tier, ordering_key) DO UPDATE
        SET event_id = excluded.event_id, token = excluded.token, incarnation = excluded.incarnation
"""

_FORGET: Final = """
    DELETE FROM consumer.key_claim WHERE (group_name, tenant, tier, ordering_key) IN (
        SELECT group_name, tenant, tier, ordering_key FROM consumer.key_claim c
        WHERE group_name = %(group)s AND NOT EXISTS (SELECT FROM consumer.incarnation i WHERE i.id = c.incarnation)
        FOR UPDATE OF c SKIP LOCKED
    )
"""

_RELEASE: Final = """
    DELETE FROM consumer.key_claim
    WHERE group_name = %s AND tenant = %s AND tier = %s AND ordering_key = %s AND token = %s
"""
