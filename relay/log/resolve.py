"""What operators decide about deferred events: another try from the first attempt on, or none ever.

No relay need run, and none is waited for. What one has in hand at the moment is refused: it may be published
already, and only the relay will know. Rows are locked only while they are in nobody's hands, so no relay waits for
an operator either.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, LiteralString
from uuid import UUID

from outbox.naming import Lane
from relay.log.deferred_list import FITS, IS_CLAIMED, DeferredFilter, parameters
from relay.log.rows import TIERS
from relay.log.store import Connection

_BUSY: Final = "a relay is sending it at this moment, or somebody else decides about it; try again"
_GONE: Final = "its tenant was off-boarded, and a retry would make its queue again; discard it, or add --revive"

_CHOSEN: Final[LiteralString] = f"""
SELECT d.group_name, d.id, d.tier, d.tenant FROM outbox.deferred d WHERE {FITS}
ORDER BY d.first_failed_at, d.id LIMIT %(limit)s"""  # noqa: S608 (its parts are constants)

# Of a lane that stands again since, or never stood, nothing is said.
_OFF_BOARDED: Final[LiteralString] = """
SELECT DISTINCT a.group_name, a.detail->>'queue' FROM outbox.audit a
WHERE a.action = 'tenant.offboarded' AND a.group_name = ANY(%s::text[]) AND a.detail->>'tenant' = ANY(%s::text[])"""
_STANDING: Final[LiteralString] = """
SELECT group_name, tier, tenant FROM outbox.lane WHERE group_name = ANY(%s::text[]) AND tenant = ANY(%s::text[])"""

_FREE: Final[LiteralString] = f"""
WITH free AS MATERIALIZED (
    SELECT d.group_name, d.id
    FROM unnest(%(chosen_groups)s::text[], %(chosen_ids)s::uuid[]) AS c (group_name, id)
    JOIN outbox.deferred d ON d.group_name = c.group_name AND d.id = c.id
    WHERE {FITS} AND NOT {IS_CLAIMED}
    FOR UPDATE OF d SKIP LOCKED
)"""  # noqa: S608 (its parts are constants)

_RETRY: Final[LiteralString] = f"""{_FREE}
UPDATE outbox.deferred e
SET state = CASE e.state WHEN 'dead' THEN 'retry' ELSE e.state END, attempts = 0, due_at = clock_timestamp(),
    token = NULL
FROM free WHERE e.group_name = free.group_name AND e.id = free.id
RETURNING e.group_name, e.id"""  # noqa: S608 (its parts are constants)

# Whoever still has the event in hand, by a lease that ran out, can neither delete the void nor make an event of it
# again: the claim is gone. What makes a message too large is left out, so that a void can be sent.
_MAKE_VOIDS: Final[LiteralString] = f"""{_FREE}
UPDATE outbox.deferred e
SET state = 'void', attempts = 0, due_at = clock_timestamp(), token = NULL, payload = '', content_type = '',
    idempotency_key = NULL, actor = NULL, causation_id = NULL, correlation_id = NULL, traceparent = NULL,
    tracestate = NULL
FROM free WHERE e.group_name = free.group_name AND e.id = free.id AND e.ordering_key IS NOT NULL
RETURNING e.group_name, e.id"""  # noqa: S608 (its parts are constants)

_REMOVE: Final[LiteralString] = f"""{_FREE}
DELETE FROM outbox.deferred e USING free
WHERE e.group_name = free.group_name AND e.id = free.id AND e.ordering_key IS NULL
RETURNING e.group_name, e.id"""  # noqa: S608 (its parts are constants)


@dataclass(frozen=True, slots=True, kw_only=True)
class OfGroup:
    """One group's deferred event."""

    group: str
    id: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A deferred event that stays as it is, and why, in one sentence."""

    group: str
    id: UUID
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """What a call did: *removed* are gone, *voids* are published as such, *retried* as they are."""

    retried: tuple[OfGroup, ...] = ()
    removed: tuple[OfGroup, ...] = ()
    voids: tuple[OfGroup, ...] = ()
    refused: tuple[Refusal, ...] = ()


async def retry(
    connection: Connection, deferred_filter: DeferredFilter, *, limit: int, revives: bool = False
) -> Resolved:
    """Make up to *limit* that fit due now, oldest first, with no attempt counted. Inside the caller's transaction.

    Those of lanes that were off-boarded stay as they are, unless the call *revives* them: the relay makes a queue
    that it needs.
    """
    chosen = await _chosen(connection, deferred_filter, limit)
    gone = set() if revives else await _off_boarded(connection, chosen)
    wanted = {one: lane for one, lane in chosen.items() if lane not in gone}
    retried = await _write(connection, _RETRY, deferred_filter, wanted)
    refused = tuple(Refusal(group=one.group, id=one.id, because=_GONE) for one in chosen if one not in wanted)
    return Resolved(retried=retried, refused=_refused(wanted, retried) + refused)


async def discard(connection: Connection, deferred_filter: DeferredFilter, *, limit: int) -> Resolved:
    """Let up to *limit* that fit go, oldest first. Inside the caller's transaction.

    One with an ordering key leaves a void, which a relay publishes in its place; nothing else would move the key.
    """
    chosen = await _chosen(connection, deferred_filter, limit)
    voids = await _write(connection, _MAKE_VOIDS, deferred_filter, chosen)
    removed = await _write(connection, _REMOVE, deferred_filter, chosen)
    return Resolved(removed=removed, voids=voids, refused=_refused(chosen, voids + removed))


async def _chosen(connection: Connection, deferred_filter: DeferredFilter, limit: int) -> dict[OfGroup, Lane]:
    cursor = await connection.execute(_CHOSEN, {**parameters(deferred_filter), "limit": limit})
    return {
        OfGroup(group=group, id=event_id): Lane(group=group, tier=TIERS[tier], tenant=tenant)
        for group, event_id, tier, tenant in await cursor.fetchall()
    }


async def _off_boarded(connection: Connection, chosen: Mapping[OfGroup, Lane]) -> set[Lane]:
    """Which of their lanes were off-boarded and do not stand again since."""
    names = ([lane.group for lane in chosen.values()], [lane.tenant for lane in chosen.values()])
    gone = set(await (await connection.execute(_OFF_BOARDED, names)).fetchall())
    standing = set(await (await connection.execute(_STANDING, names)).fetchall())
    return {
        lane
        for lane in chosen.values()
        if (lane.group, lane.queue) in gone and (lane.group, int(lane.tier), lane.tenant) not in standing
    }


async def _write(
    connection: Connection, query: LiteralString, deferred_filter: DeferredFilter, chosen: Collection[OfGroup]
) -> tuple[OfGroup, ...]:
    values = {
        **parameters(deferred_filter),
        "chosen_groups": [one.group for one in chosen],
        "chosen_ids": [one.id for one in chosen],
    }
    return _keys(await (await connection.execute(query, values)).fetchall())


def _keys(rows: Sequence[tuple[Any, ...]]) -> tuple[OfGroup, ...]:
    return tuple(OfGroup(group=group, id=event_id) for group, event_id in rows)


def _refused(chosen: Collection[OfGroup], written: Sequence[OfGroup]) -> tuple[Refusal, ...]:
    done = set(written)
    return tuple(Refusal(group=one.group, id=one.id, because=_BUSY) for one in chosen if one not in done)
