"""A Celery user's first step, by its README: what the dual write loses, and what the event keeps."""

from collections.abc import Iterator

import psycopg
import pytest

from tests.examples.conftest import QUICK, Place
from tests.examples.stage import Stage, set_up
from tests.support.wait import until

_NOBODY = "amqp://guest:guest@127.0.0.1:1/"


@pytest.fixture(scope="module")
def shop(place: Place) -> Iterator[Stage]:
    """The app's tables, made by its README; nothing runs yet."""
    settings = {
        "DATABASE_URL": place.owner_url,
        "RABBITMQ_URL": place.rabbitmq_url,
        "CELERY_BROKER_URL": place.rabbitmq_url,
    }
    with set_up("celery", settings=settings, more=QUICK) as stage:
        yield stage


async def test_the_dual_write_loses_tasks_and_the_event_does_not(shop: Stage, place: Place) -> None:
    # The broker is away while an order is placed, before and after the change.
    (after,) = shop.blocks("Try")
    with pytest.raises(AssertionError, match="OperationalError"):
        shop.shell(after.replace("after.py", "before.py"), CELERY_BROKER_URL=_NOBODY)
    shop.shell(after, CELERY_BROKER_URL=_NOBODY, RABBITMQ_URL=_NOBODY)
    assert place.rows("SELECT id FROM orders ORDER BY id") == [(1,), (2,)]
    # It is back, and everything runs.
    for line in ("outbox-relay", "outbox-consumer", "celery"):
        shop.start(line)
    await place.until_value("SELECT count(*) FROM receipts", 1)
    await place.until_value("SELECT count(*) FROM bookings", 1)
    assert place.rows("SELECT order_id FROM receipts UNION ALL SELECT order_id FROM bookings") == [(2,), (2,)]
    # By whom: the worker, and the handler.
    ran = "succeeded in"
    await shop.running["celery"].line(ran)
    assert shop.running["celery"].output.count(ran) == 1


async def test_a_consumer_killed_while_it_calls_a_task_leaves_each_effect_once(shop: Stage, place: Place) -> None:
    (after,) = shop.blocks("Try")
    with psycopg.connect(place.owner_url) as blocker:
        blocker.execute("LOCK TABLE bookings IN ACCESS EXCLUSIVE MODE")
        order_id = int(shop.shell(after))
        await place.until_value(
            "SELECT count(*) FROM pg_locks WHERE relation = 'bookings'::regclass AND NOT granted", 1
        )
        shop.running["outbox-consumer"].kill()
        blocker.rollback()
    shop.start("outbox-consumer")
    await place.until_value("SELECT count(*) FROM consumer.ledger WHERE state = 'done'", 4)
    await until(
        lambda: place.rows("SELECT 1 FROM receipts WHERE order_id = %s", order_id), deadline_s=30.0, what="a receipt"
    )
    assert place.value("SELECT count(*) FROM bookings WHERE order_id = %s", order_id) == 1
    assert place.value("SELECT count(*) FROM consumer.dead") == 0
