"""The whole engine when a process, the database or the broker dies under it, or it is asked to end."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from urllib.parse import urlsplit

import psycopg
import pytest
from sqlalchemy import make_url, text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from consumer import Context, Outcome, Policy, Retry
from consumer.store import work
from outbox.event import EventModel
from tests.integration.consumer.conftest import Connect
from tests.support.engine import TYPE, MemoryQueues, Rig, an_event, lane_of, memory_rig
from tests.support.proxy import Moment, Proxy
from tests.support.waiting_events import new_work

INSERT = text("INSERT INTO effect (note) VALUES (:note)")
AT_ONCE = Policy(base_s=0.01, max_wait_s=0.02, budget=None, breaker=None)


class OrderPlaced(EventModel, type=TYPE):
    order_id: int


@pytest.fixture
async def rig(migrated_database: str) -> AsyncIterator[Rig]:
    async with memory_rig(migrated_database) as rig:
        yield rig


@asynccontextmanager
async def proxy_to(database_url: str) -> AsyncIterator[tuple[Proxy, str]]:
    """A proxy before the database, and the URL that goes through it."""
    address = urlsplit(database_url)
    async with Proxy(host=address.hostname or "", port=address.port or 5432, speaks="postgres") as proxy:
        through = make_url(database_url).set(host="127.0.0.1", port=proxy.port)
        yield proxy, through.render_as_string(hide_password=False)


def queues_of(rig: Rig) -> MemoryQueues:
    assert isinstance(rig.queues, MemoryQueues)
    return rig.queues


# ------------------------------------------------------------------ processes


async def test_the_event_of_a_worker_that_died_mid_handler_comes_back(rig: Rig) -> None:
    """celery/celery#1628."""
    started = asyncio.Event()
    attempts: list[int] = []

    @rig.consumer.on(OrderPlaced)
    async def bill(event: OrderPlaced, ctx: Context, session: AsyncSession) -> None:
        attempts.append(ctx.attempt)
        await session.execute(INSERT, {"note": "billed"})
        started.set()
        if len(attempts) == 1:
            await asyncio.Event().wait()

    first = await rig.start()
    await rig.publish(an_event())
    await asyncio.wait_for(started.wait(), 10)
    await first.crash()
    assert rig.effects() == []
    await rig.start()
    await rig.until(lambda: rig.effects() == ["billed"])
    await rig.until_settled()
    assert attempts == [1, 1]


async def test_work_rows_of_a_process_that_died_are_taken_over_when_its_lease_is_over(rig: Rig) -> None:
    """procrastinate-org/procrastinate#1518, a job that stays with a worker that is gone."""
    started = asyncio.Event()

    @rig.consumer.on(OrderPlaced, policy=AT_ONCE)
    async def bill(event: OrderPlaced, ctx: Context, session: AsyncSession) -> Outcome | None:
        if ctx.attempt == 1:
            return Retry()
        if not started.is_set():
            started.set()
            await asyncio.Event().wait()
        await session.execute(INSERT, {"note": f"attempt {ctx.attempt}"})
        return None

    rig.limits = replace(rig.limits, lease_s=1.0)
    first = await rig.start()
    await rig.publish(an_event())
    await asyncio.wait_for(started.wait(), 10)
    await first.crash()
    await rig.start()
    await rig.until(lambda: rig.effects() == ["attempt 2"])
    await rig.until(lambda: rig.count("consumer.work") == 0)


async def test_a_planned_end_just_after_success_redelivers_nothing(rig: Rig) -> None:
    """Bogdanp/dramatiq#148."""
    runs: list[int] = []
    handled = asyncio.Event()

    @rig.consumer.on(OrderPlaced)
    async def bill(event: OrderPlaced) -> None:
        runs.append(event.order_id)
        handled.set()

    first = await rig.start()
    event = an_event()
    await rig.publish(event)
    await asyncio.wait_for(handled.wait(), 10)
    await first.drain()
    assert await rig.queues.in_queue(lane_of(event).queue) == 0
    assert rig.states() == [("bill", "done", 1)]


