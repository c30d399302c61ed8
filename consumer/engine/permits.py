"""A fleet's caps, as one process keeps them: what it may run of each is what it holds permits for."""

import os
import socket
import time
from uuid import uuid4

import structlog

from consumer.decide.fairness import FleetNeed, Scheduler, Scope
from consumer.decide.permits import Claim, wanted_of
from consumer.engine.loop import Engine
from consumer.store import permits
from consumer.store.desk import Desk
from consumer.store.permits import Ask
from consumer.store.stored import Connection
from outbox.errors import LeaseLost, StoreUnavailable

_HUNGRY_S = 0.05
_HOLDING_S = 0.25
_IDLE_S = 30.0
_REAP_S = 1.0


class Permits:
    """Asks for permits for what *scheduler* cannot start for want of them, and gives back what it needs no more.

    The scheduler is told of less before the database is, and of more after, so it never lets more run than are held. A
    session that is lost takes all of them until there is a new one; what runs goes on, and is counted.
    """

    def __init__(self, *, group: str, engine: Engine, scheduler: Scheduler, desk: Desk, grace_s: float) -> None:
        """*desk* is for nothing else; *grace_s* is how long a lost session's permits stay its process's own."""
        self._group = group
        self._engine = engine
        self._scheduler = scheduler
        self._desk = desk
        self._grace_s = grace_s
        self._holder = uuid4()
        self._session: Connection | None = None
        self._held: dict[Scope, int] = {}  # as the database has it
        self._hungry: set[Scope] = set()  # as it knows
        self._claims: dict[Scope, Claim] = {}
        self._reaped_at = 0.0
        self._log = structlog.get_logger("consumer.engine.permits")

    async def follow(self) -> float:
        """Take and give back; says when to do it again."""
        try:
            async with self._desk.use() as connection:
                if connection is not self._session:
                    await self._register(connection)
                return await self._deal(connection)
        except StoreUnavailable:
            self._lose()
            raise
        except LeaseLost as error:
            self._log.warning("permits lost", reason=str(error))
            self._lose()
            return 0.0

    async def end(self) -> None:
        """Give back everything: nothing runs any more. Raises StoreUnavailable: then others find out by themselves."""
        if self._session is not None:
            async with self._desk.use() as connection:
                await permits.end(connection, self._holder)

    async def _register(self, connection: Connection) -> None:
        self._lose()
        self._held = await permits.register(
            connection, self._group, self._holder, host=socket.gethostname(), pid=os.getpid()
        )
        self._session = connection
        for scope, held in self._held.items():
            self._scheduler.permit(scope, held)

    def _lose(self) -> None:
        """Hold nothing, as far as is known."""
        self._session = None
        for need in self._scheduler.fleet_needs():
            self._scheduler.permit(need.scope, 0)
        self._held.clear()
        self._hungry.clear()

    async def _deal(self, connection: Connection) -> float:
        now = time.monotonic()
        if now - self._reaped_at >= (_REAP_S if self._hungry else _IDLE_S):
            self._reaped_at = now
            if reaped := await permits.reap(connection, self._group, self._holder, grace_s=self._grace_s):
                self._log.warning("permits of dead processes freed", processes=len(reaped))
        rivals = await permits.rivals(connection, self._group, self._holder)
        # Not before the last wait: what starts between the look at what runs and what is given back goes uncounted.
        asks = self._asks({need.scope: need for need in self._scheduler.fleet_needs()}, rivals, now)
        if asks:
            held = await permits.hold(connection, self._group, self._holder, asks)
            for ask in asks:
                self._note(ask, held[ask.scope])
        self._engine.look()
        if self._hungry or any(ask.used > ask.asked for ask in asks):
            return _HUNGRY_S
        return _HOLDING_S if self._held else _IDLE_S

    def _asks(self, needs: dict[Scope, FleetNeed], rivals: dict[Scope, int], now: float) -> list[Ask]:
        """What has to change; where that is less, nothing more starts from here on."""
        asks = []
        for scope, need in needs.items():
            claim = self._claims.setdefault(scope, Claim(needed_at=now))
            asked, wanted = claim.ask(need, rivals=rivals.get(scope, 0), now=now), wanted_of(need)
            held = self._held.get(scope, 0)
            if asked != need.held and asked <= held:
                self._scheduler.permit(scope, asked)
            if asked != held or (wanted > held) != (scope in self._hungry):
                asks.append(Ask(scope=scope, most=need.most, asked=asked, used=need.used, wanted=wanted))
        for scope in self._held.keys() - needs.keys():
            asks.append(Ask(scope=scope, most=0, asked=0, used=0, wanted=0))
        for scope in self._claims.keys() - needs.keys():
            del self._claims[scope]
        return asks

    def _note(self, ask: Ask, held: int) -> None:
        self._scheduler.permit(ask.scope, min(held, ask.asked))
        if held:
            self._held[ask.scope] = held
        else:
            self._held.pop(ask.scope, None)
        if ask.wanted > held:
            self._hungry.add(ask.scope)
        else:
            self._hungry.discard(ask.scope)
