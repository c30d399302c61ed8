"""A cap of the whole fleet, while processes work, stand still, and die."""

import asyncio

from sqlalchemy.orm import Session

from outbox import Tier
from tests.scenarios import bank, capped
from tests.scenarios.world import LEASE_S, Service, World

_APP = "tests.scenarios.capped:consumer"
_HELD = "SELECT coalesce(sum(held), 0) FROM consumer.permit"
_SEEN = "SELECT count(*) FROM seen"


def _note(world: World, *, count: int) -> None:
    engine = world.engine()
    with Session(engine) as session, session.begin():
        for number in range(count):
            bank.note(session, tenant=f"tenant-{number % 3}", tier=Tier.STANDARD)
    engine.dispose()


async def _until_quiet(world: World) -> None:
    """Wait for a moment without a statement: what a process asked for before it was stopped is done even so."""
    active = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'active'"
    await world.until_value(f"{active} AND pid <> pg_backend_pid()", 0, every_s=0.01)


async def test_a_fleets_cap_holds_at_every_instant_while_processes_freeze_and_are_killed(world: World) -> None:
    """hatchet-dev/hatchet#4778."""
    world.execute(capped.MAKE)
    _note(world, count=60)
    world.relay()
    one, other = (world.consumer(_APP, slots="6") for _ in range(2))

    def runs(service: Service) -> int:
        found: int = world.value("SELECT count(*) FROM runs WHERE pid = %s", service.process.pid)
        return found

    await world.until_value("SELECT count(DISTINCT pid) FROM seen", 2, what="both processes to have had a permit")
    await world.until_value(f"SELECT EXISTS (SELECT FROM runs WHERE pid = {one.process.pid})", True)
    one.process.freeze()
    await _until_quiet(world)
    frozen_with, before = runs(one), world.value(_SEEN)
    # Its lease and the grace run out meanwhile, and still its handlers count: they go on when it does.
    await asyncio.sleep(2 * LEASE_S + 1)
    assert runs(one) == frozen_with
    assert world.value("SELECT max(count) FROM seen") <= capped.MOST
    if frozen_with == 1:
        assert world.value(_SEEN) > before, "want the permits that are left to be used"
    one.process.thaw()
    await world.until_value(f"SELECT count(*) > {before + 4} FROM seen", True)

    await world.until_value(f"SELECT EXISTS (SELECT FROM runs WHERE pid = {one.process.pid})", True)
    one.process.kill()
    await _until_quiet(world)
    world.execute(f"DELETE FROM runs WHERE pid = {one.process.pid}")
    await world.until_value("SELECT count(DISTINCT event_id) FROM consumer.ledger WHERE state = 'done'", 60)
    assert world.value("SELECT max(count) FROM seen") == capped.MOST
    assert world.value("SELECT max(attempt) FROM seen") == 1
    await world.until_value(_HELD, 0, what="permits that nobody needs to be given back")
    assert await other.end() == 0
    assert world.value("SELECT count(*) FROM consumer.permit_holder") == 0
