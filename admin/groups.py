"""Groups: the independent readers of the log."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from psycopg import errors

from outbox.errors import ConfigError, WrongDatabase
from outbox.naming import check_group
from outbox.shell.database import Connection, store_errors


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One group, and when it began to read the log."""

    name: str
    started_at: datetime


async def add_group(connection: Connection, name: str) -> None:
    """Let *name* read every event committed from now on.

    Raises:
        ConfigError: *name* cannot be a group's, or there is one already.
        WrongDatabase: the stored positions are of another database.
    """
    check_group(name)
    try:
        with store_errors(), _origin_errors(name):
            await connection.execute("SELECT outbox.add_group(%s)", (name,))
    except errors.UniqueViolation:
        raise ConfigError(f"group {name}: want a new name, got one that reads the log already") from None


async def list_groups(connection: Connection) -> list[Group]:
    """Every group, by name."""
    with store_errors():
        cursor = await connection.execute(
            "SELECT group_name, started_at FROM outbox.consumer_group ORDER BY group_name"
        )
        rows = await cursor.fetchall()
    return [Group(name=str(name), started_at=started) for name, started in rows if isinstance(started, datetime)]


@contextlib.contextmanager
def _origin_errors(name: str) -> Iterator[None]:
    try:
        yield
    except errors.ObjectNotInPrerequisiteState as error:
        said = error.diag.message_primary
        raise WrongDatabase(f"group {name}: {said}; stop the apps and run 'outbox rebase'") from None
