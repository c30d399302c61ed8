"""Which lanes a group has, and since when it reads the log: learnt from directory messages, kept in the database.

The relay announces a lane when it declares it, on a roll call and every ten minutes, so what is forgotten
wrongly comes back.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from consumer.store.plans import fresh
from consumer.store.stored import Connection
from outbox.errors import ConfigError, InvalidEvent, Unreadable
from outbox.event import Tier
from outbox.naming import Lane, check_group, check_tenant
from outbox.strict_json import NotStrict, loads

_TIERS: Final = {tier.label: tier for tier in Tier}
_FIELDS: Final = ("group", "tier", "tenant", "queue", "group_started_at")


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """What one directory message says: that a lane stands, or that it *is_gone* or about to be."""

    lane: Lane
    group_started_at: datetime
    is_gone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownLane:
    """A lane, and when it was last announced."""

    lane: Lane
    seen_at: datetime


def read(body: bytes, *, group: str) -> Announcement:
    """Return what a directory message to *group* says.

    Raises:
        Unreadable: it is no announcement of a lane of *group*; one sentence that repeats none of it.
    """
    try:
        content = loads(body)
    except NotStrict as error:
        raise Unreadable(f"directory message: {error}") from None
    if not isinstance(content, dict):
        raise Unreadable("directory message: want a JSON object, got another value")
    texts = {name: content.get(name) for name in _FIELDS}
    for name, text in texts.items():
        if not isinstance(text, str):
            raise Unreadable(f"directory message: want text as {name}, got {type(text).__name__}")
    is_gone = content.get("is_gone", False)
    if not isinstance(is_gone, bool):
        raise Unreadable(f"directory message: want true or false as is_gone, got {type(is_gone).__name__}")
    return _announcement({name: str(text) for name, text in texts.items()}, group, is_gone=is_gone)


async def learn(connection: Connection, announcements: Iterable[Announcement]) -> None:
    """Keep what was announced, in the caller's transaction or each statement by itself. Safe to repeat.

    Of several announcements of one lane the last counts. When a group's start changes, what waited for a predecessor
    comes up again: that may be older than the start.
    """
    known = list(announcements)
    starts = {announcement.lane.group: announcement.group_started_at for announcement in known}
    for group, started_at in sorted(starts.items()):
        cursor = await connection.execute(_LEARN_START, {"group": group, "started_at": started_at})
        if cursor.rowcount > 0:
            await fresh(connection, _RECONSIDER, {"group": group})
    lanes = {(one.lane.group, int(one.lane.tier), one.lane.tenant): one for one in known}
    for (group, tier, tenant), one in sorted(lanes.items(), key=lambda item: item[0]):
        if one.is_gone:
            await forget(connection, one.lane)
            continue
        values = {"group": group, "tier": tier, "tenant": tenant, "queue": one.lane.queue}
        await connection.execute(_LEARN_LANE, values)


async def lanes(connection: Connection, group: str) -> list[KnownLane]:
    """Every lane of *group* that is known, by tier and tenant."""
    cursor = await connection.execute(_LANES, {"group": group})
    return [
        KnownLane(lane=Lane(group=group, tier=Tier(tier), tenant=tenant), seen_at=seen_at)
        for tier, tenant, seen_at in await cursor.fetchall()
    ]


async def mark(connection: Connection, group: str) -> str:
    """What is another as soon as *group* has other lanes: cheap to ask for, however many there are."""
    row = await (await connection.execute(_MARK, {"group": group})).fetchone()
    assert row is not None  # noqa: S101 - an aggregate has one row
    return str(row[0])


async def forget(connection: Connection, lane: Lane) -> bool:
    """Forget *lane*, whose queue is gone. Returns whether it was known."""
    values = {"group": lane.group, "tier": int(lane.tier), "tenant": lane.tenant}
    cursor = await connection.execute(_FORGET, values)
    return cursor.rowcount > 0


async def group_start(connection: Connection, group: str) -> datetime | None:
    """Since when *group* reads the log, if that was announced yet."""
    row = await (await connection.execute(_GROUP_START, {"group": group})).fetchone()
    if row is None:
        return None
    started_at: datetime = row[0]
    return started_at


def _announcement(texts: dict[str, str], group: str, *, is_gone: bool) -> Announcement:
    tier = _TIERS.get(texts["tier"])
    if tier is None:
        raise Unreadable(f"directory message: want a tier of {', '.join(_TIERS)}, got another")
    try:
        lane = Lane(group=check_group(texts["group"]), tier=tier, tenant=check_tenant(texts["tenant"]))
    except (ConfigError, InvalidEvent) as error:
        raise Unreadable(f"directory message: {error}") from None
    if lane.group != group:
        raise Unreadable(f"directory message: want a lane of group {group}, got one of another")
    if lane.queue != texts["queue"]:  # or a tenant could be read from another's queue
        raise Unreadable("directory message: want the queue that the tenant's name gives, got another")
    return Announcement(lane=lane, group_started_at=_time(texts["group_started_at"]), is_gone=is_gone)


def _time(text: str) -> datetime:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise Unreadable("directory message: want an RFC 3339 time as group_started_at, got another text") from None
    if time.tzinfo is None:
        raise Unreadable("directory message: want a group_started_at with an offset, got one without")
    return time.astimezone(UTC)


_LEARN_START: Final = """
    INSERT INTO consumer.group_start AS s (group_name, started_at) VALUES (%(group)s, %(started_at)s)
    ON CONFLICT (group_name) DO UPDATE SET started_at = excluded.started_at
    WHERE s.started_at <> excluded.started_at
"""

_RECONSIDER: Final = """
    UPDATE consumer.work SET due_at = statement_timestamp() WHERE group_name = %(group)s AND event_id = ANY(ARRAY(
        SELECT event_id FROM consumer.work
        WHERE group_name = %(group)s AND reason = 'waiting' AND owner IS NULL AND due_before_pause IS NULL
        ORDER BY event_id FOR UPDATE SKIP LOCKED
    ))
"""

# Every announcement of every lane arrives every ten minutes; most need not be written.
_LEARN_LANE: Final = """
    INSERT INTO consumer.lane AS l (group_name, tier, tenant, queue)
    VALUES (%(group)s, %(tier)s, %(tenant)s, %(queue)s)
    ON CONFLICT (group_name, tier, tenant) DO UPDATE SET queue = excluded.queue, seen_at = clock_timestamp()
    WHERE l.queue <> excluded.queue OR l.seen_at < clock_timestamp() - interval '5 minutes'
"""

_LANES: Final = "SELECT tier, tenant, seen_at FROM consumer.lane WHERE group_name = %(group)s ORDER BY tier, tenant"

_MARK: Final = """
    SELECT concat(count(*), ' ', sum(hashtextextended(queue, 0)::numeric))
    FROM consumer.lane WHERE group_name = %(group)s
"""

_FORGET: Final = "DELETE FROM consumer.lane WHERE group_name = %(group)s AND tier = %(tier)s AND tenant = %(tenant)s"

_GROUP_START: Final = "SELECT started_at FROM consumer.group_start WHERE group_name = %(group)s"
