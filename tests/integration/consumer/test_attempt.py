"""One try of one handler on a real database: what commits, what does not, and what is known afterwards."""

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID, uuid4

import psycopg
import pytest
from sqlalchemy import Engine, event, make_url, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from consumer.api import Consumer
from consumer.context import Context
from consumer.decide.delivery import Body, read_body
from consumer.decide.horizon import Ring
from consumer.engine.attempt import (
    Attempts,
    Handled,
    Interrupted,
    Job,
    Known,
    LostTransaction,
    Raised,
    Result,
    Returned,
)
from consumer.outcome import DeadLetter, Done, Drop, Outcome, Retry
from consumer.store.connection import SlotConnection
from consumer.store.ledger import Ledger, State
from outbox.errors import StoreUnavailable
from outbox.event import Event, EventModel, Tier
from outbox.schema import TENANT_SETTING
from tests.support.proxy import Moment, Proxy

RING = Ring(slots=16, slot_seconds=86400)
INSERT = text("INSERT INTO effect (note) VALUES (:note)")


class OrderPlaced(EventModel, type="orders.order.placed"):
    order_id: int


def an_event(*, tenant: str = "acme", payload: bytes = b'{"order_id":1}') -> Event:
    now = datetime.now(UTC)
    return Event(
        id=uuid4(),
        tenant=tenant,
        tier=Tier.STANDARD,
        type="orders.order.placed",
        data_version=1,
        source="shop",
        content_type="application/json",
        payload=payload,
        time=now,
        ledger_time=now,
    )


class Bench:
    """A database, a slot on it and one consumer's handlers."""

    def __init__(self, dsn: str, engine: AsyncEngine) -> None:
        self.dsn = dsn
        self.consumer = Consumer("billing")
        self.slot = SlotConnection(engine)
        ledger = Ledger(group="billing", ring=RING)
        self.attempts = Attempts(group="billing", ledger=ledger, horizon=timedelta(days=14))

    async def run(self, event: Event, *, handler: int = 0, slot: SlotConnection | None = None) -> Result:
        body = read_body(event)
        assert isinstance(body, Body)
        job = Job(event=event, body=body, handler=self.consumer.registry.handlers_of(event.type)[handler])
        return await self.attempts.run(slot or self.slot, job)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn) as connection:
            return connection.execute(query.encode()).fetchall()

    def effects(self) -> list[str]:
        return [note for (note,) in self.rows("SELECT note FROM effect ORDER BY note")]

    def states(self) -> list[str]:
        return [state for (state,) in self.rows("SELECT state FROM consumer.ledger ORDER BY handler")]


def engine_for(dsn: str) -> AsyncEngine:
    return create_async_engine(make_url(dsn).set(drivername="postgresql+psycopg"), poolclass=NullPool)


@pytest.fixture
async def bench(migrated_database: str) -> AsyncIterator[Bench]:
    with psycopg.connect(migrated_database) as connection:
        # No unique constraint: a second effect would show.
        connection.execute("CREATE TABLE effect (note text NOT NULL)")
    bench = Bench(migrated_database, engine_for(migrated_database))
    yield bench
    await bench.slot.close()


async def test_a_handlers_writes_and_its_ledger_row_commit_together(bench: Bench) -> None:
    @bench.consumer.on(OrderPlaced)
    async def bill(event: OrderPlaced, ctx: Context, session: AsyncSession) -> Outcome | None:
        await session.execute(INSERT, {"note": f"{event.order_id} {ctx.tenant} {ctx.attempt}"})
        return Done()

    assert await bench.run(an_event()) == Handled(attempt=1)
    assert bench.effects() == ["1 acme 1"]
    assert bench.states() == ["done"]


async def test_a_sync_handler_is_given_a_sync_session_in_the_same_transaction(bench: Bench) -> None:
    @bench.consumer.on(OrderPlaced)
    def bill(event: OrderPlaced, session: Session) -> None:
        session.execute(INSERT, {"note": str(event.order_id)})

    assert await bench.run(an_event()) == Handled(attempt=1)
    assert bench.effects() == ["1"]


