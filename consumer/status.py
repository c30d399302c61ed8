"""Is anything stuck, whose is it, and why: what a group holds in its hands, as values. No payloads.

What still lies in the log is not known here; ``outbox-relay status`` tells that.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from enum import Enum
from typing import Final, TypeAlias, cast
from uuid import UUID

from consumer.decide.control import Pause, Weight
from consumer.outcome import DeadCategory
from consumer.store import control, gate, incarnation, work_counts
from consumer.store.gate import BlockedKey, BlockedKeys
from consumer.store.incarnation import Incarnation
from consumer.store.plans import fresh
from consumer.store.stored import Connection
from consumer.store.work import Reason
from consumer.store.work_counts import WorkCount
from outbox.event import Tier
from outbox.naming import Lane
from outbox.shell.words import counted, in_utc

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

#: Blocked keys that are named one by one; beyond that only their number is told.
BLOCKED_NAMED_MAX: Final = 100

_PAUSES_NAMED_MAX: Final = 5
_BREAKERS_NAMED_MAX: Final = 5

#: A row that is due is taken within a second or so; after this long something is wrong, or too slow.
OVERDUE_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """What waits of one tier and tenant, and since when. *overdue_s* is how long its longest due row was not taken."""

    tier: Tier
    tenant: str
    rows: int
    due: int
    in_hand: int
    waiting_since: datetime
    overdue_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadCount:
    """Open dead letters of one category; *unpublished* have no copy on the exchange yet."""

    category: DeadCategory
    letters: int
    tenants: int
    unpublished: int
    since: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """Events of one tier and tenant that lie in their queue, in nobody's hands."""

    tier: Tier
    tenant: str
    events: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """Everything that a group holds at *at*, the database's time. *queued* is ``None`` where no broker was asked."""

    group: str
    at: datetime
    pauses: tuple[Pause, ...]
    weights: tuple[Weight, ...]
    group_started_at: datetime | None
    lanes: int
    waiting: tuple[Waiting, ...]
    work: tuple[WorkCount, ...]
    blocked: BlockedKeys
    dead: tuple[DeadCount, ...]
    incarnations: tuple[Incarnation, ...]
    queued: tuple[Queued, ...] | None = None


async def groups(connection: Connection) -> list[str]:
    """Every group that this database knows of."""
    cursor = await connection.execute(_GROUPS)
    return [group for (group,) in await cursor.fetchall()]


async def read(connection: Connection, group: str) -> Status:
    """The status of *group*; all of one moment if the caller's transaction is a repeatable read."""
    row = await (await connection.execute(_GROUP, {"group": group})).fetchone()
    assert row is not None  # noqa: S101 - it selects one row, always
    at, started_at, lanes = row
    counts = await work_counts.read(connection, group)
    told = await control.read(connection, group)
    return Status(
        group=group,
        at=at,
        pauses=told.pauses,
        weights=told.weights,
        group_started_at=started_at,
        lanes=lanes,
        waiting=tuple(waiting(counts, at=at)),
        work=tuple(counts),
        blocked=await gate.blocked_keys(connection, group, limit=BLOCKED_NAMED_MAX),
        dead=tuple(await _dead(connection, group)),
        incarnations=tuple(await incarnation.every(connection, group)),
    )


def with_queues(status: Status, lanes: Sequence[Lane], ready: Mapping[str, int]) -> Status:
    """*status* with what is *ready* in the queues of *lanes*, the fullest first; empty ones are left out."""
    queued = [
        Queued(tier=lane.tier, tenant=lane.tenant, events=ready[lane.queue]) for lane in lanes if ready.get(lane.queue)
    ]
    return replace(status, queued=tuple(sorted(queued, key=lambda one: (-one.events, one.tier, one.tenant))))


def waiting(counts: Sequence[WorkCount], *, at: datetime) -> list[Waiting]:
    """*counts* of every reason added up per tier and tenant, longest overdue first."""
    by_lane: dict[tuple[Tier, str], list[WorkCount]] = {}
    for count in counts:
        by_lane.setdefault((count.tier, count.tenant), []).append(count)
    found = [
        Waiting(
            tier=tier,
            tenant=tenant,
            rows=sum(count.rows for count in of_lane),
            due=sum(count.due for count in of_lane),
            in_hand=sum(count.owned for count in of_lane),
            waiting_since=min(count.waiting_since for count in of_lane),
            overdue_s=max((at - (count.next_due_at or at)).total_seconds() for count in of_lane),
        )
        for (tier, tenant), of_lane in by_lane.items()
    ]
    found = [replace(one, overdue_s=max(0.0, one.overdue_s)) for one in found]
    return sorted(found, key=lambda one: (-one.overdue_s, one.tier, one.tenant))


def problems(status: Status) -> list[str]:
    """What somebody should look at, a sentence each; empty if nothing is stuck."""
    letters = sum(one.letters for one in status.dead)
    told = f"{counted(letters, 'open dead letter')}: outbox dead groups --group {status.group}"
    return [*held_up(status), *([told] if letters else [])]