async def test_a_planned_end_hands_unstarted_work_back_uncharged_and_finishes_what_runs(rig: Rig) -> None:
    """taskiq-python/taskiq#380, JasperFx/wolverine#4213."""
    finish, all_run = asyncio.Event(), asyncio.Event()
    runs: list[int] = []

    @rig.consumer.on(OrderPlaced)
    async def bill(event: OrderPlaced, session: AsyncSession) -> None:
        runs.append(event.order_id)
        if len(runs) == 7:
            all_run.set()
        await finish.wait()
        await session.execute(INSERT, {"note": str(event.order_id)})

    first = await rig.start()
    lane = lane_of(an_event())
    await rig.publish(*(an_event(number) for number in range(12)))
    await asyncio.wait_for(all_run.wait(), 10)
    first.stop.request()
    await rig.until(lambda: not first.is_ready())
    queue = queues_of(rig).inner.queues[lane.queue]
    await rig.until(lambda: len(queue.ready) == 5, what="what had not started to be in the lane again")
    finish.set()
    await asyncio.wait_for(first.task, 10)
    assert sorted(rig.effects(), key=int) == sorted(map(str, runs), key=int)
    assert await rig.queues.in_queue(lane.queue) == 5
    await rig.start()
    await rig.until(lambda: rig.count("effect") == 12)
    assert rig.value("SELECT max(attempts) FROM consumer.ledger") == 1


async def test_a_second_request_ends_the_process_at_once_and_charges_nobody(rig: Rig) -> None:
    started = asyncio.Event()

    @rig.consumer.on(OrderPlaced)
    async def bill(event: OrderPlaced, session: AsyncSession) -> None:
        await session.execute(INSERT, {"note": "never"})
        started.set()
        await asyncio.Event().wait()

    process = await rig.start()
    event = an_event()
    await rig.publish(event)
    await asyncio.wait_for(started.wait(), 10)
    process.stop.request()
    process.stop.request()
    await asyncio.wait_for(process.task, 10)
    assert (rig.effects(), rig.states()) == ([], [])
    assert await rig.queues.in_queue(lane_of(event).queue) == 1
    assert rig.count("consumer.incarnation") == 0


async def test_a_planned_end_lets_a_sync_handler_finish(rig: Rig) -> None:
    started, finish = threading.Event(), threading.Event()

    @rig.consumer.on(OrderPlaced)
    def bill(event: OrderPlaced, session: Session) -> None:
        session.execute(INSERT, {"note": "billed"})
        started.set()
        finish.wait(10)

    process = await rig.start()
    event = an_event()
    await rig.publish(event)
    await rig.until(started.is_set)
    process.stop.request()
    await rig.until(lambda: not process.is_ready())
    finish.set()
    await asyncio.wait_for(process.task, 10)
    assert rig.effects() == ["billed"]
    assert await rig.queues.in_queue(lane_of(event).queue) == 0


async def test_a_second_request_does_not_wait_for_handlers_that_block_their_threads(rig: Rig) -> None:
    started, finish = threading.Semaphore(0), threading.Event()

    @rig.consumer.on(OrderPlaced)
    def bill(event: OrderPlaced) -> None:
        started.release()
        finish.wait(30)

    process = await rig.start()
    await rig.publish(*(an_event(number) for number in range(7)))
    for _ in range(7):
        await rig.until(lambda: started.acquire(blocking=False))
    process.stop.request()
    process.stop.request()
    try:
        await asyncio.wait_for(process.task, 8)
    finally:
        finish.set()


async def test_a_planned_end_gives_work_rows_back_at_once(rig: Rig) -> None:
    @rig.consumer.on(OrderPlaced, policy=Policy(base_s=3600, max_wait_s=3600))
    async def bill(event: OrderPlaced) -> Outcome | None:
        return Retry()

    process = await rig.start()
    await rig.publish(an_event())
    await rig.until(lambda: rig.count("consumer.work") == 1)
    await process.drain()
    assert rig.rows("SELECT owner, attempts FROM consumer.work") == [(None, 1)]
    assert rig.count("consumer.incarnation") == 0


# ------------------------------------------------------------------ database


