"""Everything at once: twenty tenants, ordering keys, failing handlers, and both processes killed again and again."""

import asyncio
import os
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from outbox import Tier
from tests.scenarios import audit, bank
from tests.scenarios.world import Service, World
from tests.support.wait import until

_TENANTS = [f"tenant {number}" for number in range(20)]
# An account's tier is fixed: numbers count per tenant, tier and key.
_ACCOUNTS = [("till", Tier.INTERACTIVE), ("savings", Tier.STANDARD), ("payroll", Tier.BULK)]
_THREADS = 4
_AFTER_MAX_S = 1.0


@dataclass(slots=True)
class App:
    """Commits postings from several threads, and some more before each kill, so that none finds nothing to do."""

    engine: sa.Engine
    seed: int
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _allowed: int = 0
    _begun: int = 0
    _is_over: bool = False

    def allow(self, count: int) -> None:
        """Let *count* more events be committed."""
        with self._changed:
            self._allowed += count
            self._changed.notify_all()

    def end(self) -> None:
        """Let the threads end when they have committed what was allowed."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def run(self, number: int) -> None:
        """Be one thread of the app, until all is committed."""
        rng = random.Random(self.seed * _THREADS + number)
        while count := self._begin(rng.choice([1, 1, 1, 2, 3, 10])):
            self._commit(rng, count)

    def _begin(self, count: int) -> int:
        with self._changed:
            while self._begun == self._allowed and not self._is_over:
                self._changed.wait()
            count = min(count, self._allowed - self._begun)
            self._begun += count
            return count

    def _commit(self, rng: random.Random, count: int) -> None:
        if rng.random() < 0.1:
            self._roll_back(rng)
        tenant = rng.choice(_TENANTS)
        with Session(self.engine) as session, session.begin():
            if rng.random() < 0.2:
                bank.note(session, tenant=tenant, tier=rng.choice(list(Tier)), count=count)
            else:
                name, tier = rng.choice(_ACCOUNTS)
                stumbles = rng.random() < 0.03
                bank.post(session, tenant=tenant, name=name, tier=tier, count=count, stumbles=stumbles)

    def _roll_back(self, rng: random.Random) -> None:
        with Session(self.engine) as session, session.begin() as transaction:
            bank.post(session, tenant=rng.choice(_TENANTS), name="till", tier=Tier.INTERACTIVE)
            transaction.rollback()


async def _kill_again_and_again(
    start: Callable[[], Service], more: Callable[[], None], rng: random.Random, *, works: str, times: int
) -> None:
    """Kill what *start* starts, at random moments after the metric *works* has moved, and leave a last one running.

    That many *times*. *more* gives it something to do before each kill.
    """

    async def has_worked() -> bool:
        assert service.process.is_running(), service.process.output[-3000:]
        return await service.metric(works) > 0

    for _ in range(times):
        service = start()
        await until(has_worked, deadline_s=30.0, what=f"{service.process.name} to work")
        # Not for anything that could be waited for: moments are random on purpose, the second amid what comes now.
        await asyncio.sleep(rng.uniform(0.0, _AFTER_MAX_S))
        more()
        await asyncio.sleep(rng.uniform(0.1, 0.5))
        service.process.kill()
    start()


# Alone it takes under a minute; on a busy machine it may take its time, and nothing but time.
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("broker", "events", "kills"), [("rabbitmq", 5_000, 5), ("postgres", 2_000, 3)])
async def test_nothing_is_lost_doubled_or_reordered_when_both_processes_are_killed_again_and_again(
    world: World, events: int, kills: int
) -> None:
    seed = int(os.environ.get("SCENARIO_SEED") or random.SystemRandom().randrange(10_000))
    print(f"seed: SCENARIO_SEED={seed}")
    rng = random.Random(seed)
    engine = world.engine()
    with engine.begin() as connection:
        rows = [{"tenant": tenant, "name": name, "number": 0} for tenant in _TENANTS for name, _ in _ACCOUNTS]
        connection.execute(sa.insert(bank.account), rows)
    app = App(engine, seed)
    share = events // (2 * kills + 1)

    def more() -> None:
        app.allow(share)

    relay_rng, consumer_rng = random.Random(rng.random()), random.Random(rng.random())
    threads = [asyncio.create_task(asyncio.to_thread(app.run, number)) for number in range(_THREADS)]
    try:
        app.allow(events - 2 * kills * share)
        await asyncio.gather(
            _kill_again_and_again(world.relay, more, relay_rng, works="outbox_relay_published_total", times=kills),
            _kill_again_and_again(
                world.consumer,
                more,
                consumer_rng,
                works='outbox_consumer_settled_total{outcome="done"}',
                times=kills,
            ),
        )
    finally:
        app.end()
        await asyncio.gather(*threads)
    engine.dispose()

    await world.until_value("SELECT count(DISTINCT posting_id) FROM effect", events, deadline_s=150.0)
    last = [service for service in world.services if service.process.is_running()]
    await world.until_idle(*(service for service in last if service.process.name == "outbox-consumer"))
    assert [await service.end() for service in last] == [0, 0]

    assert audit.effects(world) == audit.GOOD
    assert await audit.left_over(world) == audit.NOTHING
    assert {name: count for name, count in (await world.queues()).items() if count} == {}
    # It was not for nothing: both kinds of duplicates came, and what the dead had held was taken over.
    duplicates = sum(len(service.said("delivery settled", outcome="duplicate")) for service in world.services)
    takeovers = sum(len(service.said("buckets taken")) for service in world.services)
    found_dead = sum(len(service.said("dead process found")) for service in world.services)
    retried = world.value("SELECT count(*) FROM effect WHERE attempt > 1")
    print(f"duplicates suppressed {duplicates}, takeovers {takeovers}, dead found {found_dead}, retried {retried}")
    assert duplicates + retried > 0
    assert takeovers > kills
    assert found_dead > 0
    assert retried > 0
