"""The control table, as one process follows it: what is paused, and who has which weight."""

import time
from collections.abc import Collection, Mapping
from typing import Final

import structlog

from consumer.decide.control import Control, Pause, paused_scopes
from consumer.decide.fairness import PauseScope, Scheduler
from consumer.engine.loop import Engine
from consumer.engine.restraint import Restraint
from consumer.registry import Registry
from consumer.store import control as table
from consumer.store.desk import Desk
from consumer.store.put_off import put_off_suspects, release
from consumer.store.stored import Connection
from outbox.event import Tier
from outbox.naming import Lane

_POLL_S: Final = 1.0
_POLL_MIN_S: Final = 0.02
# What another process put off a moment after the pause had ended, as it did not know yet, is looked for a while longer;
# what one put off that then died, now and then.
_RELEASE_FOR_S: Final = 5.0
_RELEASE_S: Final = 60.0


class Weights:
    """Each tenant's share, in proportion to others of its tier: what a scheduler asks for."""

    def __init__(self) -> None:
        self._by_tenant: Mapping[str, int] = {}

    def of(self, tenant: str) -> int:
        """The weight of *tenant*: 1 if nobody said otherwise."""
        return self._by_tenant.get(tenant, 1)

    def replace(self, by_tenant: Mapping[str, int]) -> None:
        """Take *by_tenant* instead of what was said before."""
        self._by_tenant = by_tenant


class Controls:
    """What the table says of one group, applied to one scheduler, and read again every second."""

    def __init__(
        self,
        *,
        group: str,
        registry: Registry,
        desk: Desk,
        scheduler: Scheduler,
        weights: Weights,
        restraint: Restraint,
    ) -> None:
        """What breakers pause in this process holds as well as what the table says."""
        self._group = group
        self._registry = registry
        self._desk = desk
        self._scheduler = scheduler
        self._weights = weights
        self._restraint = restraint
        self._in_force: frozenset[PauseScope] = frozenset()
        self._paused: Mapping[PauseScope, Pause] = {}
        self._release_until = 0.0
        self._released_at = -_RELEASE_S
        self._log = structlog.get_logger("consumer.engine.control")

    @property
    def pauses(self) -> int:
        """How many pauses hold here."""
        return len(self._paused)

    async def follow(self, engine: Engine) -> float:
        """Read the table and do as it says; says when to do it again."""
        async with self._desk.use() as connection:
            control = await table.read(connection, self._group)
            has_ended = self.apply(control)
            if self._in_force:
                await put_off_suspects(connection, self._group, paused=self._in_force)
            if await self._release(connection, has_ended=has_ended):
                engine.work_stored.set()
        heavy = [weight.tenant for weight in control.weights if weight.weight > 1]
        engine.lanes.favour(Lane(group=self._group, tier=tier, tenant=tenant) for tenant in heavy for tier in Tier)
        if control.is_group_paused:
            await engine.suspend()
        else:
            await engine.go_on()
        if has_ended:
            engine.stir()
        change_s = control.seconds_to_change()
        return _POLL_S if change_s is None else min(_POLL_S, max(_POLL_MIN_S, change_s))

    def apply(self, control: Control) -> bool:
        """Let the scheduler do as *control* says from now on. Whether anything was resumed."""
        paused = paused_scopes(control.pauses, types_of=self._types_of)
        in_force = self._restraint.paused.union(paused)
        ended = self._in_force - in_force
        for tier, tenant, event_type in ended:
            self._scheduler.resume(tier=tier, tenant=tenant, type=event_type)
        for tier, tenant, event_type in in_force - self._in_force:
            self._scheduler.pause(tier=tier, tenant=tenant, type=event_type)
        self._tell(self._paused.values(), paused.values())
        self._paused, self._in_force = paused, in_force
        self._weights.replace({weight.tenant: weight.weight for weight in control.weights})
        return bool(ended)

    async def _release(self, connection: Connection, *, has_ended: bool) -> int:
        now = time.monotonic()
        if has_ended:
            self._release_until = now + _RELEASE_FOR_S
        if now > self._release_until and now < self._released_at + _RELEASE_S:
            return 0
        self._released_at = now
        return await release(connection, self._group, paused=self._in_force)

    def _types_of(self, handler: str) -> Collection[str]:
        registry = self._registry
        return [name for name in registry.types if any(one.name == handler for one in registry.handlers_of(name))]

    def _tell(self, before: Collection[Pause], after: Collection[Pause]) -> None:
        was, is_now = {one.scope: one for one in before}, {one.scope: one for one in after}
        for scope in is_now.keys() - was.keys():
            pause = is_now[scope]
            until = None if pause.until is None else pause.until.isoformat()
            self._log.warning("paused", scope=str(scope), by=pause.actor, reason=pause.reason, until=until)
        for scope in was.keys() - is_now.keys():
            self._log.warning("pause ended", scope=str(scope))
