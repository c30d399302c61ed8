"""Removing a tenant's lanes so that nothing is lost: the broker confirms what is published to a queue that it deletes.

In this order, for each lane: it is marked, and the relay that owns it stops publishing to it and says when nothing
of it is unsettled; it is unbound, so that nothing can come; it is seen empty; its consumers are told, and leave
when they have nothing of it in hand; with no message and no consumer left it is deleted. What is emitted for the
tenant meanwhile waits in the log, and after that the lane is declared again.

Safe to break off and to run again at any point. While a lane is marked its events wait.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Protocol, cast

from outbox.errors import TransientError
from outbox.event import Tier
from outbox.naming import Lane
from outbox.shell import database
from outbox.shell.database import store_errors
from outbox_admin import audit
from relay.ports import Announcement

_LOOK_EVERY_S: Final = 0.5
# Longer than acknowledgements and hand-backs take that were under way when the last consumer left.
_STILL_S: Final = 3.0

_FIND: Final = """
SELECT l.group_name, l.tier, g.started_at, l.leaving_at IS NOT NULL
FROM outbox.lane l JOIN outbox.consumer_group g USING (group_name)
WHERE l.tenant = %s AND (%s::text[] IS NULL OR l.group_name = ANY (%s::text[])) ORDER BY 1, 2"""
_MARK: Final = """
UPDATE outbox.lane SET leaving_at = clock_timestamp(), quiet_at = NULL
WHERE group_name = %s AND tier = %s AND tenant = %s AND leaving_at IS NULL"""
_KEEP: Final = """
UPDATE outbox.lane SET leaving_at = NULL, quiet_at = NULL
WHERE group_name = %s AND tier = %s AND tenant = %s AND leaving_at IS NOT NULL"""
_LOUD: Final = """
SELECT count(*) FROM outbox.lane
WHERE group_name = %s AND tier = %s AND tenant = %s AND leaving_at IS NOT NULL AND quiet_at IS NULL"""
_IS_REPLAYED: Final = """
SELECT count(*) FROM outbox.replay
WHERE group_name = %s AND ended_at IS NULL AND (tenant IS NULL OR tenant = %s)"""
_FORGET: Final = """
DELETE FROM outbox.lane WHERE group_name = %s AND tier = %s AND tenant = %s AND quiet_at IS NOT NULL"""

# The relay would try them again, and make the queue again for that. Voids stay: without them a key would stand still.
_LAY_ASIDE: Final = """
UPDATE outbox.deferred SET state = 'dead' WHERE group_name = %s AND tier = %s AND tenant = %s AND state = 'retry'"""

Connection = database.Connection
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """One lane of the tenant. *is_marked*: an off-boarding of it has begun and not ended."""

    lane: Lane
    group_started_at: datetime
    is_marked: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What a queue holds: messages that are *ready*, and *what* else keeps it from being deleted, how often."""

    ready: int
    holders: int
    what: str
    is_sure: bool
    """The queue itself has answered."""


class Desk(Protocol):
    """What is asked of the broker."""

    async def unbind(self, lane: Lane) -> None:
        """Let nothing more be routed to the lane. Safe where there is no such queue."""

    async def state(self, queue: str) -> State | None:
        """What is in it and in hand; None without such a queue."""

    async def announce(self, announcement: Announcement, *, is_gone: bool) -> None:
        """Tell the lane's group; a group that has no directory has no consumers to tell."""

    async def delete(self, queue: str) -> None:
        """Delete it; safe where there is none."""


async def find(connection: Connection, tenant: str, *, groups: Collection[str] | None) -> Sequence[Leaving]:
    """The lanes of *tenant*, of these *groups* or of all."""
    names = None if groups is None else list(groups)
    with store_errors():
        rows = await (await connection.execute(_FIND, (tenant, names, names))).fetchall()
    return [
        Leaving(
            lane=Lane(group=group, tier=Tier(tier), tenant=tenant), group_started_at=started_at, is_marked=is_marked
        )
        for group, tier, started_at, is_marked in cast("Sequence[tuple[Any, ...]]", rows)
    ]


async def keep(connection: Connection, lanes: Sequence[Leaving], *, actor: str) -> None:
    """Take back the marks: the relay declares and binds a lane again when its next event comes."""
    with store_errors():
        async with connection.transaction():
            for one in lanes:
                await connection.execute(_KEEP, _key(one.lane))
            await _record(connection, "tenant.keep", [one.lane for one in lanes], actor)