async def test_a_duplicate_runs_nothing(bench: Bench) -> None:
    @bench.consumer.on(OrderPlaced)
    async def bill(event: OrderPlaced, session: AsyncSession) -> None:
        await session.execute(INSERT, {"note": "once"})

    event = an_event()
    await bench.run(event)
    assert await bench.run(event) == Known(state=State.DONE)
    assert bench.effects() == ["once"]


async def test_two_handlers_of_one_event_both_run_once_each(bench: Bench) -> None:
    """MassTransit/MassTransit#3543."""

    @bench.consumer.on(OrderPlaced)
    async def bill(event: OrderPlaced, session: AsyncSession) -> None:
        await session.execute(INSERT, {"note": "bill"})

    @bench.consumer.on(OrderPlaced)
    async def thank(event: OrderPlaced, session: AsyncSession) -> None:
        await session.execute(INSERT, {"note": "thank"})

    event = an_event()
    for _ in range(2):
        await bench.run(event, handler=0)
        await bench.run(event, handler=1)
    assert bench.effects() == ["bill", "thank"]
    assert bench.states() == ["done", "done"]


async def test_a_handler_that_swallows_a_database_error_has_failed(bench: Bench) -> None:
    @bench.consumer.on(OrderPlaced)
    async def bill(event: OrderPlaced, session: AsyncSession) -> None:
        await session.execute(INSERT, {"note": "lost"})
        try:
            await session.execute(text("SELECT 1 / 0"))
        except DBAPIError:
            return

    result = await bench.run(an_event())
    assert isinstance(result, Raised)
    assert isinstance(result.error, LostTransaction)
    assert (bench.effects(), bench.states()) == ([], [])


async def test_a_handler_may_recover_from_an_error_inside_a_savepoint(bench: Bench) -> None:
    @bench.consumer.on(OrderPlaced)
    async def bill(event: OrderPlaced, session: AsyncSession) -> None:
        with pytest.raises(DBAPIError):
            async with session.begin_nested():
                await session.execute(text("SELECT 1 / 0"))
        async with session.begin_nested():
            await session.execute(INSERT, {"note": "kept"})

    assert await bench.run(an_event()) == Handled(attempt=1)
    assert bench.effects() == ["kept"]


@pytest.mark.parametrize("ending", ["commit", "rollback", "close"])
async def test_a_handler_that_ends_its_session_has_failed(bench: Bench, ending: str) -> None:
    @bench.consumer.on(OrderPlaced)
    async def bill(event: OrderPlaced, session: AsyncSession) -> None:
        await session.execute(INSERT, {"note": "early"})
        await getattr(session, ending)()
        await session.execute(INSERT, {"note": "late"})

    result = await bench.run(an_event())
    assert isinstance(result, Raised)
    assert isinstance(result.error, LostTransaction)
    assert (bench.effects(), bench.states()) == ([], [])


@pytest.mark.parametrize("ending", ["ROLLBACK", "COMMIT"])
async def test_a_handler_that_ends_the_transaction_behind_the_sessions_back_has_failed(
    bench: Bench, ending: str
) -> None:
    @bench.consumer.on(OrderPlaced)
    async def bill(event: OrderPlaced, session: AsyncSession) -> None:
        await session.execute(text(ending))
        # The driver begins another transaction here, so it is in one again when the handler returns.
        await session.execute(INSERT, {"note": "in another transaction"})

    result = await bench.run(an_event())
    assert isinstance(result, Raised)
    assert bench.effects() == []


