"""Two services that each handle every event once."""

import sqlalchemy as sa
from sqlalchemy.orm import Session

from outbox import Tier
from tests.scenarios import audit, bank, billing
from tests.scenarios.world import World

_BILLED = "SELECT count(*), count(DISTINCT posting_id) FROM bill"


async def test_two_groups_each_handle_every_event_once(world: World) -> None:
    engine = world.engine()
    billing.metadata.create_all(engine)
    relay, bookings = world.relay(), world.consumer()
    _commit(engine, first=0)
    await world.until_value("SELECT count(*) FROM effect", 60)
    # While the relay runs: it takes the new group's buckets by itself, from now on and not before.
    code, output = await world.command("outbox", "group", "add", "billing")
    assert (code, output) == (0, "group billing reads every event committed from now on\n")
    bills = world.consumer("tests.scenarios.billing:consumer")
    _commit(engine, first=1)
    engine.dispose()
    await world.until_value("SELECT count(*) FROM effect", 120)
    await world.until_value("SELECT count(*) FROM bill", 60)
    await world.until_idle(bookings, bills)
    assert [await service.end() for service in (relay, bookings, bills)] == [0, 0, 0]
    assert audit.effects(world) == audit.GOOD
    assert await audit.left_over(world) == audit.NOTHING
    assert world.rows(_BILLED) == [(60, 60)]
    assert {name: count for name, count in (await world.queues()).items() if count} == {}


def _commit(engine: sa.Engine, *, first: int) -> None:
    with Session(engine) as session, session.begin():
        for tenant in ("acme", "globex"):
            name = f"till {first}"
            session.execute(sa.insert(bank.account).values(tenant=tenant, name=name, number=0))
            bank.post(session, tenant=tenant, name=name, tier=Tier.STANDARD, count=20)
            bank.note(session, tenant=tenant, tier=Tier.BULK, count=10)
