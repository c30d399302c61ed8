"""Leased handlers and those the ledger is not asked for, in the whole engine: what runs, how often, who is fenced."""

import asyncio
import threading
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession
from structlog.testing import capture_logs

from consumer import Context, DeadLetter, Done, Drop, Outcome, Policy, Retry, Snooze
from consumer.api import LedgerName
from consumer.store.dead_list import DeadFilter
from outbox.event import Event, EventModel, Ordering
from tests.integration.consumer.conftest import Connect
from tests.support.dead_letters import replay
from tests.support.engine import GROUP, TYPE, Rig, an_event, memory_rig

AT_ONCE = Policy(base_s=0.01, max_wait_s=0.02, budget=None, breaker=None)
IN_TRANSACTION = """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND xact_start IS NOT NULL
      AND backend_type = 'client backend'
"""
LEDGERS: tuple[LedgerName, ...] = ("transactional", "leased", "none")


class OrderPlaced(EventModel, type=TYPE):
    order_id: int


@pytest.fixture
async def rig(migrated_database: str) -> AsyncIterator[Rig]:
    async with memory_rig(migrated_database) as rig:
        yield rig


def keyed(number: int, *, key: str = "k") -> Ordering:
    return Ordering(
        key=key, number=number, is_first=number == 1, previous_time=None if number == 1 else an_event().ledger_time
    )


async def test_a_leased_handler_runs_once_per_event_with_no_transaction_open(rig: Rig) -> None:
    runs: list[tuple[int, int | None]] = []

    @rig.consumer.on(OrderPlaced, ledger="leased")
    async def call(event: OrderPlaced, ctx: Context) -> None:
        runs.append((event.order_id, ctx.fencing_token))
        if event.order_id == 0:
            await rig.until(lambda: rig.value(IN_TRANSACTION) == 0)
            assert rig.value("SELECT state FROM consumer.ledger WHERE attempts = 1 LIMIT 1") == "running"

    await rig.start()
    await rig.publish(an_event(0, tenant="slow"))
    await rig.until(lambda: runs)
    events = [an_event(number, tenant=f"t{number % 5}") for number in range(1, 100)]
    await rig.publish(*events, *events[:20])
    await rig.until(lambda: rig.value("SELECT count(*) FROM consumer.ledger WHERE state = 'done'") == 100)
    await rig.until_settled()
    assert sorted(number for number, _ in runs) == list(range(100))
    assert len({token for _, token in runs}) == 100


async def test_a_sync_leased_handler_runs_on_its_slots_thread(rig: Rig) -> None:
    runs: list[int] = []

    @rig.consumer.on(OrderPlaced, ledger="leased", policy=AT_ONCE)
    def call(event: OrderPlaced, ctx: Context) -> Outcome | None:
        assert threading.current_thread().name.startswith("consumer-slot")
        runs.append(ctx.attempt)
        return Retry() if ctx.attempt == 1 else None

    await rig.start()
    await rig.publish(an_event())
    await rig.until(lambda: rig.states() == [("call", "done", 2)])
    assert runs == [1, 2]


@pytest.mark.parametrize("ledger", LEDGERS[1:])
async def test_every_outcome_of_a_handler_without_a_transaction_is_kept(rig: Rig, ledger: LedgerName) -> None:
    attempts: dict[int, list[int]] = {}

    @rig.consumer.on(OrderPlaced, ledger=ledger, policy=replace(AT_ONCE, max_retries=2))
    async def call(event: OrderPlaced, ctx: Context) -> Outcome | None:
        mine = attempts.setdefault(event.order_id, [])
        mine.append(ctx.attempt)
        match event.order_id:
            case 1:
                raise ConnectionError
            case 2:
                return DeadLetter(reason="no")
            case 3:
                return Drop(reason="not mine")
            case 4 if len(mine) == 1:
                return Snooze(for_s=0.01)
            case 5 if len(mine) == 1:
                return Retry()
            case _:
                return None

    await rig.start()
    events = [an_event(number) for number in range(1, 6)]
    await rig.publish(*events)
    await rig.until(lambda: rig.count("consumer.dead") == 2)
    await rig.until(lambda: [len(attempts.get(number, [])) for number in range(1, 6)] == [3, 1, 1, 2, 2])
    await rig.until(lambda: rig.count("consumer.work") == 0)
    assert attempts == {1: [1, 2, 3], 2: [1], 3: [1], 4: [1, 1], 5: [1, 2]}
    states = sorted(rig.rows("SELECT state, attempts FROM consumer.ledger"))
    assert states == [("dead", 1), ("dead", 3), ("done", 1), ("done", 2), ("skipped", 1)]


