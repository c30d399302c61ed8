"""Savepoints, two-phase commits, transactions of the app's own, and sessions that end without a word."""

import gc
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session, SessionTransaction

from outbox import InvalidEvent, Outbox, OutboxError
from tests.integration.outbox.conftest import psycopg_url
from tests.integration.outbox.shop import Order, OrderPlaced, count, logged, new_outbox, numbers

JoinMode = Literal["conditional_savepoint", "rollback_only", "control_fully", "create_savepoint"]


def ids(engine: sa.Engine) -> list[int]:
    return [json.loads(row.payload)["order_id"] for row in logged(engine)]


def placed(order: Order) -> OrderPlaced:
    return OrderPlaced(order_id=order.id)


def lost(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "outbox"]


@contextmanager
def hook(session: Session, name: str, function: Callable[..., None]) -> Iterator[None]:
    sa.event.listen(session, name, function)
    yield
    sa.event.remove(session, name, function)


# ------------------------------------------------------------------ savepoints


def test_what_was_emitted_in_a_rolled_back_savepoint_vanishes_alone(engine: sa.Engine, outbox: Outbox) -> None:
    with Session(engine) as session, session.begin():
        outbox.emit(session, OrderPlaced(order_id=1), tenant="acme")
        with session.begin_nested():
            outbox.emit(session, OrderPlaced(order_id=2), tenant="acme")
        savepoint = session.begin_nested()
        outbox.emit(session, OrderPlaced(order_id=3), tenant="acme")
        savepoint.rollback()
        outbox.emit(session, OrderPlaced(order_id=4), tenant="acme")

    assert ids(engine) == [1, 2, 4]


def test_a_released_savepoint_shares_the_fate_of_the_one_around_it(engine: sa.Engine, outbox: Outbox) -> None:
    with Session(engine) as session, session.begin():
        outer = session.begin_nested()
        with session.begin_nested():
            outbox.emit(session, OrderPlaced(order_id=1), tenant="acme")
        outer.rollback()
        with session.begin_nested(), session.begin_nested():
            outbox.emit(session, OrderPlaced(order_id=2), tenant="acme")

    assert ids(engine) == [2]


def test_a_rolled_back_savepoint_leaves_no_gap_in_a_keys_numbers(engine: sa.Engine, outbox: Outbox) -> None:
    for _ in range(3):
        with Session(engine) as session, session.begin():
            for is_kept in (True, False, True):
                savepoint = session.begin_nested()
                outbox.emit(session, OrderPlaced(order_id=1), tenant="acme", ordering_key="k")
                (savepoint.commit if is_kept else savepoint.rollback)()

    drawn = numbers(engine, "k")
    assert drawn == list(range(drawn[0], drawn[0] + 6))


def test_a_flush_that_fails_in_a_savepoint_takes_only_its_own_events(engine: sa.Engine, outbox: Outbox) -> None:
    with Session(engine) as session, session.begin():
        session.add(Order(item="book"))
        outbox.emit(session, OrderPlaced(order_id=1), tenant="acme")
        savepoint = session.begin_nested()
        session.add(Order(item="book"))
        outbox.emit(session, OrderPlaced(order_id=2), tenant="acme")
        with pytest.raises(IntegrityError):
            session.flush()
        savepoint.rollback()
        outbox.emit(session, OrderPlaced(order_id=3), tenant="acme")

    assert ids(engine) == [1, 3]


def test_a_commit_that_releases_open_savepoints_keeps_their_events(engine: sa.Engine, outbox: Outbox) -> None:
    with Session(engine) as session:
        outbox.emit(session, OrderPlaced(order_id=1), tenant="acme")
        session.begin_nested()
        outbox.emit(session, OrderPlaced(order_id=2), tenant="acme")
        session.commit()
        # The transaction's own commit, not the session's: SQLAlchemy calls its hooks in another order.
        with session.begin():
            session.begin_nested()
            outbox.emit(session, OrderPlaced(order_id=3), tenant="acme")
            session.begin_nested()
            outbox.emit(session, OrderPlaced(order_id=4), tenant="acme", ordering_key="k")
        with session.begin():
            outer = session.begin_nested()
            session.begin_nested()
            outbox.emit(session, OrderPlaced(order_id=5), tenant="acme")
            outer.commit()
            session.add(Order(item="book"))
            outbox.emit(session, lambda: OrderPlaced(order_id=count_in(session)), tenant="acme")

    assert ids(engine) == [1, 2, 3, 4, 5, 1]


def count_in(session: Session) -> int:
    return session.scalar(sa.select(sa.func.count()).select_from(Order)) or 0