async def offboard(
    connection: Connection,
    opened: Callable[[], AbstractAsyncContextManager[Desk]],
    lanes: Sequence[Leaving],
    *,
    actor: str,
    within_s: float,
    tell: Tell,
) -> None:
    """Remove *lanes*, and tell each step of each. A desk is *opened* once the relays publish nothing to them.

    With the broker away nothing is begun.

    Raises:
        TransientError: time is up; what was waited for is named. Nothing is lost: run it again, or ``keep`` them.
        StoreUnavailable, BrokerUnavailable: likewise.
    """
    until = time.monotonic() + within_s
    # Of lanes that are marked, and then cannot be removed, the events would wait for nothing.
    async with opened():
        pass
    with store_errors():
        async with connection.transaction():
            for one in lanes:
                await connection.execute(_MARK, _key(one.lane))
            await _record(connection, "tenant.offboard", [one.lane for one in lanes], actor)
    for one in lanes:
        await _until_quiet(connection, one.lane, until)
        tell(f"{one.lane.queue}: no relay publishes to it any more")
    async with opened() as desk:
        for one in lanes:
            await desk.unbind(one.lane)
            await _until_empty(connection, desk, one, until, tell)
            await desk.delete(one.lane.queue)
            with store_errors():
                async with connection.transaction():
                    await connection.execute(_FORGET, _key(one.lane))
                    laid_aside = await connection.execute(_LAY_ASIDE, _key(one.lane))
                    await _record(connection, "tenant.offboarded", [one.lane], actor)
            tell(f"{one.lane.queue}: deleted")
            if laid_aside.rowcount:
                tell(f"{one.lane.queue}: {laid_aside.rowcount} deferred events are dead now: see outbox deferred list")


async def _until_quiet(connection: Connection, lane: Lane, until: float) -> None:
    while True:
        with store_errors():
            loud = await (await connection.execute(_LOUD, _key(lane))).fetchone()
        if loud == (0,):
            return
        await _wait(until, f"{lane.queue}: want its relay to say that it publishes nothing to it, got no word")


async def _until_empty(connection: Connection, desk: Desk, one: Leaving, until: float, tell: Tell) -> None:
    """Return once the queue has neither messages nor consumers, and had neither for a while, or is not there."""
    queue, is_told, still_since = one.lane.queue, False, None
    announcement = Announcement(lane=one.lane, group_started_at=one.group_started_at)
    while (state := await desk.state(queue)) is not None:
        if state.ready == 0 and not is_told:
            tell(f"{queue}: empty; its consumers are told to leave it")
            await desk.announce(announcement, is_gone=True)
            is_told = True
        elif state.ready and is_told:
            # A consumer died, or handed something back, and nobody is there to take it.
            tell(f"{queue}: {state.ready} messages came back; its consumers are told of it again")
            await desk.announce(announcement, is_gone=False)
            is_told = False
        with store_errors():
            replays = await (await connection.execute(_IS_REPLAYED, (one.lane.group, one.lane.tenant))).fetchone()
        is_still = is_told and replays == (0,) and state.is_sure and state.ready == state.holders == 0
        still_since = (still_since or time.monotonic()) if is_still else None
        if still_since is not None and time.monotonic() >= still_since + _STILL_S:
            return
        what = f"{state.ready} messages and {state.holders} {state.what}"
        if replays != (0,):
            what += " and a replay that is under way"
        await _wait(until, f"{queue}: want it empty and left by its consumers, got {what}")


async def _wait(until: float, problem: str) -> None:
    if time.monotonic() >= until:
        raise TransientError(f"{problem}; run it again to go on, or with --keep to take it back")
    await asyncio.sleep(_LOOK_EVERY_S)


async def _record(connection: Connection, action: str, lanes: Sequence[Lane], actor: str) -> None:
    for lane in lanes:
        detail = {"tenant": lane.tenant, "tier": lane.tier.label, "queue": lane.queue}
        await audit.record(connection, actor=actor, action=action, group=lane.group, detail=detail)


def _key(lane: Lane) -> tuple[str, int, str]:
    return lane.group, int(lane.tier), lane.tenant
