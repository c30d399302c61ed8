"""What the log still has, for a service that begins in the past and for a broker that lost what it had."""

import asyncio

import sqlalchemy as sa
from sqlalchemy.orm import Session

from outbox import Tier
from tests.scenarios import audit, bank, billing
from tests.scenarios.world import World
from tests.support.services import Rabbit
from tests.support.wait import until

_TENANTS = ("acme", "globex")
_ACCOUNTS = ("rent", "till")
_SINCE = "SELECT count(*) FROM outbox.event WHERE ledger_at >= %s"
_BILLED = "SELECT count(*), count(DISTINCT posting_id) FROM bill"
_FIRST = "SELECT DISTINCT min(number) FROM bill WHERE account IS NOT NULL GROUP BY tenant, account"
_DISORDERED = """
    SELECT count(*) FROM (
        SELECT number - lag(number) OVER (PARTITION BY tenant, account ORDER BY at) AS step
        FROM bill WHERE account IS NOT NULL
    ) s WHERE step <> 1"""


async def test_a_group_started_in_the_past_handles_each_event_since_then_once_and_in_order(world: World) -> None:
    engine = world.engine()
    billing.metadata.create_all(engine)
    _open_accounts(engine)
    relay, bookings = world.relay(), world.consumer()
    for _ in range(5):
        _post(engine)
    since = world.value("SELECT clock_timestamp()")
    for _ in range(15):
        _post(engine)
    await world.until_value("SELECT count(*) FROM effect", world.value("SELECT count(*) FROM posting"))
    code, output = await world.command("outbox", "group", "add", "billing", "--from", since.isoformat())
    assert code == 0, output
    # Two processes: one that has an event's successor must wait for the other that has the event.
    bills = [world.consumer("tests.scenarios.billing:consumer") for _ in range(2)]
    for _ in range(5):
        _post(engine)
    engine.dispose()
    await world.until_value("SELECT count(*) FROM bill", world.value(_SINCE, since), deadline_s=60)
    await world.until_value("SELECT count(*) FROM effect", world.value("SELECT count(*) FROM posting"))
    await world.until_idle(bookings, *bills)
    assert [await service.end() for service in (relay, bookings, *bills)] == [0, 0, 0, 0]
    assert audit.effects(world) == audit.GOOD
    assert await audit.left_over(world) == audit.NOTHING
    expected = 20 * _ROUND
    assert world.rows(_BILLED) == [(expected, expected)]
    assert world.rows(_FIRST) == [(6,)]
    assert world.value(_DISORDERED) == 0


async def test_what_a_broker_lost_is_replayed_and_nothing_is_handled_twice(world: World, rabbit_node: Rabbit) -> None:
    """A deleted vhost, a node that came back without its disk: every queue is gone, and what lay in it."""
    engine = world.engine()
    _open_accounts(engine)
    relay, bookings = world.relay(), world.consumer()
    for _ in range(5):
        _post(engine)
    await world.until_value("SELECT count(*) FROM effect", 5 * _ROUND)
    assert await bookings.end() == 0
    for _ in range(10):
        _post(engine)

    async def is_queued() -> bool:
        return sum(count for name, count in (await world.queues()).items() if ".lane." in name) == 10 * _ROUND

    await until(is_queued, deadline_s=30, what="events in the queues")
    await asyncio.to_thread(rabbit_node.management.delete_vhost, world.vhost)
    await relay.until_unready()
    await asyncio.to_thread(rabbit_node.management.add_vhost, world.vhost)
    await relay.until_ready()
    for _ in range(5):
        _post(engine)
    engine.dispose()
    bookings = world.consumer()
    code, output = await world.command("outbox", "replay", "--from", "oldest", "--group", "default", "--yes")
    assert code == 0, output
    await world.until_value("SELECT count(*) FROM effect", 20 * _ROUND, deadline_s=60)
    await world.until_value("SELECT count(*) FROM outbox.replay WHERE ended_at IS NULL", 0, deadline_s=60)
    await world.until_idle(bookings)
    assert [await service.end() for service in (relay, bookings)] == [0, 0]
    assert audit.effects(world) == audit.GOOD
    assert await audit.left_over(world) == audit.NOTHING
    assert world.rows("SELECT published >= events, failed FROM outbox.replay") == [(True, 0)]


_ROUND = len(_TENANTS) * (len(_ACCOUNTS) + 1)


def _open_accounts(engine: sa.Engine) -> None:
    with engine.begin() as connection:
        for tenant in _TENANTS:
            for name in _ACCOUNTS:
                connection.execute(sa.insert(bank.account).values(tenant=tenant, name=name, number=0))


def _post(engine: sa.Engine) -> None:
    """One posting to each account and one note for each tenant, each in its own transaction."""
    for tenant in _TENANTS:
        for name in _ACCOUNTS:
            with Session(engine) as session, session.begin():
                bank.post(session, tenant=tenant, name=name, tier=Tier.STANDARD)
        with Session(engine) as session, session.begin():
            bank.note(session, tenant=tenant, tier=Tier.BULK)
