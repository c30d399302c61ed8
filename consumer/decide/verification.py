"""Whether a fleet of processes consumes and does no harm, from what was seen of it over a while. No clock, no I/O."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

# What is in the processes' hands at one look and in the queue at the next is no backlog that grows.
_NOISE: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A process that lives, as its last heartbeat has it. *has_said* is false before the first."""

    has_said: bool
    is_connected: bool = False
    lanes: int = 0
    attached: int = 0
    settled: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadSince:
    """Open dead letters that failed alike, since the fleet began. *is_new*: none of before it failed like them."""

    fingerprint: str
    category: str
    message: str
    letters: int
    is_new: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What was seen at *at*. *backlog* is due here or ready in queues; *others* live and are not of the fleet."""

    at: datetime
    fleet: tuple[Member, ...]
    others: int
    lanes: int
    backlog: int
    dead: tuple[DeadSince, ...]
    pauses: int
    is_group_paused: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the fleet is held to: *fleet* names it for people, *dead* is how many letters of a known kind may come."""

    group: str
    fleet: str
    processes: int
    settled: int
    dead: int
    watch_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at. *says* is one sentence; *do* what to do next, empty where it is as wanted.

    *is_final*: waiting longer cannot mend it.
    """

    name: str
    is_ok: bool
    says: str
    do: str = ""
    is_final: bool = False


def findings(samples: Sequence[Sample], wanted: Wanted) -> list[Finding]:
    """What *samples*, of the whole watch and oldest first, say of each thing that is wanted."""
    return [
        _processes(samples[-1], wanted),
        _lanes(samples[-1], wanted),
        _settled(samples[-1], wanted),
        _backlog(samples),
        _dead(samples, wanted),
        _watched(samples, wanted),
    ]


def _processes(now: Sample, wanted: Wanted) -> Finding:
    alive = len(now.fleet)
    mute = sum(not one.has_said for one in now.fleet)
    away = sum(one.has_said and not one.is_connected for one in now.fleet)
    says = f"{alive} of {wanted.processes} processes of {wanted.fleet} are alive, and {now.others} others"
    do = ""
    if alive < wanted.processes:
        do = "start outbox-consumer run, or see the log of the one that should run"
    elif mute:
        says += f"; {mute} of them never said how they do"
        do = "wait for a third of the lease; code from before heartbeats says nothing and cannot be verified"
    elif away:
        says += f"; {away} of them do not reach the broker"
        do = "see their log lines 'broker lost', and RABBITMQ_URL"
    return Finding(name="processes", is_ok=not do, says=says, do=do)


def _lanes(now: Sample, wanted: Wanted) -> Finding:
    attached = sum(one.attached == one.lanes for one in now.fleet)
    known = sum(one.lanes for one in now.fleet)
    says = f"{attached} of {len(now.fleet)} processes consume from all the lanes they know; the group has {now.lanes}"
    do = ""
    if now.is_group_paused:
        says = "the whole group is paused, so nothing is consumed"
        do = f"outbox resume --group {wanted.group}"
    elif now.lanes == 0:
        says = f"no lane of group {wanted.group} is known"
        do = "see outbox-relay status: was the group added, does a relay run, was anything emitted since?"
    elif attached < len(now.fleet) or known < now.lanes:
        do = "see their log lines 'queue lost' and 'lane silent'"
    return Finding(name="lanes", is_ok=not do, says=says, do=do)


def _settled(now: Sample, wanted: Wanted) -> Finding:
    settled = sum(one.settled for one in now.fleet)
    says = f"the fleet settled {settled} events since it began"
    is_ok = settled >= wanted.settled
    if not is_ok and now.backlog == 0 and wanted.settled <= 1:
        # Who waits at every lane and is given nothing has nothing to do.
        return Finding(name="settled", is_ok=True, says=f"{says}, and none waits")
    do = "" if is_ok else "see the log lines 'delivery settled', and outbox-consumer status"
    return Finding(name="settled", is_ok=is_ok, says=says, do=do)


def _backlog(samples: Sequence[Sample]) -> Finding:
    third = max(1, len(samples) // 3)
    before = max(one.backlog for one in samples[:third])
    after = min(one.backlog for one in samples[-third:])
    grows = after > before + _NOISE
    says = f"{samples[-1].backlog} events wait in queues or are due, {samples[0].backlog} when the watch began"
    if samples[-1].pauses:
        says += f"; {samples[-1].pauses} pauses hold"
    do = "more processes or slots, or outbox-consumer status: whose are they?" if grows else ""
    return Finding(name="backlog", is_ok=not grows, says=says, do=do)


def _dead(samples: Sequence[Sample], wanted: Wanted) -> Finding:
    new = [one for one in samples[-1].dead if one.is_new]
    if new:
        worst = max(new, key=lambda one: one.letters)
        says = f"{worst.letters} dead letters of a kind that was not there before: {worst.category}, {worst.message}"
        do = f"outbox dead list --group {wanted.group} --fingerprint {worst.fingerprint}; keep the old code"
        return Finding(name="dead letters", is_ok=False, says=says, do=do, is_final=True)
    came = _letters(samples[-1]) - _letters(samples[0])
    says = f"{max(0, came)} dead letters came during the watch, all of kinds that were there before"
    do = f"outbox dead groups --group {wanted.group}" if came > wanted.dead else ""
    return Finding(name="dead letters", is_ok=not do, says=says if came > 0 else "no dead letter came", do=do)


def _letters(sample: Sample) -> int:
    return sum(one.letters for one in sample.dead)


def _watched(samples: Sequence[Sample], wanted: Wanted) -> Finding:
    watched_s = (samples[-1].at - samples[0].at).total_seconds()
    is_ok = watched_s >= wanted.watch_s
    says = f"watched for {watched_s:.0f} of {wanted.watch_s:.0f} s"
    return Finding(name="watch", is_ok=is_ok, says=says, do="" if is_ok else "give it longer: --within")