@pytest.mark.parametrize("ledger", LEDGERS[1:])
async def test_keyed_events_keep_their_order_in_several_processes_whatever_the_mode(
    rig: Rig, ledger: LedgerName
) -> None:
    seen: dict[str, list[int]] = {}
    running: set[str] = set()

    @rig.consumer.on(OrderPlaced, ledger=ledger, policy=AT_ONCE)
    async def call(event: OrderPlaced, ctx: Context) -> Outcome | None:
        assert ctx.event.ordering is not None
        key, number = ctx.event.ordering.key, ctx.event.ordering.number
        assert key not in running
        running.add(key)
        await asyncio.sleep(0)
        running.discard(key)
        if number == 3 and ctx.attempt == 1:
            return Retry()
        if ledger == "leased" or number not in seen.setdefault(key, []):  # a duplicate may run where none is known
            seen.setdefault(key, []).append(number)
        return None

    for _ in range(3):
        await rig.start()
    events = [an_event(number, ordering=keyed(number, key=key)) for number in range(1, 7) for key in ("a", "b")]
    await rig.publish(*reversed(events[:6]), *events[6:], *events[4:8])
    await rig.until(lambda: {key: len(numbers) for key, numbers in seen.items()} == {"a": 6, "b": 6}, deadline_s=20)
    assert seen == {"a": [1, 2, 3, 4, 5, 6], "b": [1, 2, 3, 4, 5, 6]}
    await rig.until(lambda: rig.rows("SELECT DISTINCT number FROM consumer.key_position") == [(6,)])
    # A duplicate that is still under way holds its key for a moment.
    await rig.until(lambda: rig.count("consumer.key_claim") == 0)


async def test_the_event_of_a_leased_worker_that_died_is_taken_over_uncharged_and_said_so(rig: Rig) -> None:
    """celery/celery#1628"""
    started = asyncio.Event()
    runs: list[tuple[int, int | None]] = []

    @rig.consumer.on(OrderPlaced, ledger="leased")
    async def call(event: OrderPlaced, ctx: Context) -> None:
        runs.append((ctx.attempt, ctx.fencing_token))
        if len(runs) == 1:
            started.set()
            await asyncio.Event().wait()

    rig.limits = replace(rig.limits, lease_s=1.0)
    first = await rig.start()
    await rig.publish(an_event())
    await asyncio.wait_for(started.wait(), 10)
    await first.crash()
    with capture_logs() as logs:
        await rig.start()
        await rig.until(lambda: rig.states() == [("call", "done", 1)])
    await rig.until(lambda: rig.count("consumer.work") == 0)
    assert [attempt for attempt, _ in runs] == [1, 1]
    assert runs[0][1] < runs[1][1]  # type: ignore[operator]
    told = [line for line in logs if line["event"] == "claim taken over"]
    assert [(line["handler"], line["unended"]) for line in told] == [("call", 1)]


