"""Permits on a real database: never more than there are, given back, taken over, and shared."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from uuid import uuid4

import psycopg
import pytest

from consumer import Cap, Consumer, Context
from consumer.store import permits
from consumer.store.permits import Ask
from outbox.errors import LeaseLost
from outbox.event import EventModel
from tests.integration.consumer.conftest import Connect
from tests.support.engine import GROUP, TYPE, Rig, an_event, memory_rig
from tests.support.wait import until

SCOPE = (None, TYPE)
WAITING = """
    SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database
    WHERE d.datname = current_database() AND NOT l.granted
"""


class OrderPlaced(EventModel, type=TYPE):
    order_id: int


def an_ask(asked: int, *, used: int = 0, most: int = 5, scope: tuple[str | None, str | None] = SCOPE) -> Ask:
    return Ask(scope=scope, most=most, asked=asked, used=used, wanted=asked)


# ------------------------------------------------------------------ the table


async def test_processes_that_ask_at_once_never_hold_more_than_there_are(connect: Connect) -> None:
    """hatchet-dev/hatchet#4778."""
    scopes = [(None, TYPE), ("acme", None), ("acme", TYPE)]
    dice = random.Random(4)
    overfull: list[object] = []
    watcher = await connect()

    async def play() -> None:
        connection, holder = await connect(), uuid4()
        await permits.register(connection, GROUP, holder, host="here", pid=1)
        for _ in range(60):
            asks = [an_ask(dice.randint(0, 5), scope=scope) for scope in scopes]
            held = await permits.hold(connection, GROUP, holder, asks)
            assert all(held[ask.scope] <= ask.asked for ask in asks)

    async def watch() -> None:
        while True:
            cursor = await watcher.execute(
                "SELECT tenant, type, sum(held) FROM consumer.permit GROUP BY 1, 2 HAVING sum(held) > 5"
            )
            overfull.extend(await cursor.fetchall())

    watching = asyncio.create_task(watch())
    async with asyncio.timeout(30):
        await asyncio.gather(*(play() for _ in range(5)))
    watching.cancel()
    assert overfull == []


async def test_what_runs_counts_even_where_less_is_left(connect: Connect) -> None:
    mine, others = await connect(), await connect()
    me, other = uuid4(), uuid4()
    for connection, holder in ((mine, me), (others, other)):
        await permits.register(connection, GROUP, holder, host="here", pid=1)
    assert await permits.hold(others, GROUP, other, [an_ask(4)]) == {SCOPE: 4}
    assert await permits.hold(mine, GROUP, me, [an_ask(3, used=2)]) == {SCOPE: 2}
    assert await permits.hold(others, GROUP, other, [an_ask(4)]) == {SCOPE: 3}
    assert await permits.rivals(mine, GROUP, me) == {SCOPE: 1}


async def test_a_session_that_ends_frees_its_permits_after_a_while_and_one_that_stands_still_never(
    connect: Connect,
) -> None:
    mine, idle, dead = [await connect() for _ in range(3)]
    me, still, gone = uuid4(), uuid4(), uuid4()
    for connection, holder in ((mine, me), (idle, still), (dead, gone)):
        await permits.register(connection, GROUP, holder, host="here", pid=1)
        await permits.hold(connection, GROUP, holder, [an_ask(1)])
    await dead.close()

    assert await permits.reap(mine, GROUP, me, grace_s=3600) == []
    assert await permits.hold(mine, GROUP, me, [an_ask(9)]) == {SCOPE: 3}

    reaped: list[object] = []

    async def is_reaped() -> bool:
        reaped.extend(await permits.reap(mine, GROUP, me, grace_s=0.2))
        return bool(reaped)

    await until(is_reaped, what="the dead one to be found")
    assert reaped == [gone]
    assert await permits.hold(mine, GROUP, me, [an_ask(9)]) == {SCOPE: 4}


async def test_a_process_whose_session_was_cut_comes_back_in_time_and_holds_what_it_held(connect: Connect) -> None:
    mine, cut = await connect(), await connect()
    me, other = uuid4(), uuid4()
    await permits.register(cut, GROUP, other, host="here", pid=1)
    await permits.hold(cut, GROUP, other, [an_ask(2)])
    await permits.register(mine, GROUP, me, host="here", pid=1)
    await cut.close()

    async def is_missed() -> bool:
        await permits.reap(mine, GROUP, me, grace_s=3600)
        cursor = await mine.execute("SELECT FROM consumer.permit_holder WHERE missed_at IS NOT NULL")
        return await cursor.fetchone() is not None

    await until(is_missed, what="it to be missed")
    back = await connect()
    assert await permits.register(back, GROUP, other, host="here", pid=1) == {SCOPE: 2}
    assert await permits.reap(mine, GROUP, me, grace_s=0) == []

    await mine.execute("DELETE FROM consumer.permit_holder WHERE id = %s", (other,))
    with pytest.raises(LeaseLost, match="its session was gone for too long"):
        await permits.hold(back, GROUP, other, [an_ask(1)])


# ------------------------------------------------------------------ the engine


@pytest.fixture
async def rig(migrated_database: str) -> AsyncIterator[Rig]:
    async with memory_rig(migrated_database) as rig:
        yield rig


