"""All that there is of one tenant at this moment, by group, tier and type: where it waits, and what keeps it there."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Final

from consumer.decide.control import Pause, Scope
from consumer.status import plain
from consumer.store import control, directory, incarnation
from consumer.store.plans import fresh
from outbox.event import Tier
from outbox.shell.database import Connection
from outbox_admin.control import groups_of, meets
from relay.status import unpublished

Ready = Callable[[Sequence[str]], Awaitable[Mapping[str, int] | None]]
"""How many messages of each queue nobody has in hand; None where no broker is named, or it does not answer."""


class Where(StrEnum):
    """Where events are."""

    LOG = "unpublished"  # in the log
    QUEUE = "in queue"  # of whatever type
    RUNNING = "running"  # as of their process's last heartbeat
    RETRY = "retry"
    WAITING = "waiting"  # for their predecessor
    HELD = "held"  # for another reason
    PAUSED = "paused"  # put off; what is paused and still in its queue counts there
    DEAD = "dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """So many events of one group, tier and type are *where*, the oldest *since*; a queue is asked for no type."""

    group: str
    tier: Tier
    type: str | None
    where: Where
    events: int
    since: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantStatus:
    """*pauses* are those that an event of the tenant may fit, by group; *weights* those that are not 1.

    *are_queues_known*: whether the broker was asked and answered.
    """

    tenant: str
    counts: tuple[Count, ...]
    pauses: Mapping[str, tuple[Pause, ...]]
    weights: Mapping[str, int]
    are_queues_known: bool

    def to_json(self) -> dict[str, object]:
        """It, as ``--json`` prints it."""
        pauses = [{"group": group, **asdict(one)} for group, found in self.pauses.items() for one in found]
        counts = [asdict(one) for one in self.counts]
        return {
            "tenant": self.tenant,
            "weights": self.weights,
            "pauses": plain(pauses),
            "counts": plain(counts),
            "are_queues_known": self.are_queues_known,
        }


async def read(
    connection: Connection, tenant: str, *, scope: Scope, wanted: Sequence[str] | None, ready: Ready
) -> TenantStatus:
    """What there is of *tenant* that fits *scope*, in the *wanted* groups or in all; in queues, as *ready* tells.

    Raises:
        ConfigError: one of the groups is not known.
    """
    names = await groups_of(connection, wanted)
    told = {name: await control.read(connection, name) for name in names}
    queued = await _queued(connection, names, tenant, ready)
    counts = [
        *await _in_log(connection, tenant),
        *(queued or ()),
        *await _running(connection, names, tenant),
        *await _kept(connection, names, tenant),
    ]
    return TenantStatus(
        tenant=tenant,
        counts=tuple(one for one in counts if one.group in names and _fits(one, scope)),
        pauses={
            name: tuple(one for one in found.pauses if meets(one.scope, replace(scope, tenant=tenant)))
            for name, found in told.items()
        },
        weights={name: one.weight for name, found in told.items() for one in found.weights if one.tenant == tenant},
        are_queues_known=queued is not None,
    )


async def _in_log(connection: Connection, tenant: str) -> Iterable[Count]:
    return [
        Count(group=one.group, tier=one.tier, type=one.type, where=Where.LOG, events=one.events, since=one.since)
        for one in await unpublished(connection, tenant)
    ]


async def _queued(connection: Connection, names: Sequence[str], tenant: str, ready: Ready) -> Iterable[Count] | None:
    lanes = [one.lane for name in names for one in await directory.lanes(connection, name) if one.lane.tenant == tenant]
    events = await ready([lane.queue for lane in lanes]) if lanes else {}
    if events is None:
        return None
    return [
        Count(group=lane.group, tier=lane.tier, type=None, where=Where.QUEUE, events=events[lane.queue])
        for lane in lanes
        if events.get(lane.queue)
    ]


async def _running(connection: Connection, names: Sequence[str], tenant: str) -> Iterable[Count]:
    alive = [(name, one) for name in names for one in await incarnation.every(connection, name) if one.is_alive]
    return [
        Count(group=name, tier=one.tier, type=one.type, where=Where.RUNNING, events=one.events)
        for name, process in alive
        for one in (process.heartbeat.running if process.heartbeat is not None else ())
        if one.tenant == tenant
    ]


async def _kept(connection: Connection, names: Sequence[str], tenant: str) -> Iterable[Count]:
    cursor = await fresh(connection, _KEPT, {"groups": list(names), "tenant": tenant})
    return [
        Count(group=group, tier=Tier(tier), type=event_type, where=_WHERE[reason], events=events, since=since)
        for group, tier, event_type, reason, events, since in await cursor.fetchall()
    ]


def _fits(one: Count, scope: Scope) -> bool:
    """What is in a queue may be of any type."""
    return scope.tier in {None, one.tier} and (scope.type is None or one.type in {None, scope.type})


_WHERE: Final = {
    "dead": Where.DEAD,
    "paused": Where.PAUSED,
    "retry": Where.RETRY,
    "replay": Where.RETRY,
    "waiting": Where.WAITING,
    "held": Where.HELD,
    "suspect": Where.HELD,
}

_KEPT: Final = """
    SELECT group_name, tier, type, CASE WHEN due_before_pause IS NULL THEN reason ELSE 'paused' END, count(*),
           min(created_at)
    FROM consumer.work WHERE group_name = ANY(%(groups)s) AND tenant = %(tenant)s GROUP BY 1, 2, 3, 4
    UNION ALL
    SELECT group_name, tier, type, 'dead', count(*), min(dead_at)
    FROM consumer.dead WHERE group_name = ANY(%(groups)s) AND tenant = %(tenant)s AND resolution IS NULL
    GROUP BY 1, 2, 3
    ORDER BY 1, 2, 3, 4
"""
