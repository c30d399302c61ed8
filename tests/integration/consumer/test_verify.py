"""A fleet that is watched on a real database: it is verified while it works, and not when it does harm or nothing."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from consumer import Context, DeadLetter, Outcome
from consumer.decide.control import Scope
from consumer.decide.verification import Wanted
from consumer.store import control
from consumer.store.stored import Connection
from consumer.verify import Fleet, Verdict, watch
from outbox.event import EventModel
from outbox.naming import Lane
from tests.support.engine import GROUP, TYPE, Rig, an_event, memory_rig


class OrderPlaced(EventModel, type=TYPE):
    order_id: int


@pytest.fixture
async def rig(migrated_database: str) -> AsyncIterator[Rig]:
    async with memory_rig(migrated_database) as rig:

        @rig.consumer.on(OrderPlaced)
        async def bill(event: OrderPlaced, ctx: Context) -> Outcome | None:
            return DeadLetter(reason=f"no such order, {ctx.tenant}") if event.order_id < 0 else None

        rig.limits = replace(rig.limits, version="2")
        yield rig


async def verified(rig: Rig, connection: Connection, fleet: Fleet, *, within_s: float = 15.0) -> Verdict:
    async def depths(lanes: Sequence[Lane]) -> int:
        return sum([await rig.queues.in_queue(lane.queue) for lane in lanes])

    wanted = Wanted(group=GROUP, fleet=str(fleet), processes=1, settled=1, dead=0, watch_s=1.0)
    return await watch(connection, fleet, wanted, depths=depths, within_s=within_s)


def refused(verdict: Verdict) -> list[str]:
    return [one.name for one in verdict.findings if not one.is_ok]


async def test_a_new_fleet_is_told_from_the_old_one_by_its_version_or_its_start(
    rig: Rig, connection: Connection
) -> None:
    await rig.start()
    await rig.publish(an_event(1))
    assert refused(await verified(rig, connection, Fleet(version="2"))) == []
    other = await verified(rig, connection, Fleet(version="3"), within_s=0.1)
    assert "processes" in refused(other)
    assert "0 of 1 processes of version 3 are alive, and 1 others" in other.findings[0].says
    late = Fleet(since=datetime.now(UTC) + timedelta(hours=1))
    assert "processes" in refused(await verified(rig, connection, late, within_s=0.1))


async def test_code_that_kills_events_in_a_new_way_is_refused_at_once_and_old_dead_letters_are_not_its_fault(
    rig: Rig, connection: Connection
) -> None:
    await rig.publish(an_event(-1, tenant="acme"))
    process = await rig.start()
    await rig.until(lambda: rig.count("consumer.dead") == 1)
    await process.drain()
    await rig.start()
    assert refused(await verified(rig, connection, Fleet())) == []

    await rig.publish(an_event(-1, tenant="another-tenant"))
    await rig.until(lambda: rig.count("consumer.dead") == 2)
    rig.execute("UPDATE consumer.dead SET fingerprint = id::text")
    assert "dead letters" in refused(await verified(rig, connection, Fleet(), within_s=600))


async def test_a_process_that_died_or_whose_group_is_paused_is_not_verified(rig: Rig, connection: Connection) -> None:
    await rig.publish(an_event(1))
    process = await rig.start()
    await rig.until_settled()
    await control.pause(connection, GROUP, Scope(), actor="ann", reason="")
    assert "lanes" in refused(await verified(rig, connection, Fleet(), within_s=0.1))
    await process.crash()
    rig.execute("UPDATE consumer.incarnation SET expires_at = clock_timestamp() - interval '1 s'")
    assert "processes" in refused(await verified(rig, connection, Fleet(), within_s=0.1))