async def test_who_outlives_the_lease_is_fenced_and_says_so(rig: Rig) -> None:
    """A process that stood still past its lease, and wakes: the effect of whoever took over is the one that counts."""
    woken = asyncio.Event()
    runs: list[str] = []

    @rig.consumer.on(OrderPlaced, ledger="leased")
    async def call(event: OrderPlaced) -> None:
        runs.append("")
        if len(runs) == 1:
            # What a frozen process does not do either: renew.
            rig.execute("UPDATE consumer.incarnation SET expires_at = clock_timestamp() - interval '1 s'")
            await woken.wait()

    event = an_event()
    await rig.start()
    await rig.publish(event)
    await rig.until(lambda: runs)
    await rig.start()
    await rig.publish(*[event] * 30)  # more than one process takes, so the other is given some
    await rig.until(lambda: rig.states() == [("call", "done", 1)])
    with capture_logs() as logs:
        woken.set()
        await rig.until(lambda: any(line["event"] == "claim lost" for line in logs))
    await rig.until_settled()
    assert rig.states() == [("call", "done", 1)]
    assert len(runs) == 2


async def test_an_outage_while_a_leased_handler_runs_runs_it_no_second_time(rig: Rig) -> None:
    runs: list[int] = []

    @rig.consumer.on(OrderPlaced, ledger="leased", policy=AT_ONCE)
    async def call(event: OrderPlaced, ctx: Context) -> Outcome | None:
        runs.append(event.order_id)
        # Every session ends, that of the next statement included.
        rig.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        return Retry() if event.order_id == 2 and ctx.attempt == 1 else None

    await rig.start()
    await rig.publish(an_event(1), an_event(2))
    await rig.until(lambda: rig.states() == [("call", "done", 1), ("call", "done", 2)])
    await rig.until_settled()
    assert sorted(runs) == [1, 2, 2]


async def test_a_lease_lives_until_the_last_handler_has_ended_its_drain(rig: Rig) -> None:
    """celery/celery#3653"""
    started, runs = asyncio.Event(), 0

    @rig.consumer.on(OrderPlaced, ledger="leased")
    async def call(event: OrderPlaced) -> None:
        nonlocal runs
        runs += 1
        started.set()
        await asyncio.sleep(4.5)  # longer than the lease

    rig.limits = replace(rig.limits, lease_s=2.0)
    first = await rig.start()
    event = an_event()
    await rig.publish(event)
    await asyncio.wait_for(started.wait(), 10)
    await rig.start()
    await rig.publish(event)
    await first.drain()
    assert rig.states() == [("call", "done", 1)]
    assert runs == 1


async def test_a_hook_that_says_it_is_done_spares_another_run(rig: Rig, connect: Connect) -> None:
    runs: list[int] = []
    asked: list[tuple[int, int]] = []
    done: set[int] = set()
    keys: dict[int, set[str]] = defaultdict(set)

    async def is_done(event: OrderPlaced, ctx: Context) -> bool:
        asked.append((event.order_id, ctx.attempt))
        keys[event.order_id].add(ctx.idempotency_key)
        return event.order_id in done

    @rig.consumer.on(OrderPlaced, ledger="leased", policy=replace(AT_ONCE, max_retries=1), already_done=is_done)
    async def call(event: OrderPlaced, ctx: Context) -> None:
        runs.append(event.order_id)
        keys[event.order_id].add(ctx.idempotency_key)
        if event.order_id == 1:
            done.add(1)
            raise ConnectionError  # the effect is there, and nobody heard of it
        if event.order_id == 2 and len([run for run in runs if run == 2]) <= 2:
            raise ConnectionError

    await rig.start()
    await rig.publish(an_event(1), an_event(2), an_event(3))
    await rig.until(lambda: rig.count("consumer.dead") == 1)
    await rig.until(lambda: rig.count("consumer.work") == 0)
    assert sorted(runs) == [1, 2, 2, 3]
    assert sorted(asked) == [(1, 2), (2, 2)]
    await replay(await connect(), DeadFilter(group=GROUP), actor="operator")
    await rig.until(lambda: rig.value("SELECT count(*) FROM consumer.ledger WHERE state = 'done'") == 3)
    assert sorted(asked) == [(1, 2), (2, 1), (2, 2)]
    assert runs.count(2) == 3
    # What the handler told another system is what the hook asks it for.
    assert [len(keys[number]) for number in (1, 2, 3)] == [1, 1, 1]


