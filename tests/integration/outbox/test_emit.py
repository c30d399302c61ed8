import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_scoped_session, async_sessionmaker
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from outbox import (
    InvalidEvent,
    Outbox,
    PayloadTooLarge,
    SchemaMissing,
    TenantRequired,
    Tier,
    Trail,
    bind_tenant,
    tenant_scope,
    trail_scope,
)
from outbox.naming import bucket_of, tenant_hash
from tests.integration.outbox.shop import SOURCE, Order, OrderPlaced, WalletChanged, count, logged, new_outbox

_TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def test_a_committed_event_is_in_the_log_with_everything_it_was_given(engine: sa.Engine, outbox: Outbox) -> None:
    with Session(engine) as session, session.begin():
        handle = outbox.emit(
            session,
            OrderPlaced(order_id=7),
            tenant="acme",
            tier=Tier.BULK,
            ordering_key="order-7",
            idempotency_key="place-7",
            actor="user-1",
            causation_id="cause",
            correlation_id="whole",
            traceparent=_TRACE,
            tracestate="a=b",
        )

    (row,) = logged(engine)
    hashed = tenant_hash("acme")
    assert (row.id, row.type, row.data_version, row.source) == (handle.id, "shop.order.placed", 2, SOURCE)
    assert (row.payload, row.content_type) == (b'{"order_id":7}', "application/json")
    assert (row.tenant, row.tenant_hash, row.bucket, row.tier) == ("acme", hashed, bucket_of(hashed), Tier.BULK)
    assert (row.ordering_key, row.key_first, row.key_previous_at) == ("order-7", True, None)
    assert row.idempotency_key == "place-7"
    assert (row.actor, row.causation_id, row.correlation_id) == ("user-1", "cause", "whole")
    assert (row.traceparent, row.tracestate) == (_TRACE, "a=b")
    assert row.emitted_at == row.ledger_at
    assert abs(row.emitted_at - datetime.now(UTC)) < timedelta(minutes=1)
    assert not handle.is_duplicate


def test_a_rolled_back_event_is_nowhere(engine: sa.Engine, outbox: Outbox) -> None:
    with Session(engine) as session:
        outbox.emit(session, OrderPlaced(order_id=1), tenant="acme")
        session.flush()
        session.rollback()
        session.commit()

    assert logged(engine) == []


async def test_an_async_session_emits_with_the_same_call(async_engine: AsyncEngine, engine: sa.Engine) -> None:
    outbox = new_outbox()
    async with AsyncSession(async_engine) as session, session.begin():
        order = Order(item="book")
        session.add(order)
        outbox.emit(session, lambda: OrderPlaced(order_id=order.id), tenant="acme")
    async with AsyncSession(async_engine) as session:
        outbox.emit(session, OrderPlaced(order_id=9), tenant="acme")
        await session.rollback()

    assert [row.payload for row in logged(engine)] == [b'{"order_id":1}']


async def test_scoped_sessions_emit_too(async_engine: AsyncEngine, engine: sa.Engine, outbox: Outbox) -> None:
    local = scoped_session(sessionmaker(engine))
    outbox.emit(local, OrderPlaced(order_id=1), tenant="acme")
    local.commit()
    local.remove()
    async_local = async_scoped_session(async_sessionmaker(async_engine), scopefunc=lambda: 1)
    outbox.emit(async_local, OrderPlaced(order_id=2), tenant="acme")
    await async_local.commit()
    await async_local.remove()

    assert len(logged(engine)) == 2


def test_an_event_about_a_new_row_carries_the_key_that_the_database_made(engine: sa.Engine, outbox: Outbox) -> None:
    """sqlalchemy/sqlalchemy#5735: an INSERT among the unit of work's own is ordered by class, not by need."""
    with Session(engine) as session, session.begin():
        order = Order(item="book")
        session.add(order)
        outbox.emit(session, lambda: OrderPlaced(order_id=order.id), tenant="acme")
        outbox.emit(session, "shop.order.noted", lambda: {"order": order.id}, tenant="acme")

    assert [json.loads(row.payload) for row in logged(engine)] == [{"order_id": 1}, {"order": 1}]


def test_a_payload_function_may_change_rows_and_emit_more(engine: sa.Engine, outbox: Outbox) -> None:
    with Session(engine) as session, session.begin():

        def placed() -> OrderPlaced:
            second = Order(item="pen")
            session.add(second)
            outbox.emit(session, lambda: OrderPlaced(order_id=second.id), tenant="acme")
            return OrderPlaced(order_id=0)

        outbox.emit(session, placed, tenant="acme")

    assert [row.payload for row in logged(engine)] == [b'{"order_id":0}', b'{"order_id":1}']
    assert count(engine, Order) == 1