@pytest.mark.parametrize("moment", ["before_request", "before_answer"])
async def test_connections_cut_inside_commits_leave_one_effect_each(rig: Rig, moment: Moment) -> None:
    """JasperFx/wolverine GH-5410."""

    @rig.consumer.on(OrderPlaced, policy=AT_ONCE)
    async def bill(event: OrderPlaced, ctx: Context, session: AsyncSession) -> Outcome | None:
        if event.order_id % 2 and ctx.attempt == 1:
            return Retry()
        await session.execute(INSERT, {"note": str(event.order_id)})
        return None

    async with proxy_to(rig.database_url) as (proxy, through):
        await rig.start(database_url=through)
        for number in range(6):
            proxy.cut_at_commit(moment)
            await rig.publish(an_event(number))
            await asyncio.wait_for(proxy.fired.wait(), 10)
        await rig.until(lambda: rig.count("effect") >= 6)
        await rig.until_settled()
        await rig.until(lambda: rig.count("consumer.work") == 0)
        await rig.close()
    assert sorted(rig.effects()) == [str(number) for number in range(6)]
    assert rig.value("SELECT max(attempts) FROM consumer.ledger") == 2


async def test_rows_that_were_claimed_though_the_answer_was_lost_are_handled(rig: Rig, connect: Connect) -> None:
    @rig.consumer.on(OrderPlaced)
    async def bill(event: OrderPlaced, session: AsyncSession) -> None:
        await session.execute(INSERT, {"note": str(event.order_id)})

    async with proxy_to(rig.database_url) as (proxy, through):
        proxy.cut_at_commit("before_answer")
        await rig.start(database_url=through)
        await work.put(await connect(), [new_work(an_event(1), handlers=("bill",))])

        def is_claimed() -> bool:
            if proxy.fired.is_set():
                proxy.cut_at_commit("before_answer")  # that was a claim of nothing
            return rig.count("consumer.work WHERE owner IS NOT NULL") == 1

        await rig.until(is_claimed)
        await rig.until(lambda: rig.effects() == ["1"])
        await rig.until(lambda: rig.count("consumer.work") == 0)
        await rig.close()


async def test_a_database_outage_pauses_charges_nobody_and_ends_by_itself(rig: Rig) -> None:
    """procrastinate-org/procrastinate#1446."""

    @rig.consumer.on(OrderPlaced)
    async def bill(event: OrderPlaced, session: AsyncSession) -> None:
        await session.execute(INSERT, {"note": str(event.order_id)})

    async with proxy_to(rig.database_url) as (proxy, through):
        process = await rig.start(database_url=through)
        await rig.publish(an_event(0))
        await rig.until(lambda: rig.count("effect") == 1)
        await proxy.refuse()
        await rig.publish(*(an_event(number, tenant=f"t{number}") for number in range(1, 10)))
        await rig.until(lambda: not process.is_ready())
        await proxy.open()
        await rig.until(lambda: rig.count("effect") == 10)
        await rig.until(process.is_ready)
        await rig.until_settled()
        await rig.close()
    assert rig.value("SELECT max(attempts) FROM consumer.ledger") == 1
    assert (rig.count("consumer.work"), rig.count("consumer.dead")) == (0, 0)


async def test_a_failure_that_cannot_be_written_down_is_tried_again(rig: Rig) -> None:
    """procrastinate-org/procrastinate#1446: an error while recording a retry."""
    runs: list[int] = []

    @rig.consumer.on(OrderPlaced, policy=AT_ONCE)
    async def bill(event: OrderPlaced, ctx: Context, session: AsyncSession) -> Outcome | None:
        runs.append(ctx.attempt)
        if len(runs) == 2:
            rig.execute("DROP TRIGGER refuse ON consumer.work")
        return Retry() if len(runs) < 3 else None

    rig.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''full''; END';"
        "CREATE TRIGGER refuse BEFORE INSERT ON consumer.work EXECUTE FUNCTION refuse()"
    )
    await rig.start()
    await rig.publish(an_event())
    await rig.until(lambda: rig.states() == [("bill", "done", 2)])
    await rig.until(lambda: rig.count("consumer.work") == 0)


async def test_a_handler_that_kills_its_connection_each_time_is_charged_in_the_end(rig: Rig) -> None:
    runs: list[int] = []

    @rig.consumer.on(OrderPlaced, policy=replace(AT_ONCE, max_retries=0))
    async def bill(event: OrderPlaced, session: AsyncSession) -> None:
        runs.append(event.order_id)
        pid = await session.scalar(text("SELECT pg_backend_pid()"))
        rig.execute(f"SELECT pg_terminate_backend({pid})")
        await session.execute(INSERT, {"note": "never"})

    await rig.start()
    await rig.publish(an_event())
    await rig.until(lambda: rig.count("consumer.dead") == 1)
    assert len(runs) == 4
    assert rig.effects() == []


