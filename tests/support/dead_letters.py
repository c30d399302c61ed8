"""Deciding about dead letters by a filter, as ``outbox dead`` does, in one batch."""

from consumer.store import dead_list
from consumer.store import replay as store
from consumer.store.dead_list import DeadFilter
from consumer.store.replay import Resolved
from consumer.store.stored import Connection


async def replay(
    connection: Connection, letters: DeadFilter, *, actor: str = "ops", limit: int = 1000, per_s: float | None = None
) -> Resolved:
    """Have what fits handled again."""
    return await store.replay(
        connection, letters.group, await _ids(connection, letters, limit), actor=actor, per_s=per_s
    )


async def discard(connection: Connection, letters: DeadFilter, *, actor: str = "ops", limit: int = 1000) -> Resolved:
    """Let what fits go."""
    return await store.discard(connection, letters.group, await _ids(connection, letters, limit), actor=actor)


async def _ids(connection: Connection, letters: DeadFilter, limit: int) -> list[int]:
    return await dead_list.ids(connection, letters, after_id=0, to_id=2**62, limit=limit)