def test_five_thousand_events_of_one_transaction_stand_in_the_order_of_emission(
    engine: sa.Engine, outbox: Outbox
) -> None:
    with Session(engine) as session, session.begin():
        for number in range(5_000):
            outbox.emit(session, OrderPlaced(order_id=number), tenant=f"t{number % 7}", ordering_key=str(number % 3))

    rows = logged(engine)
    assert [json.loads(row.payload)["order_id"] for row in rows] == list(range(5_000))


def test_the_order_of_emission_holds_on_every_way_to_send_many_rows(engine: sa.Engine) -> None:
    outbox = new_outbox()
    for options in ({"insertmanyvalues_page_size": 7}, {"use_insertmanyvalues": False}):
        other = sa.create_engine(engine.url, **options)
        with Session(other) as session, session.begin():
            session.execute(sa.text("delete from outbox.event"))
            for number in range(100):
                outbox.emit(session, OrderPlaced(order_id=number), tenant="acme")
        other.dispose()
        assert [json.loads(row.payload)["order_id"] for row in logged(engine)] == list(range(100))


def test_bytes_are_stored_as_they_are_with_their_content_type(engine: sa.Engine, outbox: Outbox) -> None:
    with Session(engine) as session, session.begin():
        outbox.emit(session, "shop.scan", b"\x00\xff\x80", content_type="image/png", tenant="acme")
        outbox.emit(session, "shop.note", b'{"spaced":  "out"}', tenant="acme", version=3)

    scan, note = logged(engine)
    assert (scan.payload, scan.content_type, scan.data_version) == (b"\x00\xff\x80", "image/png", 1)
    assert (note.payload, note.content_type, note.data_version) == (b'{"spaced":  "out"}', "application/json", 3)


def test_a_typed_event_brings_its_own_tier(engine: sa.Engine, outbox: Outbox) -> None:
    with Session(engine) as session, session.begin():
        outbox.emit(session, WalletChanged(balance=1), tenant="acme")
        outbox.emit(session, lambda: WalletChanged(balance=1), tenant="acme")
        outbox.emit(session, WalletChanged(balance=1), tenant="acme", tier=Tier.STANDARD)

    assert [row.tier for row in logged(engine)] == [Tier.INTERACTIVE, Tier.INTERACTIVE, Tier.STANDARD]


def test_the_tenant_is_the_arguments_then_the_sessions_then_the_scopes(engine: sa.Engine, outbox: Outbox) -> None:
    with tenant_scope("scope"), Session(engine) as session:
        outbox.emit(session, OrderPlaced(order_id=1))
        session.commit()
        bind_tenant(session, "session")
        outbox.emit(session, OrderPlaced(order_id=2))
        outbox.emit(session, OrderPlaced(order_id=3), tenant="argument")
        session.commit()

    assert [row.tenant for row in logged(engine)] == ["scope", "session", "argument"]


def test_without_a_tenant_emit_is_refused_and_the_session_lives(engine: sa.Engine, outbox: Outbox) -> None:
    with Session(engine) as session:
        with pytest.raises(TenantRequired, match=r"^tenant: want one by argument"):
            outbox.emit(session, OrderPlaced(order_id=1))
        session.add(Order(item="book"))
        session.commit()

    assert count(engine, Order) == 1


@pytest.mark.parametrize("tenant", ["a", "a\n", "ä\U0001f600", "x" * 200, " ", "%2F", "a.b"])
def test_any_text_can_be_a_tenant(engine: sa.Engine, outbox: Outbox, tenant: str) -> None:
    """RabbitMQ strips CR and LF from names; the database keeps what was said."""
    with Session(engine) as session, session.begin():
        outbox.emit(session, OrderPlaced(order_id=1), tenant=tenant)

    assert [row.tenant for row in logged(engine)] == [tenant]


def test_what_a_handler_emits_names_its_cause_by_itself(engine: sa.Engine, outbox: Outbox) -> None:
    with (
        trail_scope(Trail(actor="user-1", causation_id="event-1", correlation_id="whole")),
        Session(engine) as session,
        session.begin(),
    ):
        outbox.emit(session, OrderPlaced(order_id=1), tenant="acme")
        outbox.emit(session, OrderPlaced(order_id=1), tenant="acme", actor="robot")

    first, second = logged(engine)
    assert (first.actor, first.causation_id, first.correlation_id) == ("user-1", "event-1", "whole")
    assert (second.actor, second.causation_id, second.correlation_id) == ("robot", "event-1", "whole")


