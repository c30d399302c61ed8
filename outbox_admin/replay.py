"""Having events published again: what that would be, and asking for it, with the audit's row."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from outbox.errors import ConfigError
from outbox.shell.database import Connection, store_errors
from outbox_admin.audit import record
from outbox_admin.groups import list_groups
from relay.log import replay_requests
from relay.log.replay_requests import Share, Wanted


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What is asked for. *since*: None is all that the log keeps whole; *to*: None is now."""

    since: datetime | None
    to: datetime | None
    group: str | None
    tenant: str | None
    type: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """What that is by the database's clock, and each group's share in it."""

    wanted: Wanted
    shares: Sequence[Share]

    @property
    def events(self) -> int:
        """How many events would be published again, counted once for each group."""
        return sum(share.events for share in self.shares)


async def preview(connection: Connection, choice: Choice) -> Preview:
    """Count what *choice* comes to. Changes nothing.

    Raises:
        ConfigError: there is no such group, or the log does not keep all events since then.
    """
    with store_errors():
        names = [group.name for group in await list_groups(connection)]
        if choice.group is not None and choice.group not in names:
            raise ConfigError(f"group: want one of {', '.join(names)}, got {choice.group[:80]!r}")
        async with connection.transaction():
            bounds = await replay_requests.bounds(connection)
            since = choice.since or bounds.oldest
            _check(since, bounds)
            wanted = Wanted(
                from_at=since,
                to_at=bounds.now if choice.to is None else min(choice.to, bounds.now),
                group=choice.group,
                tenant=choice.tenant,
                type=choice.type,
            )
            shares = await replay_requests.shares(connection, wanted)
    return Preview(wanted=wanted, shares=[share for share in shares if share.events])


async def request(connection: Connection, found: Preview, *, per_s: int, actor: str) -> dict[str, int]:
    """Have what was *found* published again; return each group's replay by its number."""
    numbers: dict[str, int] = {}
    with store_errors():
        async with connection.transaction():
            _check(found.wanted.from_at, await replay_requests.bounds(connection))
            for share in found.shares:
                number = await replay_requests.ask(connection, found.wanted, share, per_s=per_s, requested_by=actor)
                numbers[share.group] = number
                await record(
                    connection,
                    actor=actor,
                    action="replay.request",
                    group=share.group,
                    detail={
                        "replay": number,
                        "from": share.from_at.isoformat(),
                        "to": found.wanted.to_at.isoformat(),
                        "tenant": found.wanted.tenant,
                        "type": found.wanted.type,
                        "events": share.events,
                        "per_s": per_s,
                    },
                )
    return numbers


async def cancel(connection: Connection, number: int, *, actor: str) -> None:
    """Call off replay *number*.

    Raises:
        ConfigError: there is no such open one.
    """
    with store_errors():
        async with connection.transaction():
            group = await replay_requests.cancel(connection, number)
            if group is None:
                raise ConfigError(f"cancel: want the number of an open replay, got {number}, which is none")
            await record(connection, actor=actor, action="replay.cancel", group=group, detail={"replay": number})


def _check(since: datetime, bounds: replay_requests.Bounds) -> None:
    complete_since = bounds.complete_since
    if complete_since is not None and since < complete_since:
        raise ConfigError(
            "--from: want a time from which on the log keeps every event,"
            f" {complete_since.isoformat()} or later, got {since.isoformat()}"
        )
    if since > bounds.now:
        raise ConfigError(f"--from: want a time that is not ahead, got {since.isoformat()}")
