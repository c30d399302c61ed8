"""Who did what to a group: one row in ``consumer.audit`` for each thing an operator asked for."""

from collections.abc import Mapping
from typing import Final

from psycopg.types.json import Jsonb

from consumer.store.stored import Connection


async def record(connection: Connection, *, actor: str, action: str, group: str, detail: Mapping[str, object]) -> None:
    """Write one row, in the caller's transaction: it commits with what it tells of, or not at all.

    *action*: what was asked, as ``dead.replay``.
    """
    await connection.execute(_RECORD, (actor, action, group, Jsonb(detail)))


_RECORD: Final = "INSERT INTO consumer.audit (actor, action, group_name, detail) VALUES (%s, %s, %s, %s)"