@pytest.mark.parametrize("is_late", [False, True])
def test_a_payload_over_the_limit_is_refused_with_both_numbers(engine: sa.Engine, is_late: bool) -> None:
    outbox = new_outbox(payload_bytes_max=100)
    text = "x" * 99
    payload: Any = (lambda: text) if is_late else text
    with Session(engine) as session:
        session.add(Order(item="book"))

        def emit_and_commit() -> None:
            outbox.emit(session, "shop.note", payload, tenant="acme")
            session.commit()

        with pytest.raises(PayloadTooLarge, match=r"^payload of shop\.note: want at most 100 bytes, got 101$"):
            emit_and_commit()
        session.rollback()

    assert count(engine, Order) == 0


def test_a_late_refusal_leaves_only_a_rollback(engine: sa.Engine, outbox: Outbox) -> None:
    with Session(engine) as session:
        session.add(Order(item="book"))
        outbox.emit(session, "shop.note", lambda: float("nan"), tenant="acme", ordering_key="k")
        with pytest.raises(InvalidEvent, match="want finite numbers"):
            session.commit()
        with pytest.raises(Exception, match="want a rollback first"):
            session.commit()
        session.rollback()
        outbox.emit(session, OrderPlaced(order_id=1), tenant="acme")
        session.commit()

    assert count(engine, Order) == 0
    assert len(logged(engine)) == 1


def test_one_session_may_emit_through_two_outboxes(engine: sa.Engine) -> None:
    first, second = new_outbox(), Outbox("/svc/other")
    with Session(engine) as session, session.begin():
        first.emit(session, OrderPlaced(order_id=1), tenant="acme")
        second.emit(session, OrderPlaced(order_id=2), tenant="acme")
        first.emit(session, OrderPlaced(order_id=3), tenant="acme")

    rows = [(row.source, json.loads(row.payload)["order_id"]) for row in logged(engine)]
    assert rows == [(SOURCE, 1), ("/svc/other", 2), (SOURCE, 3)]


def test_a_database_that_is_not_migrated_gives_one_sentence(database: str) -> None:
    engine = sa.create_engine(sa.make_url(database).set(drivername="postgresql+psycopg"))
    outbox = new_outbox()
    with Session(engine) as session:
        outbox.emit(session, OrderPlaced(order_id=1), tenant="acme")
        with pytest.raises(SchemaMissing, match=r"^database: want the outbox schema"):
            session.commit()
        session.rollback()
    engine.dispose()


def test_an_error_of_the_database_repeats_no_payload(own_engine: sa.Engine, outbox: Outbox) -> None:
    """PostgreSQL and SQLAlchemy both repeat values in their errors."""
    with own_engine.begin() as connection:
        connection.execute(
            sa.text("alter table outbox.event add constraint never check (type <> 'shop.note') not valid")
        )
    with Session(own_engine) as session:
        outbox.emit(session, "shop.note", {"secret": "canary-1"}, tenant="acme")
        with pytest.raises(sa.exc.IntegrityError) as caught:
            session.commit()
        session.rollback()

    assert "canary-1" not in str(caught.value)


def test_other_databases_are_refused_at_emit(outbox: Outbox) -> None:
    engine = sa.create_engine("sqlite://")
    with (
        Session(engine) as session,
        pytest.raises(InvalidEvent, match=r"^emit: want a session on PostgreSQL, got one on sqlite$"),
    ):
        outbox.emit(session, OrderPlaced(order_id=1), tenant="acme")
    with Session() as session, pytest.raises(InvalidEvent, match="no database for it"):
        outbox.emit(session, OrderPlaced(order_id=1), tenant="acme")
    with pytest.raises(InvalidEvent, match=r"^session: want a Session or an AsyncSession, got Engine$"):
        outbox.emit(engine, OrderPlaced(order_id=1), tenant="acme")  # type: ignore[arg-type]  # the mistake is the test
    engine.dispose()


def test_sessions_of_other_databases_are_left_alone(outbox: Outbox) -> None:
    engine = sa.create_engine("sqlite://", isolation_level="AUTOCOMMIT")
    with tenant_scope("acme"), Session(engine) as session:
        session.execute(sa.text("create table note (body text)"))
        with session.begin_nested():
            session.execute(sa.text("insert into note values ('x')"))
        session.commit()
        assert session.scalar(sa.text("select count(*) from note")) == 1
    engine.dispose()