class Watched:
    """A handler that knows how many of it run in all processes."""

    def __init__(self, rig: Rig, *, handler_s: float = 0.01) -> None:
        self.running: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.attempts: list[int] = []
        self.done: set[int] = set()
        self._rig = rig
        self._handler_s = handler_s

    def has_done(self, more: int) -> bool:
        """Whether it has done more than so many."""
        return len(self.done) > more

    def consumer(self, *limits: Cap) -> Consumer:
        consumer = Consumer(GROUP)

        @consumer.on(OrderPlaced, limits=limits, name="handle")
        async def handle(event: OrderPlaced, ctx: Context) -> None:
            for name in (ctx.tenant, "all"):
                self.running[name] += 1
                self.most[name] = max(self.most[name], self.running[name])
            self.attempts.append(ctx.attempt)
            try:
                await asyncio.sleep(self._handler_s)
            finally:
                for name in (ctx.tenant, "all"):
                    self.running[name] -= 1
            self.done.add(event.order_id)

        return consumer


async def test_three_processes_keep_to_a_fleets_caps_and_each_gets_on(rig: Rig) -> None:
    """hatchet-dev/hatchet#4778, bensheldon/good_job#603."""
    watched = [Watched(rig) for _ in range(3)]
    every = watched[0]
    for one in watched[1:]:
        one.running, one.most = every.running, every.most
    for one in watched:
        await rig.start(consumer=one.consumer(Cap(3, scope="fleet"), Cap(2, per="tenant", scope="fleet")))
    await rig.publish(*(an_event(number, tenant=f"t{number % 4}") for number in range(900)))
    await rig.until(lambda: sum(len(one.done) for one in watched) >= 900, deadline_s=60)
    assert every.most["all"] == 3
    assert max(every.most[f"t{number}"] for number in range(4)) == 2
    assert all(one.done for one in watched), "want every process to have had permits"
    assert {attempt for one in watched for attempt in one.attempts} == {1}
    await rig.until(lambda: rig.value("SELECT coalesce(sum(held), 0) FROM consumer.permit") == 0)


async def test_with_one_permit_for_several_processes_it_goes_round(rig: Rig) -> None:
    watched = [Watched(rig) for _ in range(3)]
    for one in watched[1:]:
        one.running, one.most = watched[0].running, watched[0].most
    for one in watched:
        await rig.start(consumer=one.consumer(Cap(1, scope="fleet")))
    await rig.publish(*(an_event(number, tenant=f"t{number % 4}") for number in range(400)))
    await rig.until(lambda: all(one.done for one in watched), deadline_s=30)
    assert watched[0].most["all"] == 1


async def test_what_started_while_permits_were_dealt_is_counted(
    rig: Rig, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("consumer.decide.permits.LINGER_S", 60.0)  # it keeps two though it needs one
    may_end = {number: asyncio.Event() for number in (1, 2, 3)}
    running = set()

    @rig.consumer.on(OrderPlaced, limits=[Cap(2, scope="fleet")], name="handle")
    async def handle(event: OrderPlaced, ctx: Context) -> None:
        running.add(event.order_id)
        await may_end[event.order_id].wait()
        running.discard(event.order_id)

    await rig.start()
    await rig.publish(an_event(1), an_event(2))
    await rig.until(lambda: running == {1, 2})
    may_end[1].set()
    await rig.until(lambda: rig.value("SELECT count(*) FROM consumer.ledger WHERE state = 'done'") == 1)

    rival, other = await connect(), uuid4()
    await permits.register(rival, GROUP, other, host="here", pid=1)
    # A deal waits at each of its two statements. At the first of them it has one event to run, and then a second.
    for step in range(3):
        async with rival.transaction():
            assert await permits.hold(rival, GROUP, other, [an_ask(1, most=2)]) == {SCOPE: 0}
            await rival.execute("LOCK TABLE consumer.permit IN ACCESS EXCLUSIVE MODE")
            await rig.until(lambda: rig.value(WAITING) == 1)
            if step == 0:
                await rig.publish(an_event(3))
                await rig.until(lambda: running == {2, 3})
    may_end[2].set()

    async def has_one() -> bool:
        return await permits.hold(rival, GROUP, other, [an_ask(1, most=2)]) == {SCOPE: 1}

    await until(has_one, what="the rival to get what is free now")
    assert running == {3}
    may_end[3].set()
    await rig.until_settled()


async def test_permits_of_a_process_that_crashed_come_free_and_its_events_are_handled(rig: Rig) -> None:
    rig.limits = replace(rig.limits, lease_s=3.0)
    stuck, free = Watched(rig, handler_s=60.0), Watched(rig)
    limits = Cap(1, per="tenant", scope="fleet")
    crashing = await rig.start(consumer=stuck.consumer(limits))
    await rig.publish(an_event(1), an_event(2))
    await rig.until(lambda: stuck.running["all"] == 1)
    await rig.start(consumer=free.consumer(limits))
    await crashing.crash()
    await rig.until(lambda: free.done == {1, 2})


async def test_a_process_that_loses_its_permits_session_starts_nothing_until_it_has_another(rig: Rig) -> None:
    watched = Watched(rig)
    await rig.start(consumer=watched.consumer(Cap(2, scope="fleet")))
    await rig.publish(*(an_event(number, tenant=f"t{number % 4}") for number in range(200)))
    await rig.until(lambda: len(watched.done) > 5)
    for more in (5, 50, 100):
        with psycopg.connect(rig.database_url, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1"
                " AND (classid::bigint << 32) | objid::bigint IN"
                " (SELECT consumer.holder_lock(id) FROM consumer.permit_holder)"
            )
        await rig.until(partial(watched.has_done, more))
    await rig.until(lambda: len(watched.done) == 200, deadline_s=30)
    assert watched.most["all"] == 2