def held_up(status: Status) -> list[str]:
    """Of the problems, what keeps events from being handled: all but dead letters, which nobody tries any more."""
    found = [_paused(one, status.group) for one in status.pauses[:_PAUSES_NAMED_MAX]]
    if len(status.pauses) > _PAUSES_NAMED_MAX:
        found.append(f"{len(status.pauses) - _PAUSES_NAMED_MAX} more pauses hold: outbox paused --group {status.group}")
    due = sum(one.due for one in status.waiting) + sum(one.events for one in status.queued or ())
    alive = [one for one in status.incarnations if one.is_alive]
    if due and not alive:
        found.append(f"{counted(due, 'event')} due, and no process of {status.group} is alive: start outbox-consumer")
    elif unserved := _unserved(status, alive):
        found.append(unserved)
    elif status.waiting and status.waiting[0].overdue_s > OVERDUE_S:
        one = status.waiting[0]
        found.append(f"events of tenant {one.tenant!r} ({one.tier.label}) are overdue by {one.overdue_s:.0f} s")
    found += _breakers(alive)
    suspects = sum(count.rows for count in status.work if count.reason is Reason.SUSPECT)
    if suspects:
        found.append(f"{counted(suspects, 'event')} being handled when the process died")
    if status.blocked.total:
        one_key = status.blocked.longest[0]
        found.append(
            f"{counted(status.blocked.total, 'ordering key')} blocked; for longest, {one_key.key!r} of tenant"
            f" {one_key.tenant!r}, waits for event {one_key.number} ({_blocker(one_key)})"
        )
    return found


def _unserved(status: Status, alive: Sequence[Incarnation]) -> str | None:
    """What is due of tiers that no living process serves; None if there is none, or one did not say."""
    said = [process.heartbeat.tiers if process.heartbeat else () for process in alive]
    due: Counter[Tier] = Counter()
    for one in status.waiting:
        due[one.tier] += one.due
    for lane in status.queued or ():
        due[lane.tier] += lane.events
    left = [tier for tier in sorted(due) if due[tier] and all(tiers and tier not in tiers for tiers in said)]
    if not left:
        return None
    named = ",".join(tier.label for tier in left)
    return (
        f"{counted(sum(due[tier] for tier in left), 'event')} due, and no process of {status.group} serves their tier:"
        f" start outbox-consumer run --tiers {named}"
    )


def _breakers(alive: Sequence[Incarnation]) -> list[str]:
    """Which handlers a breaker keeps from running, and in how many of the processes that are *alive*."""
    open_in = Counter(breaker for one in alive if one.heartbeat for breaker in one.heartbeat.breakers)
    return [
        f"the breaker of handler {one.handler!r} for {one.type} is open in {processes} of"
        f" {counted(len(alive), 'process')}{f', for tenant {one.tenant!r}' if one.tenant else ''}:"
        " most of its attempts fail; mend what it calls, and it comes back by itself"
        for one, processes in open_in.most_common(_BREAKERS_NAMED_MAX)
    ]


def _paused(pause: Pause, group: str) -> str:
    until = "until somebody resumes it" if pause.until is None else f"until {in_utc(pause.until)}"
    why = f": {pause.reason}" if pause.reason else ""
    return f"{pause.scope} is paused {until}, by {pause.actor}{why}; see outbox resume --help (group {group})"


def _blocker(key: BlockedKey) -> str:
    match key.by:
        case "dead":
            return f"dead letter {key.dead_id}: replay or discard it"
        case "elsewhere":
            return "not here yet: see outbox-relay status and outbox deferred list"
        case reason:
            return f"waits here: {reason}"


def to_json(status: Status) -> dict[str, Json]:
    """*status* as ``--json`` prints it: times as RFC 3339, tiers and categories by name."""
    content = cast("dict[str, object]", asdict(status))
    return {**{name: plain(value) for name, value in content.items()}, "problems": plain(problems(status))}


def plain(value: object) -> Json:
    """*value* as JSON has it: times as RFC 3339, tiers and categories by name. Raises TypeError: it cannot be."""
    match value:
        case Enum():
            return value.label if isinstance(value, Tier) else str(value.value)
        case datetime():
            return value.isoformat()
        case UUID():
            return str(value)
        case dict():
            return {str(name): plain(item) for name, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
        case None | bool() | int() | float() | str():
            return value
        case _:
            raise TypeError(f"status: want a value that JSON has, got {type(value).__name__}")


async def _dead(connection: Connection, group: str) -> list[DeadCount]:
    cursor = await fresh(connection, _DEAD, {"group": group})
    return [
        DeadCount(
            category=DeadCategory(category), letters=letters, tenants=tenants, unpublished=unpublished, since=since
        )
        for category, letters, tenants, unpublished, since in await cursor.fetchall()
    ]


_GROUPS: Final = """
    SELECT group_name FROM (
        SELECT group_name FROM consumer.group_start UNION SELECT group_name FROM consumer.incarnation
        UNION SELECT group_name FROM consumer.lane UNION SELECT group_name FROM consumer.work
        UNION SELECT group_name FROM consumer.dead WHERE resolution IS NULL
        UNION SELECT group_name FROM consumer.control
    ) known ORDER BY group_name
"""

_GROUP: Final = """
    SELECT clock_timestamp(),
           (SELECT started_at FROM consumer.group_start WHERE group_name = %(group)s),
           (SELECT count(*) FROM consumer.lane WHERE group_name = %(group)s)
"""

_DEAD: Final = """
    SELECT category, count(*), count(DISTINCT tenant), count(*) FILTER (WHERE published_at IS NULL), min(dead_at)
    FROM consumer.dead WHERE group_name = %(group)s AND resolution IS NULL
    GROUP BY category ORDER BY count(*) DESC, category
"""
