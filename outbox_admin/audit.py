"""Who did what to the log: one row in ``outbox.audit`` for each thing an operator asked for."""

import getpass
import os
from collections.abc import Mapping
from typing import Final

from psycopg.types.json import Jsonb

from outbox.shell.database import Connection

_RECORD: Final = "INSERT INTO outbox.audit (actor, action, group_name, detail) VALUES (%s, %s, %s, %s)"


def named(actor: str | None) -> str:
    """Return *actor*, else the login; in a container, whose user has a number and no name, ``uid 10001``."""
    if actor:
        return actor
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # the latter from Python 3.13 on
        return f"uid {os.getuid()}"


async def record(
    connection: Connection, *, actor: str, action: str, group: str | None, detail: Mapping[str, object]
) -> None:
    """Write one row, in the transaction that *connection* is in: it commits with what it tells of, or not at all.

    *action*: what was asked, as ``deferred.retry``. *group*: None where it is about all of them.
    """
    await connection.execute(_RECORD, (actor, action, group, Jsonb(detail)))
