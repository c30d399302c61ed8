"""How far behind the relay is, for whom and why: values first, text in ``status_text``. No payloads."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, LiteralString

import psycopg

from outbox.event import Tier
from outbox.shell.words import counted, in_utc
from relay.decide.shares import Peer, fair_share
from relay.log import slots, store
from relay.log.replay_requests import Request, requests
from relay.log.rows import TIERS

_ASK_S: Final = 60.0
_DAY_S: Final = 86_400.0
_REPLAYS_MAX: Final = 1_000

_NOW: Final[LiteralString] = "SELECT clock_timestamp()"
_GROUPS: Final[LiteralString] = "SELECT group_name, started_at FROM outbox.consumer_group ORDER BY group_name"

# Unpublished to a group is what its lane's stream has not passed, or what its bucket's base does not show.
_UNPUBLISHED: Final[LiteralString] = """
FROM outbox.event e
JOIN outbox.bucket b USING (bucket)
LEFT JOIN outbox.stream s ON s.group_name = b.group_name AND s.tier = e.tier AND s.tenant = e.tenant
WHERE e.xid >= (
        SELECT least(
            (SELECT pg_snapshot_xmin(lo) FROM outbox.bucket ORDER BY 1 LIMIT 1),
            (SELECT pg_snapshot_xmin(lo) FROM outbox.stream ORDER BY 1 LIMIT 1)))
  AND CASE WHEN s.tenant IS NULL THEN NOT pg_visible_in_snapshot(e.xid, b.lo)
           ELSE NOT pg_visible_in_snapshot(e.xid, s.hi)
             OR NOT pg_visible_in_snapshot(e.xid, s.lo) AND e.seq > s.after END"""
_LAG: Final[LiteralString] = f"""
SELECT b.group_name, e.tier, count(*), extract(epoch FROM clock_timestamp() - min(e.ledger_at))::float8,
       count(DISTINCT e.tenant){_UNPUBLISHED}
GROUP BY b.group_name, e.tier ORDER BY b.group_name, e.tier"""  # noqa: S608 (its parts are constants of this module)
_OF_TENANT: Final[LiteralString] = f"""
SELECT b.group_name, e.tier, e.type, count(*), min(e.ledger_at){_UNPUBLISHED} AND e.tenant = %s
GROUP BY b.group_name, e.tier, e.type ORDER BY b.group_name, e.tier, e.type"""
_HAS_LOG: Final[LiteralString] = "SELECT WHERE to_regclass('outbox.event') IS NOT NULL"

_STREAMS: Final[LiteralString] = "SELECT group_name, tier, count(*) FROM outbox.stream GROUP BY 1, 2 ORDER BY 1, 2"

_RELAYS: Final[LiteralString] = """
SELECT token, is_able, (SELECT count(*) FROM outbox.bucket b WHERE b.token = r.token),
       extract(epoch FROM expires_at - clock_timestamp())::float8, (SELECT count(*) FROM outbox.bucket)
FROM outbox.relay r WHERE expires_at > clock_timestamp() ORDER BY token"""
_FREE: Final[LiteralString] = "SELECT count(*) FROM outbox.bucket WHERE expires_at <= clock_timestamp()"

_DEFERRED: Final[LiteralString] = """
SELECT group_name, state, category, count(*), count(DISTINCT tenant), min(first_failed_at), min(due_at)
FROM outbox.deferred GROUP BY 1, 2, 3 ORDER BY 1, 2, 3"""

_SCHEDULED: Final[LiteralString] = """
SELECT count(*), count(*) FILTER (WHERE due_at <= clock_timestamp()), min(due_at) FROM outbox.scheduled"""


_LEAVING: Final[LiteralString] = """
SELECT tenant, count(*), min(leaving_at) FROM outbox.lane WHERE leaving_at IS NOT NULL GROUP BY 1 ORDER BY 3, 1"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpublished:
    """Committed events of one tenant, tier and type that one group has not been sent, the oldest of *since*."""

    group: str
    tier: Tier
    type: str
    events: int
    since: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """Committed events of one tier that one group has not been sent. *oldest_s* is the age of the first of them."""

    tier: Tier
    events: int
    oldest_s: float
    tenants: int
    streams: int
    """Tenants of this tier that are behind on their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deferred:
    """Events that one group could not be sent, of one state (``retry``, ``dead`` or ``void``) and category."""

    state: str
    category: str
    events: int
    tenants: int
    since: datetime
    next_due_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStatus:
    """One reader of the log. A tier without lag has no entry."""

    group: str
    started_at: datetime
    lag: Sequence[Lag]
    deferred: Sequence[Deferred]


@dataclass(frozen=True, slots=True, kw_only=True)
class Relay:
    """One that lives, and the buckets it holds; *expires_in_s* is when others take them unless it renews its leases."""

    token: int
    buckets: int
    share: int
    """How many are fair for it."""
    is_able: bool
    """It reaches the broker."""
    expires_in_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A slot of the log with rows in it. *overdue* says why they are there still; None if it is not their time yet."""

    slot: int
    size_bytes: int
    oldest_s: float
    overdue: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """A tenant whose *queues* are being off-boarded. What is emitted for them waits until that has ended."""

    tenant: str
    queues: int
    since: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """Everything at *at*, the database's time."""

    at: datetime
    groups: Sequence[GroupStatus]
    relays: Sequence[Relay]
    free_buckets: int
    """Buckets that no relay holds: nothing of theirs is published."""
    scheduled: int
    scheduled_due: int
    next_scheduled_at: datetime | None
    slots: Sequence[Slot]
    leaving: Sequence[Leaving]
    replays: Sequence[Request]
    """Those that are under way, the last first."""