def test_a_savepoint_that_could_not_be_released_writes_nothing_early(engine: sa.Engine, outbox: Outbox) -> None:
    with Session(engine) as session, session.begin():
        session.add(Order(item="book"))
        session.flush()
        outbox.emit(session, OrderPlaced(order_id=1), tenant="acme")
        savepoint = session.begin_nested()
        session.add(Order(item="book"))
        with pytest.raises(IntegrityError):
            savepoint.commit()
        savepoint.rollback()
        outbox.emit(session, OrderPlaced(order_id=2), tenant="acme")
        assert logged_in(session) == 0

    assert ids(engine) == [1, 2]


def logged_in(session: Session) -> int:
    return session.scalar(sa.text("select count(*) from outbox.event")) or 0


# ------------------------------------------------------------------ hooks of the app's own


def test_events_emitted_while_the_commit_flushes_are_committed(engine: sa.Engine, outbox: Outbox) -> None:
    def emit_for_new(session: Session, *_: object) -> None:
        for order in filter(lambda row: isinstance(row, Order), session.new):
            outbox.emit(session, partial(placed, order), tenant="acme")

    with Session(engine) as session, hook(session, "before_flush", emit_for_new):
        session.add(Order(item="book"))
        session.commit()

    assert ids(engine) == [1]


def test_an_emit_too_late_to_be_written_fails_the_commit(engine: sa.Engine, outbox: Outbox) -> None:
    def emit(session: Session) -> None:
        outbox.emit(session, OrderPlaced(order_id=2), tenant="acme")

    with Session(engine) as session, hook(session, "before_commit", emit):
        session.add(Order(item="book"))
        outbox.emit(session, OrderPlaced(order_id=1), tenant="acme")
        with pytest.raises(InvalidEvent, match="want a transaction before its commit"):
            session.commit()
        session.rollback()
    with Session(engine) as session, hook(session, "after_commit", emit):
        session.add(Order(item="pen"))
        with pytest.raises(InvalidEvent, match="want a transaction before its commit"):
            session.commit()

    assert ids(engine) == []
    assert count(engine, Order) == 1


def test_an_emit_after_the_transaction_ended_belongs_to_the_next(engine: sa.Engine, outbox: Outbox) -> None:
    def emit(session: Session, transaction: SessionTransaction) -> None:
        if transaction.parent is None and logged(engine) and not session.in_transaction():
            outbox.emit(session, OrderPlaced(order_id=2), tenant="acme")

    with Session(engine) as session:
        outbox.emit(session, OrderPlaced(order_id=1), tenant="acme")
        with hook(session, "after_transaction_end", emit):
            session.commit()
        session.commit()

    assert ids(engine) == [1, 2]


def test_a_session_is_empty_after_its_commit_and_can_be_used_again(engine: sa.Engine, outbox: Outbox) -> None:
    with Session(engine) as session:
        for number in range(3):
            outbox.emit(session, OrderPlaced(order_id=number), tenant="acme")
            session.commit()
            session.commit()

    assert ids(engine) == [0, 1, 2]


def test_a_session_without_autobegin_emits_only_after_begin(engine: sa.Engine, outbox: Outbox) -> None:
    with Session(engine, autobegin=False) as session:
        with pytest.raises(InvalidEvent, match="autobegin off"):
            outbox.emit(session, OrderPlaced(order_id=1), tenant="acme")
        with session.begin():
            outbox.emit(session, OrderPlaced(order_id=2), tenant="acme")

    assert ids(engine) == [2]


# ------------------------------------------------------------------ two phases, and transactions of the app's own


def test_a_prepared_transaction_holds_its_events_and_commits_them(engine: sa.Engine, outbox: Outbox) -> None:
    """PostgreSQL refuses PREPARE TRANSACTION after NOTIFY; what we write can be prepared."""
    with Session(engine, twophase=True) as session:
        session.add(Order(item="book"))
        handle = outbox.emit(session, OrderPlaced(order_id=1), tenant="acme", ordering_key="k", idempotency_key="once")
        session.prepare()
        assert prepared(engine) == 1
        assert ids(engine) == []
        with pytest.raises(InvalidEvent, match="want a transaction before its commit"):
            outbox.emit(session, OrderPlaced(order_id=2), tenant="acme")
        session.commit()

    assert [row.id for row in logged(engine)] == [handle.id]
    assert prepared(engine) == 0


