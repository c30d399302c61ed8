"""``outbox-consumer verify``: watches a fleet until what is wanted of it was seen, or the time is up."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Final

from consumer.decide.verification import DeadSince, Finding, Member, Sample, Wanted, findings
from consumer.store import control, directory, incarnation, work_counts
from consumer.store.incarnation import Incarnation
from consumer.store.plans import fresh
from consumer.store.stored import Connection
from outbox.naming import Lane
from outbox.shell.words import in_utc

_LOOK_S: Final = 1.0
# Asking thousands of queues takes seconds, and must not become what the broker does all day.
_REST: Final = 4.0

Depths = Callable[[Sequence[Lane]], Awaitable[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Which processes are meant: those of *version*, and started at *since* or later, where these are given."""

    version: str | None = None
    since: datetime | None = None

    def __str__(self) -> str:
        """It, in words for people."""
        named = [
            "the group" if self.version is None else f"version {self.version}",
            *(() if self.since is None else (f"started since {in_utc(self.since)}",)),
        ]
        return ", ".join(named)

    def has(self, process: Incarnation) -> bool:
        """Whether *process* is one of them."""
        return self.version in {None, process.version} and (self.since is None or process.started_at >= self.since)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What was found at the end."""

    findings: tuple[Finding, ...]

    @property
    def is_ok(self) -> bool:
        """Whether everything is as wanted."""
        return all(one.is_ok for one in self.findings)

    def to_json(self) -> dict[str, object]:
        """It, as ``--json`` prints it."""
        return {"is_ok": self.is_ok, "findings": [asdict(one) for one in self.findings]}


async def watch(connection: Connection, fleet: Fleet, wanted: Wanted, *, depths: Depths, within_s: float) -> Verdict:
    """Look again and again until *wanted* was seen, or cannot be any more, or *within_s* are over.

    What happened longer ago than the watch is wanted to take does not count against the fleet any more.

    Raises:
        BrokerUnavailable: *depths*, which says how much is ready in lanes, met that.
    """
    samples: list[Sample] = []
    until = time.monotonic() + within_s
    while True:
        began = time.monotonic()
        samples.append(await look(connection, wanted.group, fleet, depths=depths))
        samples = _of_watch(samples, wanted.watch_s)
        found = findings(samples, wanted)
        took_s = time.monotonic() - began
        if all(one.is_ok for one in found) or any(one.is_final for one in found) or time.monotonic() >= until:
            return Verdict(findings=tuple(found))
        await asyncio.sleep(max(_LOOK_S, took_s * _REST))


async def look(connection: Connection, group: str, fleet: Fleet, *, depths: Depths) -> Sample:
    """What there is to see of *fleet* now."""
    alive = [one for one in await incarnation.every(connection, group) if one.is_alive]
    members = [one for one in alive if fleet.has(one)]
    since = fleet.since or min((one.started_at for one in members), default=None)
    lanes = [one.lane for one in await directory.lanes(connection, group)]
    told = await control.read(connection, group)
    due = sum(one.due for one in await work_counts.read(connection, group))
    return Sample(
        at=told.at,
        fleet=tuple(_member(one) for one in members),
        others=len(alive) - len(members),
        lanes=len(lanes),
        backlog=due + await depths(lanes),
        dead=tuple(await _dead(connection, group, since)) if since is not None else (),
        pauses=len(told.pauses),
        is_group_paused=told.is_group_paused,
    )


def _of_watch(samples: list[Sample], watch_s: float) -> list[Sample]:
    """The latest of *samples* that span *watch_s*: without the first of them they would not."""
    while len(samples) > 1 and (samples[-1].at - samples[1].at).total_seconds() >= watch_s:
        samples = samples[1:]
    return samples


def _member(process: Incarnation) -> Member:
    said = process.heartbeat
    if said is None:
        return Member(has_said=False)
    return Member(
        has_said=True,
        is_connected=said.is_connected,
        lanes=said.lanes,
        attached=said.attached,
        settled=said.settled,
    )


async def _dead(connection: Connection, group: str, since: datetime) -> list[DeadSince]:
    cursor = await fresh(connection, _DEAD, {"group": group, "since": since})
    return [
        DeadSince(fingerprint=fingerprint, category=category, message=message, letters=letters, is_new=is_new)
        for fingerprint, category, message, letters, is_new in await cursor.fetchall()
    ]


_DEAD: Final = """
    SELECT d.fingerprint, max(d.category), max(d.message), count(*), NOT EXISTS (
        SELECT FROM consumer.dead e
        WHERE e.group_name = %(group)s AND e.fingerprint = d.fingerprint AND e.dead_at < %(since)s
    )
    FROM consumer.dead d WHERE d.group_name = %(group)s AND d.resolution IS NULL AND d.dead_at >= %(since)s
    GROUP BY d.fingerprint ORDER BY d.fingerprint
"""
