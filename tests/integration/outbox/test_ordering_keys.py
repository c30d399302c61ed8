"""Order: among the events of a key, and between writers of one business row."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import sqlalchemy as sa
from sqlalchemy.orm import Session

from outbox import Outbox, Tier
from tests.integration.outbox.crossing import cross
from tests.integration.outbox.shop import OrderPlaced, Wallet, WalletChanged, logged, numbers

_WITHIN_S = 60


def together(*calls: Callable[[], None]) -> None:
    """Run *calls* at the same time, each in a thread; any error is raised here."""
    with ThreadPoolExecutor(len(calls)) as pool:
        for future in [pool.submit(call) for call in calls]:
            future.result(timeout=_WITHIN_S)


def test_numbers_rise_by_one_over_transactions_and_within(engine: sa.Engine, outbox: Outbox) -> None:
    for batch in (1, 3, 2):
        with Session(engine) as session, session.begin():
            for number in range(batch):
                outbox.emit(session, OrderPlaced(order_id=number), tenant="acme", ordering_key="k")
                outbox.emit(session, OrderPlaced(order_id=number), tenant="acme")

    keyed = [row for row in logged(engine) if row.ordering_key]
    first = keyed[0].key_number
    assert [row.key_number for row in keyed] == list(range(first, first + 6))
    assert [row.key_first for row in keyed] == [True] + [False] * 5
    assert keyed[0].key_previous_at is None
    assert [row.key_previous_at for row in keyed[1:]] == [row.ledger_at for row in keyed[:-1]]


def test_keys_count_apart_per_tenant_and_tier(engine: sa.Engine, outbox: Outbox) -> None:
    with Session(engine) as session, session.begin():
        for tenant, tier in (("a", Tier.BULK), ("b", Tier.BULK), ("a", Tier.STANDARD), ("a", Tier.BULK)):
            outbox.emit(session, OrderPlaced(order_id=1), tenant=tenant, tier=tier, ordering_key="k")

    rows = logged(engine)
    assert [row.key_first for row in rows] == [True, True, True, False]
    assert rows[3].key_number == rows[0].key_number + 1


def test_a_purged_key_starts_above_where_it_ended(engine: sa.Engine, outbox: Outbox) -> None:
    for _ in range(2):
        with Session(engine) as session, session.begin():
            for number in range(20):
                outbox.emit(session, OrderPlaced(order_id=number), tenant="acme", ordering_key="k")
            session.execute(sa.text("delete from outbox.ordering"))

    drawn = numbers(engine, "k")
    assert drawn[20] > drawn[19]
    assert [row.key_first for row in logged(engine)].count(True) == 2


def test_writers_of_one_key_draw_every_number_once_in_commit_order(engine: sa.Engine, outbox: Outbox) -> None:
    def write() -> None:
        for number in range(30):
            with Session(engine) as session, session.begin():
                outbox.emit(session, OrderPlaced(order_id=number), tenant="acme", ordering_key="k")
                outbox.emit(session, OrderPlaced(order_id=number), tenant="acme", ordering_key="k")

    together(write, write, write)

    drawn = numbers(engine, "k")
    assert drawn == list(range(drawn[0], drawn[0] + 180))
    keyed = logged(engine)
    assert [row.ledger_at for row in keyed] == sorted(row.ledger_at for row in keyed)
    assert [row.key_previous_at for row in keyed[1:]] == [row.ledger_at for row in keyed[:-1]]


async def test_emits_on_the_same_keys_in_opposite_order_never_deadlock(engine: sa.Engine, outbox: Outbox) -> None:
    def write(*keys: str) -> None:
        with Session(engine) as session, session.begin():
            for key in keys:
                outbox.emit(session, OrderPlaced(order_id=1), tenant="acme", ordering_key=key)

    write("b")
    await cross(
        engine,
        held="select from outbox.ordering where ordering_key = 'b' for update",
        first=lambda: write("a", "b", "c"),
        second=lambda: write("c", "b", "a"),
    )

    assert [len(numbers(engine, key)) for key in "abc"] == [2, 3, 2]


def test_two_writers_of_a_wallet_emit_in_the_order_in_which_they_changed_it(engine: sa.Engine, outbox: Outbox) -> None:
    """sqlalchemy/sqlalchemy#5735, mattrobinsonsre/terrapod#1173: an event row that the unit of work inserts before
    the business row is locked is numbered before it, and published before a change that it follows.
    """
    with Session(engine) as session, session.begin():
        session.add(Wallet(id=1))

    def write() -> None:
        for _ in range(50):
            with Session(engine) as session, session.begin():
                wallet = session.get_one(Wallet, 1)
                wallet.balance = Wallet.balance + 1
                outbox.emit(session, partial(changed, wallet), tenant="acme")

    together(write, write)

    assert [json.loads(row.payload)["balance"] for row in logged(engine)] == list(range(1, 101))


def changed(wallet: Wallet) -> WalletChanged:
    return WalletChanged(balance=wallet.balance)