async def test_a_deferred_constraint_that_fails_at_commit_is_the_handlers_failure(bench: Bench) -> None:
    bench_setup = "ALTER TABLE effect ADD CONSTRAINT once UNIQUE (note) DEFERRABLE INITIALLY DEFERRED"
    with psycopg.connect(bench.dsn) as connection:
        connection.execute(bench_setup)

    @bench.consumer.on(OrderPlaced)
    async def bill(event: OrderPlaced, session: AsyncSession) -> None:
        await session.execute(INSERT, {"note": "same"})
        await session.execute(INSERT, {"note": "same"})

    result = await bench.run(an_event())
    assert isinstance(result, Raised)
    assert isinstance(result.error, psycopg.errors.UniqueViolation)
    assert bench.states() == []


@pytest.mark.parametrize("outcome", [Retry(after_s=1), Drop(reason="old"), DeadLetter(reason="no such order")])
async def test_an_outcome_other_than_done_keeps_nothing(bench: Bench, outcome: Retry | Drop | DeadLetter) -> None:
    @bench.consumer.on(OrderPlaced)
    async def bill(event: OrderPlaced, session: AsyncSession) -> Outcome | None:
        await session.execute(INSERT, {"note": "not kept"})
        return outcome

    assert await bench.run(an_event()) == Returned(attempt=1, outcome=outcome)
    assert (bench.effects(), bench.states()) == ([], [])


async def test_a_handler_that_exits_or_is_cancelled_from_within_has_failed_and_the_process_lives(
    bench: Bench,
) -> None:
    errors: list[BaseException] = [SystemExit(3), asyncio.CancelledError(), ExceptionGroup("two", [ValueError()])]

    @bench.consumer.on(OrderPlaced)
    async def bill(event: OrderPlaced) -> None:
        raise errors[0]

    while errors:
        assert await bench.run(an_event()) == Raised(attempt=1, error=errors.pop(0))


async def test_a_handler_past_its_deadline_has_failed(bench: Bench) -> None:
    @bench.consumer.on(OrderPlaced, deadline_s=0.05)
    async def bill(event: OrderPlaced, session: AsyncSession) -> None:
        await session.execute(text("SELECT pg_sleep(30)"))

    result = await bench.run(an_event())
    assert isinstance(result, Raised)
    assert isinstance(result.error, TimeoutError)
    assert await bench.run(an_event(payload=b"{}")) is not None


@pytest.mark.parametrize(
    ("moment", "is_kept"), [("before_request", False), ("before_answer", True), ("after_answer", True)]
)
async def test_a_connection_cut_inside_commit_leaves_one_effect(bench: Bench, moment: Moment, is_kept: bool) -> None:
    """JasperFx/wolverine GH-5410."""
    runs = []

    @bench.consumer.on(OrderPlaced)
    async def bill(event: OrderPlaced, session: AsyncSession) -> None:
        runs.append(event.order_id)
        await session.execute(INSERT, {"note": "once"})

    address = urlsplit(bench.dsn)
    async with Proxy(host=address.hostname or "", port=address.port or 5432, speaks="postgres") as proxy:
        through = make_url(bench.dsn).set(host="127.0.0.1", port=proxy.port)
        slot = SlotConnection(engine_for(through.render_as_string(hide_password=False)))
        await slot.open()
        event = an_event()
        proxy.cut_at_commit(moment)
        first = await _outcome_of(lambda: bench.run(event, slot=slot))
        assert proxy.fired.is_set()
        assert isinstance(first, StoreUnavailable if moment != "after_answer" else Handled)
        second = await _outcome_of(lambda: bench.run(event, slot=slot))
        if moment == "after_answer":  # the broken connection is noticed by its next use
            second = await bench.run(event, slot=slot)
        await slot.close()
    assert second == (Known(state=State.DONE) if is_kept else Handled(attempt=1))
    assert len(runs) == (1 if is_kept else 2)
    assert bench.effects() == ["once"]


async def _outcome_of(call: Callable[[], Any]) -> object:
    try:
        return await call()
    except StoreUnavailable as error:
        return error


