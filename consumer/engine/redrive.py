"""What was buried only because no code here knew it is replayed by itself once some does."""

from datetime import timedelta
from typing import Final

import structlog

from consumer.engine.lease import Lease
from consumer.engine.loop import Engine
from consumer.store import replay, unknown
from consumer.store.desk import Desk
from consumer.store.stored import Connection
from consumer.store.unknown import Kind
from outbox.errors import StoreUnavailable, TransientError

#: Who asks, in the audit.
ACTOR: Final = "outbox-consumer"

_IDLE_S: Final = 5.0
_BUSY_S: Final = 1.0
_GIVE_UP_S: Final = 15.0


class Redrive:
    """Replays dead letters whose version, or type, this process's code reads; says when to look again.

    Old code beside it does not take what it replays, so nothing goes round; see ``store.work``.
    """

    def __init__(self, *, engine: Engine, desk: Desk, lease: Lease, per_s: int, type_age: timedelta) -> None:
        """*per_s*: letters a second, all processes together; 0 is none. *type_age* is for those of unknown type."""
        self._engine = engine
        self._desk = desk
        self._lease = lease
        self._per_s = per_s
        self._type_age = type_age
        self._log = structlog.get_logger("consumer.engine.redrive")

    async def give_up(self) -> float:
        """Let anybody have what no code that runs can read any more: it is a dead letter again, in sight."""
        async with self._desk.use() as connection:
            if left := await unknown.give_up(connection, self._engine.group, owner=self._lease.id):
                self._log.warning("nobody reads what waits", rows=left)
                self._engine.work_stored.set()
        return _GIVE_UP_S

    async def run(self) -> float:
        """Replay a second's worth."""
        left = self._per_s
        if left == 0 or self._engine.is_draining:
            return _IDLE_S
        async with self._desk.use() as connection:
            for kind in await unknown.led(connection, self._engine.group, owner=self._lease.id):
                if left > 0:
                    left -= await self._replay(connection, kind, limit=left)
        return _IDLE_S if left == self._per_s else _BUSY_S

    async def _replay(self, connection: Connection, kind: Kind, *, limit: int) -> int:
        group = self._engine.group
        ids = await unknown.letters(connection, group, kind, owner=self._lease.id, type_age=self._type_age, limit=limit)
        if not ids:
            return 0
        try:
            resolved = await replay.replay(connection, group, ids, actor=ACTOR, per_s=self._per_s)
            # A duplicate may have been buried beside what was handled: then there is nothing left to do.
            done = [one.id for one in resolved.refused if one.because == replay.DONE_MEANWHILE]
            if done:
                await replay.discard(connection, group, done, actor=ACTOR)
        except StoreUnavailable:
            raise
        except TransientError:  # one of them was buried again in between
            return 0
        self._engine.work_stored.set()
        self._log.info("dead letters replayed", event_type=kind.type, version=kind.version, letters=len(resolved.ids))
        return len(ids)