def test_a_prepared_transaction_that_is_rolled_back_leaves_nothing(engine: sa.Engine, outbox: Outbox) -> None:
    with Session(engine, twophase=True) as session:
        outbox.emit(session, OrderPlaced(order_id=1), tenant="acme")
        session.prepare()
        session.rollback()
        outbox.emit(session, OrderPlaced(order_id=2), tenant="acme")
        session.commit()

    assert ids(engine) == [2]


def test_one_two_phase_commit_spans_two_databases(engine: sa.Engine, database: str) -> None:
    other = sa.create_engine(psycopg_url(database))
    Order.metadata.create_all(other)
    outbox = new_outbox(bind=engine)
    with Session(twophase=True, binds={Order: other}) as session:
        session.add(Order(item="book"))
        outbox.emit(session, lambda: OrderPlaced(order_id=count_in(session)), tenant="acme")
        session.commit()

    assert ids(engine) == [1]
    assert count(other, Order) == 1
    other.dispose()


def prepared(engine: sa.Engine) -> int:
    with engine.connect() as connection:
        found = connection.scalar(sa.text("select count(*) from pg_prepared_xacts where database = current_database()"))
        return found or 0


@pytest.mark.parametrize("mode", ["conditional_savepoint", "rollback_only", "control_fully", "create_savepoint"])
@pytest.mark.parametrize("is_kept", [True, False])
def test_rows_go_into_the_transaction_that_the_app_owns(
    engine: sa.Engine, outbox: Outbox, mode: JoinMode, is_kept: bool
) -> None:
    with engine.connect() as connection:
        outer = connection.begin()
        with Session(connection, join_transaction_mode=mode) as session:
            session.add(Order(item="book"))
            handle = outbox.emit(
                session, lambda: OrderPlaced(order_id=count_in(session)), tenant="acme", idempotency_key="once"
            )
            session.commit()
            assert handle.id
        found = connection.scalar(sa.text("select count(*) from outbox.event"))
        assert found == 1
        if outer.is_active:
            (outer.commit if is_kept else outer.rollback)()

    is_committed = is_kept or mode == "control_fully"  # which commits the app's transaction itself
    assert ids(engine) == ([1] if is_committed else [])
    assert count(engine, Order) == is_committed


@pytest.mark.parametrize("mode", ["conditional_savepoint", "create_savepoint"])
def test_rows_go_into_the_savepoint_that_the_app_owns(engine: sa.Engine, outbox: Outbox, mode: JoinMode) -> None:
    with engine.begin() as connection:
        for number, is_kept in ((1, True), (2, False)):
            savepoint = connection.begin_nested()
            with Session(connection, join_transaction_mode=mode) as session:
                outbox.emit(session, OrderPlaced(order_id=number), tenant="acme")
                session.commit()
            (savepoint.commit if is_kept else savepoint.rollback)()

    assert ids(engine) == [1]


def test_an_outbox_with_an_engine_stays_on_the_connection_that_the_app_owns(engine: sa.Engine) -> None:
    outbox = new_outbox(bind=engine)
    with engine.connect() as connection:
        outer = connection.begin()
        with Session(connection) as session:
            outbox.emit(session, OrderPlaced(order_id=1), tenant="acme")
            session.commit()
        outer.rollback()

    assert ids(engine) == []


def test_an_outbox_with_an_engine_serves_sessions_of_several_databases(engine: sa.Engine, database: str) -> None:
    other = sa.create_engine(psycopg_url(database))
    Order.metadata.create_all(other)
    with Session(binds={Order: other}) as session:
        session.add(Order(item="book"))
        with pytest.raises(InvalidEvent, match=r"want Outbox\(bind=\.\.\.\)"):
            new_outbox().emit(session, OrderPlaced(order_id=1), tenant="acme")
        new_outbox(bind=engine).emit(session, OrderPlaced(order_id=1), tenant="acme")
        session.commit()

    assert ids(engine) == [1]
    other.dispose()


# ------------------------------------------------------------------ AUTOCOMMIT


def test_autocommit_is_refused_before_a_row_is_written(engine: sa.Engine, outbox: Outbox) -> None:
    from_start = sa.create_engine(engine.url, isolation_level="AUTOCOMMIT")
    for autocommit in (from_start, engine.execution_options(isolation_level="AUTOCOMMIT")):
        with Session(autocommit) as session:
            session.add(Order(item="book"))
            outbox.emit(session, OrderPlaced(order_id=1), tenant="acme")
            with pytest.raises(InvalidEvent, match=r"^emit: want a session with transactions, got one in AUTOCOMMIT$"):
                session.commit()
            session.rollback()
        with Session(autocommit) as session:
            session.scalar(sa.select(1))
            with pytest.raises(InvalidEvent, match=r"^emit: want a session with transactions, got one in AUTOCOMMIT$"):
                outbox.emit(session, OrderPlaced(order_id=1), tenant="acme")
    from_start.dispose()

    assert ids(engine) == []
    assert count(engine, Order) == 0


