"""This process's lease on the work rows it holds, and what it knows of the database's clock."""

import os
import socket
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from uuid import UUID

import structlog

from consumer.engine.loop import Engine
from consumer.store import incarnation
from consumer.store.desk import Desk
from consumer.store.stored import Connection
from outbox.errors import LeaseLost


class Clock:
    """The database's clock, from the last time that it was asked."""

    def __init__(self) -> None:
        self._offset = timedelta()

    def now(self) -> datetime:
        """What the database would say, within the time that asking took and the drift since."""
        return datetime.now(UTC) + self._offset

    async def ask(self, connection: Connection) -> None:
        """Set it anew."""
        cursor = await connection.execute("SELECT clock_timestamp()")
        row = await cursor.fetchone()
        assert row is not None  # noqa: S101 - a function's result
        self._offset = row[0] - datetime.now(UTC)


class Lease:
    """One incarnation at a time. *id* changes when the lease was lost: what the old one owned may be another's."""

    def __init__(
        self,
        *,
        group: str,
        desk: Desk,
        clock: Clock,
        lease_s: float,
        version: str,
        knows: Mapping[str, Mapping[str, tuple[int, int]]] | None,
        id: UUID | None = None,
    ) -> None:
        """Nothing is begun yet.

        Args:
            version: the build that runs, as status and verify show it.
            knows: what its code reads, as ``incarnation.begin`` says.
            id: the first incarnation's, if whoever started this process is to know it.
        """
        self.id = UUID(int=0)
        self._given = id
        self._group = group
        self._desk = desk
        self._clock = clock
        self._lease_s = lease_s
        self._version = version
        self._knows = knows
        self._log = structlog.get_logger("consumer.engine.lease")

    async def begin(self) -> None:
        """Start a new incarnation. Raises StoreUnavailable, SchemaMissing."""
        async with self._desk.use() as connection:
            await self._begin(connection)

    async def renew(self, engine: Engine) -> float:
        """Renew, saying how *engine* does, and free what dead processes held; says when to do it again."""
        async with self._desk.use() as connection:
            await self._clock.ask(connection)
            try:
                await incarnation.renew(connection, self.id, lease_s=self._lease_s, heartbeat=engine.heartbeat())
            except LeaseLost as error:
                self._log.warning("lease lost", reason=str(error), incarnation=str(self.id))
                engine.hands.withdraw_work()
                await self._begin(connection)
            reaped = await incarnation.reap(connection, self._group)
        engine.tally.renewed_at = time.time()
        if reaped.incarnations or reaped.released:
            self._log.warning(
                "dead process found",
                processes=len(reaped.incarnations),
                released=reaped.released,
                incarnations=[str(one) for one in reaped.incarnations],
            )
            engine.work_stored.set()
        return self._lease_s / 3

    async def end(self) -> None:
        """Release every work row, uncharged. Raises StoreUnavailable: then the lease runs out by itself."""
        async with self._desk.use() as connection:
            await incarnation.end(connection, self.id)

    async def _begin(self, connection: Connection) -> None:
        await self._clock.ask(connection)
        self.id = await incarnation.begin(
            connection,
            self._group,
            host=socket.gethostname(),
            pid=os.getpid(),
            lease_s=self._lease_s,
            version=self._version,
            id=self._given,
            knows=self._knows,
        )
        self._given = None