async def test_a_connection_lost_while_the_handler_runs_is_nobodys_failure(bench: Bench) -> None:
    @bench.consumer.on(OrderPlaced)
    async def bill(event: OrderPlaced, session: AsyncSession) -> None:
        await session.execute(INSERT, {"note": "lost"})
        pid = await session.scalar(text("SELECT pg_backend_pid()"))
        bench.rows(f"SELECT pg_terminate_backend({pid})")
        await session.execute(INSERT, {"note": "never"})

    assert await bench.run(an_event()) == Interrupted(attempt=1)
    assert (bench.effects(), bench.states()) == ([], [])


async def test_the_tenant_setting_never_outlives_its_transaction(bench: Bench) -> None:
    """spiralclass#59: a pooled connection that kept the last request's tenant."""
    seen: list[tuple[str, str | None]] = []
    setting = text(f"SELECT current_setting('{TENANT_SETTING}', true)")

    @bench.consumer.on(OrderPlaced)
    async def bill(event: OrderPlaced, ctx: Context, session: AsyncSession) -> None:
        seen.append((ctx.tenant, await session.scalar(setting)))
        if event.order_id % 3 == 0:
            raise ValueError

    @bench.consumer.on(OrderPlaced)
    def thank(event: OrderPlaced, ctx: Context, session: Session) -> None:
        seen.append((ctx.tenant, session.scalar(setting)))
        if event.order_id % 5 == 0:
            raise ValueError

    for number in range(60):
        event = an_event(tenant=f"tenant {number}", payload=f'{{"order_id":{number}}}'.encode())
        for handler in range(2):
            await bench.run(event, handler=handler)
            connection = await bench.slot.open()
            cursor = await connection.execute(f"SELECT current_setting('{TENANT_SETTING}', true)".encode())
            assert await cursor.fetchone() in [("",), (None,)]
            await connection.rollback()
    assert len(seen) == 120
    assert all(tenant == setting for tenant, setting in seen)


async def test_the_tenant_setting_costs_a_handlers_session_no_round_trip_of_its_own(bench: Bench) -> None:
    asked: list[str] = []

    @bench.consumer.on(OrderPlaced)
    async def bill(event: OrderPlaced, session: AsyncSession) -> None:
        await session.execute(text("SELECT 1"))

    def listen(_connection: object, _cursor: object, statement: str, *_rest: object) -> None:
        asked.append(statement)

    event.listen(Engine, "before_cursor_execute", listen)
    try:
        await bench.run(an_event())
    finally:
        event.remove(Engine, "before_cursor_execute", listen)
    assert asked == ["SELECT 1"]


async def test_of_two_processes_with_the_same_event_one_handles_it(bench: Bench) -> None:
    started, finish = asyncio.Event(), asyncio.Event()
    runs: list[UUID] = []

    @bench.consumer.on(OrderPlaced)
    async def bill(event: OrderPlaced, ctx: Context, session: AsyncSession) -> None:
        runs.append(ctx.event.id)
        await session.execute(INSERT, {"note": "once"})
        started.set()
        await finish.wait()

    other = Bench(bench.dsn, engine_for(bench.dsn))
    other.consumer = bench.consumer
    event = an_event()
    first = asyncio.create_task(bench.run(event))
    await asyncio.wait_for(started.wait(), 10)
    second = asyncio.create_task(other.run(event))
    finish.set()
    assert await first == Handled(attempt=1)
    assert await second == Known(state=State.DONE)
    assert (len(runs), bench.effects()) == (1, ["once"])
    await other.slot.close()


async def test_a_payload_that_does_not_fit_the_model_is_refused_without_repeating_it(bench: Bench) -> None:
    @bench.consumer.on(OrderPlaced)
    async def bill(event: OrderPlaced) -> None:
        raise AssertionError

    result = await bench.run(an_event(payload=b'{"order_id":"secret-canary"}'))
    assert isinstance(result, Returned)
    assert isinstance(result.outcome, DeadLetter)
    assert result.outcome.category == "invalid"
    assert "secret-canary" not in result.outcome.reason
