from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from outbox import Handle, IdempotencyConflict, Outbox, OutboxError
from tests.integration.outbox.crossing import cross
from tests.integration.outbox.shop import Order, OrderPlaced, count, logged, new_outbox, numbers, scheduled
from tests.integration.outbox.test_ordering_keys import together


def emit_once(engine: sa.Engine, outbox: Outbox, event: Any, *, key: str = "once", **options: Any) -> Handle:
    with Session(engine) as session, session.begin():
        return outbox.emit(session, event, idempotency_key=key, **{"tenant": "acme", **options})


def test_the_same_key_and_payload_is_one_event_and_both_handles_have_its_id(engine: sa.Engine, outbox: Outbox) -> None:
    first = emit_once(engine, outbox, OrderPlaced(order_id=1))
    second = emit_once(engine, outbox, lambda: OrderPlaced(order_id=1))

    assert [row.id for row in logged(engine)] == [first.id] == [second.id]
    assert (first.is_duplicate, second.is_duplicate) == (False, True)


def test_json_is_compared_by_value_and_other_payloads_by_their_bytes(engine: sa.Engine, outbox: Outbox) -> None:
    for payload in ({"a": 1, "b": [2]}, {"b": [2], "a": 1}, b'{ "b": [2], "a": 1 }'):
        emit_once(engine, outbox, "shop.note", payload=payload)
    emit_once(engine, outbox, "shop.scan", payload=b"\x00", content_type="image/png", key="scan")
    with pytest.raises(IdempotencyConflict):
        emit_once(engine, outbox, "shop.scan", payload=b"\x01", content_type="image/png", key="scan")

    assert [row.type for row in logged(engine)] == ["shop.note", "shop.scan"]


def test_another_payload_under_the_same_key_commits_nothing(engine: sa.Engine, outbox: Outbox) -> None:
    emit_once(engine, outbox, OrderPlaced(order_id=1))
    with Session(engine) as session:
        session.add(Order(item="book"))
        outbox.emit(session, OrderPlaced(order_id=3), tenant="acme")
        outbox.emit(session, OrderPlaced(order_id=2), tenant="acme", idempotency_key="once")
        with pytest.raises(
            IdempotencyConflict,
            match=r"^idempotency key 'once' of shop\.order\.placed: want the payload it was first used with, got",
        ):
            session.commit()
        with pytest.raises(OutboxError, match=r"^commit: want a rollback first"):
            session.commit()
        session.rollback()

    assert len(logged(engine)) == 1
    assert count(engine, Order) == 0


def test_one_transaction_may_use_a_key_twice(engine: sa.Engine, outbox: Outbox) -> None:
    with Session(engine) as session, session.begin():
        handles = [
            outbox.emit(session, OrderPlaced(order_id=1), tenant="acme", idempotency_key="once", ordering_key="k")
            for _ in range(3)
        ]

    assert [row.id for row in logged(engine)] == [handles[0].id]
    assert len({handle.id for handle in handles}) == 1
    assert [handle.is_duplicate for handle in handles] == [False, True, True]


def test_a_duplicate_takes_no_number_of_its_ordering_key(engine: sa.Engine, outbox: Outbox) -> None:
    for key in ("a", "a", "b"):
        emit_once(engine, outbox, OrderPlaced(order_id=1), key=key, ordering_key="k")

    drawn = numbers(engine, "k")
    assert drawn == [drawn[0], drawn[0] + 1]


def test_a_tenants_key_never_suppresses_another_tenants_event(engine: sa.Engine, outbox: Outbox) -> None:
    handles = [emit_once(engine, outbox, OrderPlaced(order_id=1), tenant=tenant) for tenant in ("a", "b", "a\n")]

    assert [row.tenant for row in logged(engine)] == ["a", "b", "a\n"]
    assert not any(handle.is_duplicate for handle in handles)


def test_a_rolled_back_key_is_free_again(engine: sa.Engine, outbox: Outbox) -> None:
    with Session(engine) as session:
        handle = outbox.emit(session, OrderPlaced(order_id=1), tenant="acme", idempotency_key="once")
        session.rollback()
    with pytest.raises(OutboxError, match=r"^id: want a commit first"):
        _ = handle.id
    with pytest.raises(OutboxError, match=r"^is_duplicate: want a commit first"):
        _ = handle.is_duplicate

    assert not emit_once(engine, outbox, OrderPlaced(order_id=2)).is_duplicate


def test_a_key_is_forgotten_after_its_retention(engine: sa.Engine, outbox: Outbox) -> None:
    emit_once(engine, new_outbox(key_retention=timedelta(microseconds=1)), OrderPlaced(order_id=1))
    second = emit_once(engine, outbox, OrderPlaced(order_id=2))
    third = emit_once(engine, outbox, OrderPlaced(order_id=2))

    assert (second.is_duplicate, third.is_duplicate) == (False, True)
    assert len(logged(engine)) == 2
    with engine.connect() as connection:
        left = connection.scalar(sa.text("select expires_at - now() from outbox.key"))
    assert timedelta(days=13) < left <= timedelta(days=14)


def test_a_scheduled_event_keeps_its_key_while_it_waits(engine: sa.Engine, outbox: Outbox) -> None:
    first = emit_once(engine, outbox, OrderPlaced(order_id=1), delay=timedelta(hours=1))
    second = emit_once(engine, outbox, OrderPlaced(order_id=1))

    assert second.is_duplicate
    assert [row.id for row in scheduled(engine)] == [first.id] == [second.id]
    assert logged(engine) == []


def test_the_same_key_from_two_transactions_at_once_is_one_event(engine: sa.Engine, outbox: Outbox) -> None:
    handles: list[tuple[int, Handle]] = []

    def write() -> None:
        for number in range(40):
            with Session(engine) as session, session.begin():
                handle = outbox.emit(
                    session, OrderPlaced(order_id=number), tenant="acme", idempotency_key=f"once-{number}"
                )
            handles.append((number, handle))

    together(write, write)

    rows = logged(engine)
    assert len(rows) == 40
    by_key = {row.idempotency_key: row.id for row in rows}
    assert all(handle.id == by_key[f"once-{number}"] for number, handle in handles)
    assert sum(handle.is_duplicate for _, handle in handles) == 40


async def test_the_same_keys_in_opposite_order_never_deadlock(engine: sa.Engine, outbox: Outbox) -> None:
    def write(*keys: str) -> None:
        with Session(engine) as session, session.begin():
            for key in keys:
                outbox.emit(session, OrderPlaced(order_id=1), tenant="acme", idempotency_key=key)

    await cross(
        engine,
        held="insert into outbox.key values ('acme', 'b', '', gen_random_uuid(), now())",
        first=lambda: write("a", "b", "c"),
        second=lambda: write("c", "b", "a"),
    )

    assert len(logged(engine)) == 3