async def read(url: str, *, connect_s: float = 5.0) -> Status:
    """The status of the relays of the database at *url*, all of one moment.

    Raises:
        StoreUnavailable: it cannot be reached.
        SchemaMissing, ConfigError: it is not ours to use.
    """
    connection = await store.connect(url, store.ANY_PLAN, connect_s=connect_s, statement_s=_ASK_S)
    try:
        async with store.deadline(connection, _ASK_S), connection.transaction():
            await connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            return await _read(connection)
    finally:
        await store.close(connection)


def problems(status: Status, *, slow_s: float = 60.0) -> list[str]:
    """What somebody should look at, a sentence each; empty if all is well."""
    found = []
    waiting = sum(lag.events for group in status.groups for lag in group.lag)
    if status.free_buckets and not status.relays:
        found.append(f"no relay is running, with {counted(waiting, 'event')} waiting: start outbox-relay")
    elif status.free_buckets:
        found.append(f"{counted(status.free_buckets, 'bucket')} held by no relay")
    found += [
        f"slot {slot.slot} keeps events of {slot.oldest_s / _DAY_S:.1f} days ago: {slot.overdue}"
        for slot in status.slots
        if slot.overdue is not None
    ]
    found += [
        f"relay {relay.token} does not reach the broker; what it holds moves to those that do"
        for relay in status.relays
        if not relay.is_able
    ]
    found += [
        f"{one.tenant}: off-boarding {counted(one.queues, 'queue')} has not ended since"
        f" {in_utc(one.since)}, and its events wait: run outbox tenant offboard again, or with --keep"
        for one in status.leaving
        if (status.at - one.since).total_seconds() > slow_s
    ]
    for group in status.groups:
        found += [
            f"{group.group}: {counted(lag.events, f'{lag.tier.label} event')} of {counted(lag.tenants, 'tenant')}"
            f" waiting, the oldest for {lag.oldest_s:.0f} s"
            for lag in group.lag
            if lag.oldest_s > slow_s
        ]
        found += [
            f"{group.group}: {counted(one.events, 'event')} dead, not published ({one.category}):"
            f" outbox deferred list --group {group.group}"
            for one in group.deferred
            if one.state == "dead"
        ]
    return found


async def has_log(connection: psycopg.AsyncConnection[Any]) -> bool:
    """Whether the log is in this database: the consumer's tables may be in another."""
    return await (await connection.execute(_HAS_LOG)).fetchone() is not None


async def unpublished(connection: psycopg.AsyncConnection[Any], tenant: str) -> list[Unpublished]:
    """What each group was not sent yet of *tenant*; nothing where the log is in another database."""
    if not await has_log(connection):
        return []
    return [
        Unpublished(group=group, tier=TIERS[tier], type=event_type, events=events, since=since)
        for group, tier, event_type, events, since in await _all(connection, _OF_TENANT, tenant)
    ]


async def _read(connection: store.Connection) -> Status:
    lag = await _all(connection, _LAG)
    streams = {(group, tier): count for group, tier, count in await _all(connection, _STREAMS)}
    deferred = await _all(connection, _DEFERRED)
    groups = [
        GroupStatus(
            group=group,
            started_at=started_at,
            lag=[_lag(row, streams.get((group, row[1]), 0)) for row in lag if row[0] == group],
            deferred=[_deferred(row) for row in deferred if row[0] == group],
        )
        for group, started_at in await _all(connection, _GROUPS)
    ]
    relays = _relays(await _all(connection, _RELAYS))
    ((at,),) = await _all(connection, _NOW)
    ((free_buckets,),) = await _all(connection, _FREE)
    ((scheduled, scheduled_due, next_scheduled_at),) = await _all(connection, _SCHEDULED)
    return Status(
        at=at,
        groups=groups,
        relays=relays,
        free_buckets=free_buckets,
        scheduled=scheduled,
        scheduled_due=scheduled_due,
        next_scheduled_at=next_scheduled_at,
        slots=await _slots(connection),
        leaving=[
            Leaving(tenant=tenant, queues=queues, since=since)
            for tenant, queues, since in await _all(connection, _LEAVING)
        ],
        replays=[one for one in await requests(connection, limit=_REPLAYS_MAX) if one.ended_at is None],
    )


async def _slots(connection: store.Connection) -> list[Slot]:
    ring = await slots.read_ring(connection, within_s=_ASK_S)
    return [
        Slot(
            slot=one.slot,
            size_bytes=one.size_bytes,
            oldest_s=one.oldest_s,
            overdue=await slots.why_kept(connection, one, within_s=_ASK_S) if one.is_overdue(ring) else None,
        )
        for one in await slots.kept(connection, within_s=_ASK_S)
    ]


def _relays(rows: Sequence[tuple[Any, ...]]) -> list[Relay]:
    peers = [Peer(token=token, owned=owned, is_able=is_able) for token, is_able, owned, _, _ in rows]
    return [
        Relay(
            token=token,
            buckets=owned,
            share=fair_share(token, peers, buckets=buckets).target,
            is_able=is_able,
            expires_in_s=expires_in_s,
        )
        for token, is_able, owned, expires_in_s, buckets in rows
    ]


def _lag(row: tuple[Any, ...], streams: int) -> Lag:
    _, tier, events, oldest_s, tenants = row
    return Lag(tier=TIERS[tier], events=events, oldest_s=max(0.0, oldest_s), tenants=tenants, streams=streams)


def _deferred(row: tuple[Any, ...]) -> Deferred:
    _, state, category, events, tenants, since, next_due_at = row
    return Deferred(
        state=state, category=category, events=events, tenants=tenants, since=since, next_due_at=next_due_at
    )


async def _all(
    connection: psycopg.AsyncConnection[Any], query: LiteralString, *values: object
) -> list[tuple[Any, ...]]:
    return await (await connection.execute(query, values)).fetchall()
