"""How long attempts keep their transactions open: one that is open for long holds up vacuum for everybody."""

import asyncio
import time
from collections.abc import Sequence
from typing import Final

import structlog

from consumer.engine.slot import Slot

_LOOK_S: Final = 1.0


class Transactions:
    """Watches *slots*; one that is open for longer than *warn_s* is told of once. *long* counts those."""

    def __init__(self, slots: Sequence[Slot], *, warn_s: float) -> None:
        self.long = 0
        self._slots = slots
        self._warn_s = warn_s
        self._told: dict[int, float] = {}  # which attempt of a slot was told of, by when it began
        self._log = structlog.get_logger("consumer.engine.transactions")

    @property
    def oldest_s(self) -> float:
        """For how long the oldest one is open."""
        now = time.monotonic()
        return max((now - slot.attempt_since for slot in self._slots if slot.attempt_since is not None), default=0.0)

    async def watch(self) -> None:
        """Look once a second, for ever."""
        while True:
            self.look(time.monotonic())
            await asyncio.sleep(_LOOK_S)

    def look(self, now: float) -> None:
        """Tell of those that are open for too long by *now*."""
        for slot in self._slots:
            since, job = slot.attempt_since, slot.attempt_job
            if since is None or job is None or now - since <= self._warn_s or self._told.get(slot.number) == since:
                continue
            self._told[slot.number] = since
            self.long += 1
            self._log.warning(
                "transaction open for long",
                handler=job.handler.name,
                event_id=str(job.event.id),
                event_type=job.event.type,
                tenant=job.event.tenant,
                open_s=round(now - since, 1),
            )
