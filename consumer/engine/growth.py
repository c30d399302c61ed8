"""Whoever looks after a group of dead letters is told when it grows."""

from typing import Final

from consumer.engine.lease import Lease
from consumer.engine.loop import Engine
from consumer.ports import AlertKind
from consumer.store import growth
from consumer.store.desk import Desk

_LOOK_S: Final = 15.0


class OwnedGrowth:
    """Raises an alert that names the owner, from one process of the group; says when to look again."""

    def __init__(self, *, engine: Engine, desk: Desk, lease: Lease) -> None:
        self._engine = engine
        self._desk = desk
        self._lease = lease

    async def look(self) -> float:
        """Look at what died since the last time."""
        async with self._desk.use() as connection:
            grown = await growth.owned(connection, self._engine.group, asked_by=self._lease.id, within_s=_LOOK_S)
        for one in grown:
            self._engine.alarm.sound(
                AlertKind.DEAD_GROWTH,
                f"{one.letters} more dead letters like those that {one.owner} looks after:"
                f" outbox dead list --group {self._engine.group} --fingerprint {one.fingerprint}",
                event_type=one.type,
            )
        return _LOOK_S