async def test_an_async_session_in_autocommit_is_refused(
    async_engine: AsyncEngine, engine: sa.Engine, outbox: Outbox
) -> None:
    async with AsyncSession(async_engine.execution_options(isolation_level="AUTOCOMMIT")) as session:
        outbox.emit(session, OrderPlaced(order_id=1), tenant="acme")
        with pytest.raises(InvalidEvent, match="AUTOCOMMIT"):
            await session.commit()
        await session.rollback()

    assert ids(engine) == []


# ------------------------------------------------------------------ emitted, then lost


def test_a_session_closed_without_a_commit_says_what_it_lost(
    engine: sa.Engine, outbox: Outbox, caplog: pytest.LogCaptureFixture
) -> None:
    with Session(engine) as session:
        session.add(Order(item="book"))
        outbox.emit(session, OrderPlaced(order_id=1), tenant="acme")
        outbox.emit(session, OrderPlaced(order_id=2), tenant="acme")
        session.begin_nested()
        outbox.emit(session, "shop.note", "x", tenant="acme")

    (message,) = lost(caplog)
    assert message.endswith("its events are lost: 1 shop.note, 2 shop.order.placed")
    assert caplog.records[-1].levelno == logging.WARNING
    assert ids(engine) == []


async def test_an_async_session_closed_without_a_commit_says_so_too(
    async_engine: AsyncEngine, outbox: Outbox, caplog: pytest.LogCaptureFixture
) -> None:
    async with AsyncSession(async_engine) as session:
        outbox.emit(session, OrderPlaced(order_id=1), tenant="acme")

    assert len(lost(caplog)) == 1


def test_a_session_that_nobody_closed_says_what_it_lost(
    engine: sa.Engine, outbox: Outbox, caplog: pytest.LogCaptureFixture
) -> None:
    def forget() -> None:
        outbox.emit(Session(engine), OrderPlaced(order_id=1), tenant="acme")

    forget()
    gc.collect()

    assert len(lost(caplog)) == 1


def _rolled_back(session: Session, _: Outbox) -> None:
    session.rollback()


def _committed(session: Session, _: Outbox) -> None:
    session.commit()


def _failed_flush(session: Session, _: Outbox) -> None:
    session.add_all([Order(item="book"), Order(item="book")])
    with pytest.raises(IntegrityError):
        session.commit()
    session.rollback()


def _savepoint_closed(session: Session, outbox: Outbox) -> None:
    savepoint = session.begin_nested()
    outbox.emit(session, OrderPlaced(order_id=2), tenant="acme")
    savepoint.close()
    session.commit()


def _rolled_back_with_savepoint(session: Session, outbox: Outbox) -> None:
    root = session.get_transaction()
    session.begin_nested()
    outbox.emit(session, OrderPlaced(order_id=2), tenant="acme")
    assert root is not None
    root.rollback()


@pytest.mark.parametrize(
    "ending", [_rolled_back, _committed, _failed_flush, _savepoint_closed, _rolled_back_with_savepoint]
)
def test_an_ending_that_the_app_chose_is_no_loss(
    engine: sa.Engine,
    outbox: Outbox,
    caplog: pytest.LogCaptureFixture,
    ending: Callable[[Session, Outbox], Any],
) -> None:
    with Session(engine) as session:
        outbox.emit(session, OrderPlaced(order_id=1), tenant="acme")
        ending(session, outbox)
    gc.collect()

    assert lost(caplog) == []


def test_a_commit_that_the_database_refused_is_no_silent_success(own_engine: sa.Engine, outbox: Outbox) -> None:
    with own_engine.begin() as connection:
        connection.execute(
            sa.text("alter table orders add constraint late unique (item) deferrable initially deferred")
        )
    with Session(own_engine) as session, session.begin():
        session.add(Order(item="x1"))
    with own_engine.begin() as connection:
        connection.execute(sa.text("alter table orders drop constraint orders_item_key"))
    with Session(own_engine) as session:
        session.add(Order(item="x1"))
        handle = outbox.emit(session, OrderPlaced(order_id=1), tenant="acme", idempotency_key="once")
        with pytest.raises(IntegrityError):
            session.commit()
        session.rollback()
        with pytest.raises(OutboxError, match="want a commit first"):
            _ = handle.id

    assert ids(own_engine) == []
