from datetime import UTC, datetime, timedelta, timezone

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from outbox import Handle, InvalidEvent, Outbox, TenantRequired, tenant_scope
from outbox.event import new_event_id
from tests.integration.outbox.shop import OrderPlaced, logged, scheduled

_HOUR = timedelta(hours=1)
_LATER = datetime(2031, 5, 1, 12, tzinfo=timezone(timedelta(hours=2)))


def schedule(engine: sa.Engine, outbox: Outbox, *, key: str | None = None) -> Handle:
    with Session(engine) as session, session.begin():
        return outbox.emit(session, OrderPlaced(order_id=1), tenant="acme", delay=_HOUR, idempotency_key=key)


def test_a_due_time_is_kept_and_is_the_events_ledger_time(engine: sa.Engine, outbox: Outbox) -> None:
    with Session(engine) as session, session.begin():
        handle = outbox.emit(session, OrderPlaced(order_id=1), tenant="acme", due_at=_LATER)
        outbox.emit(session, OrderPlaced(order_id=2), tenant="acme", due_at=datetime(2020, 1, 1, tzinfo=UTC))

    late, past = sorted(scheduled(engine), key=lambda row: row.due_at, reverse=True)
    assert (late.id, late.due_at, late.ledger_at) == (handle.id, _LATER, _LATER)
    assert past.ledger_at == past.emitted_at > past.due_at
    assert logged(engine) == []


def test_a_delay_counts_on_the_databases_clock(engine: sa.Engine, outbox: Outbox) -> None:
    with Session(engine) as session, session.begin():
        session.execute(sa.text("select pg_sleep(0.05)"))
        outbox.emit(session, lambda: OrderPlaced(order_id=1), tenant="acme", delay=_HOUR)

    (row,) = scheduled(engine)
    assert row.due_at - row.emitted_at == _HOUR
    assert row.ledger_at == row.due_at


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"due_at": _LATER, "ordering_key": "k"}, "ordering_key: want none with a due time"),
        ({"delay": _HOUR, "ordering_key": "k"}, "ordering_key: want none with a due time"),
        ({"due_at": _LATER, "delay": _HOUR}, "due_at and delay: want one of them"),
        ({"due_at": datetime(2031, 5, 1)}, "due_at: want a time with a time zone"),  # noqa: DTZ001 (the mistake is the test)
        ({"due_at": datetime.max.replace(tzinfo=timezone(-_HOUR))}, "due_at: want a time within the years"),
        ({"delay": -_HOUR}, "delay: want 0..36500 days"),
        ({"delay": timedelta.max}, "delay: want 0..36500 days"),
    ],
)
def test_a_due_time_that_cannot_be_kept_is_refused(
    engine: sa.Engine, outbox: Outbox, options: dict[str, object], sentence: str
) -> None:
    with Session(engine) as session, pytest.raises(InvalidEvent, match=f"^{sentence}"):
        outbox.emit(session, OrderPlaced(order_id=1), tenant="acme", **options)  # type: ignore[arg-type]  # any of them


def test_cancelling_removes_the_event_and_says_whether_it_was_there(engine: sa.Engine, outbox: Outbox) -> None:
    handle = schedule(engine, outbox)
    with Session(engine) as session, session.begin(), tenant_scope("acme"):
        assert outbox.cancel(session, handle.id)
        assert not outbox.cancel(session, handle.id)
        assert not outbox.cancel(session, new_event_id())

    assert scheduled(engine) == []


async def test_an_async_session_awaits_the_same_call(
    async_engine: AsyncEngine, engine: sa.Engine, outbox: Outbox
) -> None:
    handle = schedule(engine, outbox)
    async with AsyncSession(async_engine) as session, session.begin():
        assert await outbox.cancel(session, handle.id, tenant="acme")
        waiting = outbox.emit(session, OrderPlaced(order_id=2), tenant="acme", delay=_HOUR)
        assert await outbox.cancel(session, waiting.id, tenant="acme")

    assert scheduled(engine) == []


def test_a_rolled_back_cancellation_brings_the_event_back(engine: sa.Engine, outbox: Outbox) -> None:
    handle = schedule(engine, outbox)
    with Session(engine) as session:
        assert outbox.cancel(session, handle.id, tenant="acme")
        session.rollback()

    assert [row.id for row in scheduled(engine)] == [handle.id]


def test_an_event_can_be_cancelled_before_it_is_committed(engine: sa.Engine, outbox: Outbox) -> None:
    with Session(engine) as session, session.begin():
        kept, dropped = (
            outbox.emit(session, OrderPlaced(order_id=number), tenant="acme", delay=_HOUR) for number in (1, 2)
        )
        assert outbox.cancel(session, dropped.id, tenant="acme")
        assert not outbox.cancel(session, dropped.id, tenant="acme")
        savepoint = session.begin_nested()
        assert outbox.cancel(session, kept.id, tenant="acme")
        savepoint.rollback()

    assert [row.id for row in scheduled(engine)] == [kept.id]


def test_a_tenant_cannot_cancel_another_tenants_event(engine: sa.Engine, outbox: Outbox) -> None:
    handle = schedule(engine, outbox)
    with Session(engine) as session, session.begin():
        assert not outbox.cancel(session, handle.id, tenant="other")
        with pytest.raises(TenantRequired):
            outbox.cancel(session, handle.id)

    assert len(scheduled(engine)) == 1


def test_what_was_cancelled_may_be_emitted_again_under_its_key(engine: sa.Engine, outbox: Outbox) -> None:
    first = schedule(engine, outbox, key="reminder")
    with Session(engine) as session, session.begin():
        assert outbox.cancel(session, first.id, tenant="acme")
    second = schedule(engine, outbox, key="reminder")

    assert not second.is_duplicate
    assert [row.id for row in scheduled(engine)] == [second.id]


def test_an_event_at_once_is_none_to_cancel(engine: sa.Engine, outbox: Outbox) -> None:
    with Session(engine) as session, session.begin():
        handle = outbox.emit(session, OrderPlaced(order_id=1), tenant="acme")
        assert not outbox.cancel(session, handle.id, tenant="acme")

    assert len(logged(engine)) == 1