async def test_a_start_of_which_nothing_was_written_down_counts_when_a_hook_is_asked(rig: Rig) -> None:
    runs: list[str] = []

    async def is_called(event: OrderPlaced) -> bool:
        runs.append("asked")
        return True

    @rig.consumer.on(OrderPlaced, ledger="leased", already_done=is_called)
    async def call(event: OrderPlaced) -> None:
        runs.append("called")
        raise ConnectionError  # after it had its effect

    @rig.consumer.on(OrderPlaced)
    async def bill(event: OrderPlaced, session: AsyncSession) -> None:
        if "asked" not in runs:
            # So what became of the other is not written down, and all is done again.
            await session.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))

    await rig.start()
    await rig.publish(an_event())
    await rig.until(lambda: rig.states() == [("bill", "done", 1), ("call", "done", 1)])
    assert runs == ["called", "asked"]


@pytest.mark.parametrize("ledger", LEDGERS)
async def test_what_a_handler_returns_is_kept_with_the_event(rig: Rig, ledger: LedgerName) -> None:
    results: dict[int, object] = {1: {"charge": "ch_1"}, 2: [2], 3: "x" * 20_000, 4: float("nan"), 5: {"a\0": 1}}

    @rig.consumer.on(OrderPlaced, ledger=ledger, policy=AT_ONCE)
    async def call(event: OrderPlaced, ctx: Context) -> Outcome | None:
        if event.order_id == 2 and ctx.attempt == 1:
            return Retry()
        return Done(result=results.get(event.order_id))

    await rig.start()
    await rig.publish(*(an_event(number) for number in range(1, 7)), an_event(1, ordering=keyed(1)))
    await rig.until(lambda: rig.count("consumer.dead") == 3)
    await rig.until(lambda: rig.count("consumer.result") == 3)
    await rig.until_settled()
    await rig.until(lambda: rig.count("consumer.work") == 0)
    kept = sorted(str(result) for (result,) in rig.rows("SELECT result FROM consumer.result"))
    assert kept == ["[2]", "{'charge': 'ch_1'}", "{'charge': 'ch_1'}"]
    assert {category for (category,) in rig.rows("SELECT category FROM consumer.dead")} == {"permanent"}


@pytest.mark.timeout(200)
async def test_a_thousand_failing_events_get_exactly_the_set_number_of_attempts_in_every_mode(rig: Rig) -> None:
    """ag2ai/faststream#1488, Particular/NServiceBus.RabbitMQ#1259."""
    runs: Counter[str] = Counter()
    types = {f"orders.order.{ledger}": ledger for ledger in LEDGERS}
    for event_type, ledger in types.items():

        @rig.consumer.on(event_type, name=ledger, ledger=ledger, policy=replace(AT_ONCE, max_retries=1))
        async def fail(event: Event, ctx: Context) -> None:
            runs[f"{event.id} {ctx.attempt}"] += 1
            raise RuntimeError

    # A lease that outlives a busy machine's pauses: what is taken over rightly runs again.
    rig.limits = replace(rig.limits, prefetch=20, work_per_lane=100, work_total=300, lease_s=60.0)
    for _ in range(3):
        await rig.start()
    events = [an_event(number, type=[*types][number % 3], tenant=f"t{number % 10}") for number in range(1000)]
    await rig.publish(*events)
    await rig.until(lambda: rig.count("consumer.dead") == 1000, deadline_s=150)
    assert runs == Counter({f"{event.id} {attempt}": 1 for event in events for attempt in (1, 2)})
    assert rig.rows("SELECT DISTINCT state, attempts FROM consumer.ledger") == [("dead", 2)]
    assert rig.count("consumer.work") == 0
