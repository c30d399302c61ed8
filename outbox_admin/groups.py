"""Groups: the independent readers of the log."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from psycopg import errors

from outbox.errors import ConfigError, WrongDatabase
from outbox.naming import check_group
from outbox.shell.database import Connection, store_errors
from outbox_admin.audit import named, record
from relay.log.replay_requests import bounds


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One group, and when it began to read the log."""

    name: str
    started_at: datetime


async def add_group(connection: Connection, name: str, *, actor: str | None = None) -> None:
    """Let *name* read every event committed from now on. *actor*: who asks, for the audit; the login if None.

    Raises:
        ConfigError: *name* cannot be a group's, or there is one already.
        WrongDatabase: the stored positions are of another database.
    """
    check_group(name)
    with store_errors(), _refusals(name):
        async with connection.transaction():
            await connection.execute("SELECT outbox.add_group(%s)", (name,))
            await record(connection, actor=named(actor), action="group.add", group=name, detail={})


async def add_past_group(
    connection: Connection, name: str, *, since: datetime | None, actor: str | None = None
) -> datetime:
    """Let *name* read every event with a ledger time of *since* or later; None is all that the log keeps whole.

    Returns since when it reads.

    Raises:
        ConfigError: as ``add_group``, or the log does not keep all events since then.
        WrongDatabase: the stored positions are of another database.
    """
    check_group(name)
    with store_errors(), _refusals(name):
        async with connection.transaction():
            started_at = since or (await bounds(connection)).oldest
            await connection.execute("SELECT outbox.add_group(%s, %s)", (name, started_at))
            await record(
                connection, actor=named(actor), action="group.add", group=name, detail={"from": started_at.isoformat()}
            )
    return started_at


async def list_groups(connection: Connection) -> list[Group]:
    """Every group, by name."""
    with store_errors():
        cursor = await connection.execute(
            "SELECT group_name, started_at FROM outbox.consumer_group ORDER BY group_name"
        )
        rows = await cursor.fetchall()
    return [Group(name=str(name), started_at=started) for name, started in rows if isinstance(started, datetime)]


@contextlib.contextmanager
def _refusals(name: str) -> Iterator[None]:
    try:
        yield
    except errors.UniqueViolation:
        raise ConfigError(f"group {name}: want a new name, got one that reads the log already") from None
    except errors.DatetimeFieldOverflow as error:
        raise ConfigError(str(error.diag.message_primary)) from None
    except errors.ObjectNotInPrerequisiteState as error:
        said = error.diag.message_primary
        raise WrongDatabase(f"group {name}: {said}; stop the apps and run 'outbox rebase'") from None
