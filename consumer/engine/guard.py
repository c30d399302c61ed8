"""Before an event is handled that a process may have died of: a mark, committed first, of who begins it.

Redelivered is no suspicion: a broker that restarts says it of everything, and so does a channel that was lost. Suspect
is what was begun, not ended, and whose process has died since. That is run again by a process that runs nothing else.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, assert_never
from uuid import UUID

from consumer.engine.item import Item
from consumer.engine.path import Path, Walked
from consumer.engine.slot import Slot
from consumer.engine.telling import Settled
from consumer.store import start
from consumer.store.desk import Desk
from consumer.store.start import Begun
from outbox.event import Event

# What has ended need not be told at once: a death in between only has it looked at once more.
_END_S: Final = 0.25
_LEDGER_S: Final = 3.0


class Guard:
    """Walks by *path*. *incarnation* is asked for each time: a process that loses its lease is another one.

    *suspected* is set when there is a suspect more.
    """

    def __init__(self, *, group: str, path: Path, desk: Desk, incarnation: Callable[[], UUID]) -> None:
        self.suspected = asyncio.Event()
        self._group = group
        self._path = path
        self._desk = desk
        self._incarnation = incarnation
        self._ended: dict[UUID, UUID] = {}
        self._ending: dict[UUID, UUID] = {}
        self._is_ending = asyncio.Lock()

    def walk(self, slot: Slot, item: Item) -> Awaitable[Walked]:
        """As ``Path.walk``. What comes for the first time, and that is almost everything, costs nothing here."""
        return self._walk_doubted(slot, item) if item.is_doubted else self._path.walk(slot, item)

    async def end_marks(self) -> float:
        """Remove the marks of what has ended; says after how many seconds to do it again."""
        async with self._is_ending:
            self._ending, self._ended = self._ended, {}
            try:
                if ended := self._ending:
                    async with self._desk.use() as connection:
                        await start.end(connection, self._group, ended, incarnations=set(ended.values()))
            except BaseException:
                self._ended = {**self._ending, **self._ended}
                raise
            finally:
                self._ending = {}
        return _END_S

    async def _walk_doubted(self, slot: Slot, item: Item) -> Walked:
        event = item.envelope
        if not isinstance(event, Event) or item.handlers == ():
            return await self._path.walk(slot, item)  # no code of the app's will see it
        incarnation = self._incarnation()
        if event.id in self._ending:
            async with self._is_ending:
                pass  # or the mark that is set next would be removed for the one before
        self._ended.pop(event.id, None)
        async with slot.connection.committing() as connection:
            begun = await start.begin(connection, self._group, event.id, incarnation=incarnation)
        match begun:
            case Begun.HERE:
                try:
                    return await self._path.walk(slot, item)
                finally:
                    self._ended[event.id] = incarnation
            case Begun.ELSEWHERE:
                return await self._path.park(slot.connection, item)
            case Begun.UNENDED:
                return await self._suspect(slot, item, event)
            case _:
                assert_never(begun)

    async def _suspect(self, slot: Slot, item: Item, event: Event) -> Settled:
        try:
            async with asyncio.timeout(_LEDGER_S):
                settled = await self._path.suspect(slot.connection, item, event)
        except TimeoutError:  # a frozen process has the ledger's row: it is not dead after all
            return await self._path.park(slot.connection, item)
        if settled.outcome == "suspect":
            self.suspected.set()
        else:
            async with slot.connection.committing() as connection:
                await start.forget(connection, self._group, event.id)
        return settled