# ------------------------------------------------------------------ broker


async def test_a_channel_that_is_lost_during_a_handler_cancels_nothing_and_doubles_nothing(rig: Rig) -> None:
    """mosquito/aiormq#70."""
    started, finish = asyncio.Event(), asyncio.Event()
    runs: list[int] = []

    @rig.consumer.on(OrderPlaced)
    async def bill(event: OrderPlaced, session: AsyncSession) -> None:
        runs.append(event.order_id)
        await session.execute(INSERT, {"note": "billed"})
        started.set()
        await finish.wait()

    process = await rig.start()
    event = an_event()
    await rig.publish(event)
    await asyncio.wait_for(started.wait(), 10)
    queues_of(rig).inner.drop_connections()
    # The broker hands it out again while the first still runs.
    await rig.until(process.is_ready)
    queue = queues_of(rig).inner.queues[lane_of(event).queue]
    await rig.until(lambda: queue.unsettled == 1 and not queue.ready)
    finish.set()
    await rig.until_settled()
    assert (runs, rig.effects()) == ([1], ["billed"])


async def test_deliveries_of_a_lost_channel_are_dropped_and_the_worker_lives(rig: Rig) -> None:
    """mosquito/aio-pika#312, #688."""
    all_run, finish = asyncio.Event(), asyncio.Event()
    running: list[int] = []

    @rig.consumer.on(OrderPlaced)
    async def bill(event: OrderPlaced, session: AsyncSession) -> None:
        running.append(event.order_id)
        if len(running) == 7:
            all_run.set()
        await finish.wait()
        await session.execute(INSERT, {"note": str(event.order_id)})

    process = await rig.start()
    await rig.publish(*(an_event(number, tenant=f"t{number}") for number in range(20)))
    await asyncio.wait_for(all_run.wait(), 10)
    for _ in range(3):
        queues_of(rig).inner.drop_connections()
        await rig.until(lambda: not process.is_ready())
        await rig.until(process.is_ready)
    finish.set()
    await rig.until_settled()
    assert sorted(rig.effects(), key=int) == [str(number) for number in range(20)]


async def test_readiness_is_red_while_the_broker_is_away(rig: Rig) -> None:
    """ag2ai/faststream#2758, celery/celery#10302."""

    @rig.consumer.on(OrderPlaced)
    async def bill(event: OrderPlaced, session: AsyncSession) -> None:
        await session.execute(INSERT, {"note": "billed"})

    process = await rig.start()
    inner = queues_of(rig).inner
    inner.is_down = True
    inner.drop_connections()
    await rig.until(lambda: not process.is_ready())
    await rig.publish(an_event())
    inner.is_down = False
    await rig.until(process.is_ready)
    await rig.until(lambda: rig.effects() == ["billed"])


async def test_an_event_that_a_frozen_process_has_holds_no_slot_elsewhere(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is stopped, not dead, keeps its transactions open."""
    monkeypatch.setattr("consumer.engine.attempt._CLAIM_S", 0.2)

    @rig.consumer.on(OrderPlaced)
    async def bill(event: OrderPlaced, session: AsyncSession) -> None:
        await session.execute(INSERT, {"note": str(event.order_id)})

    event = an_event(7)
    with psycopg.connect(rig.database_url) as frozen:
        slot = int(event.ledger_time.timestamp() // 86_400) % 16
        frozen.execute(
            f"INSERT INTO consumer.ledger_{slot} (slot, group_name, event_id, handler, tenant, state, attempts)"
            " VALUES (%s, 'billing', %s, 'bill', 'acme', 'done', 1)",
            (slot, event.id),
        )
        await rig.start()
        await rig.publish(event)
        await rig.until(lambda: rig.rows("SELECT reason FROM consumer.work") == [("held",)])
        await rig.until_settled()
        frozen.rollback()
    rig.execute("UPDATE consumer.work SET due_at = now()")
    await rig.until(lambda: rig.effects() == ["7"])
    await rig.until(lambda: rig.count("consumer.work") == 0)
