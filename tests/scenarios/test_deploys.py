"""What docs/how-to/deploying.md promises, by real processes: code is replaced, rolled back, moved to another group."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import sqlalchemy as sa
from sqlalchemy.orm import Session

from outbox import Tier
from outbox.shell.exits import DONE, TRY_AGAIN
from tests.scenarios import audit, bank, billing
from tests.scenarios.world import Service, World
from tests.support.services import Rabbit

_NEXT = "tests.scenarios.next_release:consumer"
_BROKEN = "tests.scenarios.next_release:broken"
_BLUE = "tests.scenarios.billing:consumer"
_GREEN = "tests.scenarios.billing:green"
_TENANTS = ("acme", "globex")


async def test_a_broken_release_is_refused_and_rolled_back_and_the_next_replaces_the_old_code_event_for_event(
    world: World,
) -> None:
    _open_accounts(world)
    relay, old = world.relay(), world.consumer(version="1")
    async with _traffic(world):
        await world.until_value("SELECT count(*) > 8 FROM effect", True)
        broken = world.consumer(_BROKEN, version="2")
        code, output = await _verify(world, "--version", "2", "--json")
        assert (code, '"is_final": true' in output, "a bug of this release" in output) == (TRY_AGAIN, True, True)
        assert await broken.end() == DONE
        assert world.value("SELECT count(*) FROM consumer.dead") > 0
        code, output = await world.command("outbox", "dead", "replay", "--all")
        assert code == DONE, output

        new = world.consumer(_NEXT, version="3")
        code, output = await _verify(world, "--version", "3", "--watch", "2")
        assert (code, output.count("ok ")) == (DONE, 6), output
        assert "1 of 1 processes of version 3 are alive, and 1 others" in output
        assert await old.end() == DONE
        handled = world.value("SELECT count(*) FROM effect")
        await world.until_value(f"SELECT count(*) > {handled + 8} FROM effect", True)
    await _all_handled(world, new)
    assert [await service.end() for service in (relay, new)] == [DONE, DONE]
    assert world.value("SELECT count(DISTINCT pid) FROM effect") >= 2
    assert audit.effects(world) == audit.GOOD
    assert world.value("SELECT count(*) FROM consumer.dead WHERE resolution IS NULL") == 0


async def test_a_blue_green_switch_loses_nothing_and_the_old_group_leaves_nothing_behind(
    world: World, rabbit_node: Rabbit
) -> None:
    _open_accounts(world)
    engine = world.engine()
    billing.metadata.create_all(engine)
    engine.dispose()
    world.execute("SELECT outbox.add_group('billing')")
    relay, bookings, blue = world.relay(), world.consumer(), world.consumer(_BLUE)
    async with _traffic(world):
        await world.until_value("SELECT count(*) > 8 FROM bill", True)
        # Green writes anew what blue has written since the beginning: here into the same table, so that both show.
        assert (await world.command("outbox", "group", "add", "billing-2", "--from", "oldest"))[0] == DONE
        green = world.consumer(_GREEN)
        code, output = await _verify(world, "--group", "billing-2", "--watch", "2")
        assert code == DONE, output
        assert await blue.end() == DONE
        code, output = await world.command("outbox", "group", "remove", "billing", "--yes")
        assert code == DONE, output
    await _all_handled(world, bookings, green)
    await world.until_value(
        "SELECT count(*) FROM posting p WHERE NOT EXISTS (SELECT FROM bill b WHERE b.posting_id = p.id)", 0
    )
    await world.until_idle(bookings, green)
    # What both had is there twice, once of each; nothing is there a third time.
    assert world.value("SELECT max(n) FROM (SELECT count(*) AS n FROM bill GROUP BY posting_id) counted") == 2
    left = await asyncio.to_thread(rabbit_node.management.queue_names, world.vhost)
    assert [name for name in left if "billing" in name and "billing-2" not in name] == []
    assert world.value("SELECT count(*) FROM outbox.bucket WHERE group_name = 'billing'") == 0
    assert world.value("SELECT count(*) FROM consumer.work WHERE group_name = 'billing'") == 0
    assert [await service.end() for service in (relay, bookings, green)] == [DONE, DONE, DONE]
    assert audit.effects(world) == audit.GOOD


async def _verify(world: World, *arguments: str) -> tuple[int, str]:
    group = () if "--group" in arguments else ("--group", "default")
    return await world.command("outbox-consumer", "verify", *group, *arguments)


def _open_accounts(world: World) -> None:
    engine = world.engine()
    with engine.begin() as connection:
        for tenant in _TENANTS:
            connection.execute(sa.insert(bank.account).values(tenant=tenant, name="till", number=0))
    engine.dispose()


@asynccontextmanager
async def _traffic(world: World) -> AsyncIterator[None]:
    """An app that commits all the while, so that every step of a deploy meets events."""
    engine, is_over = world.engine(), asyncio.Event()

    def post() -> None:
        for tenant in _TENANTS:
            with Session(engine) as session, session.begin():
                bank.post(session, tenant=tenant, name="till", tier=Tier.STANDARD)
                bank.note(session, tenant=tenant, tier=Tier.INTERACTIVE)

    async def go_on() -> None:
        while not is_over.is_set():
            await asyncio.to_thread(post)
            with suppress(TimeoutError):
                await asyncio.wait_for(is_over.wait(), 0.2)

    posting = asyncio.create_task(go_on())
    try:
        yield
    finally:
        is_over.set()
        await posting
        engine.dispose()


async def _all_handled(world: World, *consumers: Service) -> None:
    await world.until_value("SELECT count(*) FROM effect", world.value("SELECT count(*) FROM posting"), deadline_s=60)
    await world.until_idle(*consumers)
