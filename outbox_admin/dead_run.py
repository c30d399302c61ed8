"""Deciding about many dead letters: a batch at a time, no faster than asked, and told while it goes on."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from consumer.store import dead_list
from consumer.store.dead_list import DeadFilter
from consumer.store.replay import Refusal, Resolved
from consumer.store.stored import Connection
from outbox.errors import TransientError

Decide: TypeAlias = Callable[[Sequence[int]], Awaitable[Resolved]]

_BATCH: Final = 500
_TRIES: Final = 5
_PAUSE_S: Final = 0.2


@dataclass(slots=True, kw_only=True)
class Tally:
    """How far it has come. It is right at every moment, so also after an interruption."""

    total: int
    done: int = 0
    refused: list[Refusal] = field(default_factory=list)
    seen: set[int] = field(default_factory=set)

    @property
    def left(self) -> int:
        """How many were not looked at yet."""
        return self.total - self.done - len(self.refused)

    def add(self, resolved: Resolved) -> None:
        """Count one batch."""
        self.done += len(resolved.ids)
        self.refused += resolved.refused
        self.seen.update(resolved.ids, (one.id for one in resolved.refused))


async def in_batches(
    connection: Connection,
    letters: DeadFilter,
    decide: Decide,
    *,
    tally: Tally,
    to_id: int,
    per_s: float | None,
    tell: Callable[[], None],
) -> None:
    """Have *decide* decide about *letters* up to the number *to_id*, oldest first, ``tally.total`` at most.

    Each batch is decided as a whole or not at all, so it may be broken off anywhere and run again. What dies again
    meanwhile has a higher number, and so is not replayed for ever.

    Args:
        per_s: how many a second; a second's worth is a batch.
    """
    after_id, began = 0, time.monotonic()
    size = _BATCH if per_s is None else max(1, min(_BATCH, int(per_s)))
    looked_at = 0
    while looked_at < tally.total:
        limit = min(size, tally.total - looked_at)
        chosen = await dead_list.ids(connection, letters, after_id=after_id, to_id=to_id, limit=limit)
        if not chosen:
            return
        tally.add(await _decided(decide, chosen))
        after_id, looked_at = chosen[-1], looked_at + len(chosen)
        tell()
        if per_s is not None and looked_at < tally.total:
            await asyncio.sleep(max(0.0, began + looked_at / per_s - time.monotonic()))


async def _decided(decide: Decide, chosen: Sequence[int]) -> Resolved:
    """Once more where a process buried one of them again in between; then they are another letter, or the same."""
    for _ in range(_TRIES - 1):
        try:
            return await decide(chosen)
        except TransientError as error:
            if type(error) is not TransientError:  # the database is away
                raise
            await asyncio.sleep(_PAUSE_S)
    return await decide(chosen)
