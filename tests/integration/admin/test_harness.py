"""The testing kit, used as an app would: by its fixtures, with real handlers and a real database."""

import asyncio
from collections.abc import Callable, Iterator
from datetime import timedelta

import psycopg
import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from consumer import Consumer, Context, Policy, RetryLater
from outbox import EventModel, Outbox
from outbox.event import Event
from outbox_admin.harness import Crash, Harness
from tests.support.wait import until

outbox = Outbox(source="/svc/shop")


class Placed(EventModel, type="shop.order.placed"):
    order: str
    pence: int = 100


class Billed(EventModel, type="shop.order.billed"):
    order: str


@pytest.fixture(scope="module")
def shop(outbox_database_url: str) -> Iterator[Engine]:
    engine = create_engine(outbox_database_url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.begin() as connection:
        connection.execute(text('CREATE TABLE bill ("order" text NOT NULL, attempt integer NOT NULL)'))
    yield engine
    engine.dispose()


@pytest.fixture
def consumer(shop: Engine) -> Consumer:
    with shop.begin() as connection:
        connection.execute(text("DELETE FROM bill"))
    consumer = Consumer("billing", policy=Policy(max_retries=2))

    @consumer.on(Placed)
    async def bill(event: Placed, ctx: Context, session: AsyncSession) -> None:
        await session.execute(
            text("INSERT INTO bill VALUES (:order, :attempt)"), {"order": event.order, "attempt": ctx.attempt}
        )
        if event.order.startswith("flaky") and ctx.attempt == 1:
            raise RetryLater("not yet")
        if event.order.startswith("broken"):
            raise ValueError("this order cannot be billed")
        outbox.emit(session, Billed(order=event.order))

    @consumer.on(Billed)
    def thank(event: Billed, session: Session) -> None: ...

    return consumer


def bills(shop: Engine) -> list[tuple[str, int]]:
    with shop.begin() as connection:
        return [(order, attempt) for order, attempt in connection.execute(text("SELECT * FROM bill ORDER BY 1, 2"))]


def test_an_event_that_nobody_emitted_is_handled_and_what_its_handler_emitted_can_be_asserted(
    outbox_harness: Callable[[Consumer], Harness], consumer: Consumer, shop: Engine
) -> None:
    harness = outbox_harness(consumer)
    assert harness.deliver(Placed(order="a1"), tenant="acme") == {"done": 1}
    assert bills(shop) == [("a1", 1)]
    (billed,) = harness.emitted(Billed)
    assert Billed.model_validate_json(billed.payload).order == "a1"
    assert billed.tenant == "acme"
    assert harness.emitted(Placed) == []


def test_what_is_delivered_twice_has_one_effect(
    outbox_harness: Callable[[Consumer], Harness], consumer: Consumer, shop: Engine
) -> None:
    assert outbox_harness(consumer).deliver(Placed(order="a1"), tenant="acme", times=2) == {"done": 1, "duplicate": 1}
    assert bills(shop) == [("a1", 1)]


def test_draining_brings_what_the_app_committed_and_all_that_follows_but_nothing_rolled_back(
    outbox_harness: Callable[[Consumer], Harness], consumer: Consumer, shop: Engine
) -> None:
    harness = outbox_harness(consumer)
    with Session(shop) as session:
        for number in range(3):
            outbox.emit(session, Placed(order=f"a{number}"), tenant="acme", ordering_key="cart-1")
        session.commit()
        outbox.emit(session, Placed(order="never"), tenant="acme")
        session.rollback()
    assert harness.drain() == {"done": 6}
    assert bills(shop) == [("a0", 1), ("a1", 1), ("a2", 1)]
    assert harness.drain() == {}


def test_what_is_due_later_is_due_now_where_a_test_says_so(
    outbox_harness: Callable[[Consumer], Harness], consumer: Consumer, shop: Engine
) -> None:
    harness = outbox_harness(consumer)
    with Session(shop) as session:
        outbox.emit(session, Placed(order="later"), tenant="acme", delay=timedelta(hours=1))
        outbox.emit(session, Placed(order="flaky"), tenant="acme")
        session.commit()
    assert harness.drain() == {"retry": 1}
    assert harness.drain(ahead=timedelta(minutes=5)) == {"done": 2}
    assert bills(shop) == [("flaky", 2)]
    assert harness.drain(ahead=timedelta(hours=2)) == {"done": 2}
    assert bills(shop) == [("flaky", 2), ("later", 1)]


def test_what_a_handler_emits_just_after_a_look_at_the_log_is_drained_too(
    outbox_harness: Callable[[Consumer], Harness], consumer: Consumer, shop: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = outbox_harness(consumer)
    assert harness.deliver(Placed(order="flaky"), tenant="acme") == {"retry": 1}

    def is_handled() -> bool:
        with shop.connect() as connection:
            rest = "SELECT FROM consumer.work WHERE owner IS NOT NULL OR due_at <= clock_timestamp()"
            return connection.execute(text(rest)).first() is None

    def looked(event: type[EventModel] | str | None = None) -> list[Event]:
        found = emitted(event)
        asyncio.run(until(is_handled, what="the retry, in the time after the look"))
        return found

    emitted = harness.emitted
    monkeypatch.setattr(harness, "emitted", looked)
    assert harness.drain(ahead=timedelta(minutes=5)) == {"done": 2}


def test_what_fails_for_good_is_a_dead_letter_after_the_attempts_that_its_policy_allows(
    outbox_harness: Callable[[Consumer], Harness], consumer: Consumer, shop: Engine
) -> None:
    harness = outbox_harness(consumer)
    assert harness.deliver(Placed(order="broken"), tenant="acme") == {"retry": 1}
    assert harness.drain(ahead=timedelta(hours=1)) == {"retry": 1, "dead": 1}
    (dead,) = harness.dead
    assert (dead.attempts, dead.error_class, bills(shop)) == (3, "ValueError", [])


@pytest.mark.parametrize("crash", Crash)
@pytest.mark.parametrize("is_sync", [False, True])
def test_a_crash_at_either_side_of_the_commit_has_one_effect_all_the_same(
    outbox_harness: Callable[[Consumer], Harness], consumer: Consumer, shop: Engine, crash: Crash, *, is_sync: bool
) -> None:
    harness = outbox_harness(consumer)
    event = Billed(order="a1") if is_sync else Placed(order="a1")
    outcomes = harness.deliver(event, tenant="acme", crash=crash)
    assert outcomes == ({"done": 1} if crash is Crash.BEFORE_COMMIT else {"done": 1, "duplicate": 1})
    assert bills(shop) == ([] if is_sync else [("a1", 1)])


def test_a_handler_that_never_ends_fails_the_test_with_what_is_still_to_be_done(
    outbox_database_url: str, shop: Engine
) -> None:
    endless = Consumer("endless")

    @endless.on(Placed)
    async def again(event: Placed, session: AsyncSession) -> None:
        outbox.emit(session, event)

    with Harness(endless, outbox_database_url, deadline_s=1.0) as harness:
        harness.deliver(Placed(order="a1"), tenant="acme")
        with pytest.raises(AssertionError, match="want an end within 1 s"):
            harness.drain()


def test_one_test_leaves_nothing_for_the_next(
    outbox_harness: Callable[[Consumer], Harness], consumer: Consumer, outbox_database_url: str
) -> None:
    with Harness(consumer, outbox_database_url) as harness:
        assert harness.deliver(Placed(order="flaky"), tenant="acme") == {"retry": 1}
    assert outbox_harness(consumer).drain(ahead=timedelta(days=1)) == {}
    with psycopg.connect(outbox_database_url) as connection:
        assert connection.execute("SELECT count(*) FROM consumer.work").fetchone() == (0,)


def test_the_address_may_be_the_one_that_an_engine_was_made_with(outbox_database_url: str, consumer: Consumer) -> None:
    address = outbox_database_url.replace("postgresql://", "postgresql+psycopg://")
    with Harness(consumer, address) as harness:
        harness.deliver(Placed(order="e1"), tenant="acme")
        assert harness.drain(ahead=timedelta(hours=1)) == {"done": 1}
