"""What a consumer counts for whoever watches its metrics, after real work on a real database."""

from collections.abc import AsyncIterator

import pytest
from prometheus_client.core import Metric

from consumer import DeadLetter, Outcome
from consumer.engine.run import Readiness
from consumer.metrics import EngineCollector
from consumer.store import standing, work
from consumer.store.stored import Connection
from consumer.store.work import Reason
from outbox.event import EventModel, Tier
from tests.support import waiting_events
from tests.support.engine import TYPE, Rig, an_event, memory_rig
from tests.support.metric_names import complaints


class OrderPlaced(EventModel, type=TYPE):
    order_id: int


@pytest.fixture
async def rig(migrated_database: str) -> AsyncIterator[Rig]:
    async with memory_rig(migrated_database) as rig:
        yield rig


def shown(readiness: Readiness) -> list[Metric]:
    return list(EngineCollector(readiness, group="billing", build="7", slots=10).collect())


def samples(readiness: Readiness) -> dict[tuple[str, ...], float]:
    return {
        (one.name, *(value for key, value in one.labels.items() if key != "le")): one.value
        for family in shown(readiness)
        for one in family.samples
        if one.labels.get("le", "+Inf") == "+Inf"
    }


async def test_attempts_waits_and_what_stands_are_counted(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("consumer.engine.lookout._EVERY_S", 0.05)
    asked = 0

    @rig.consumer.on(OrderPlaced)
    async def bill(event: OrderPlaced) -> Outcome | None:
        nonlocal asked
        asked += 1
        if event.order_id == 2:
            return DeadLetter(reason="no such customer")
        if event.order_id == 3:
            raise OSError("away")
        return None

    process = await rig.start()
    for number in (1, 2, 3):
        await rig.publish(an_event(number))
    await rig.until(lambda: rig.count("consumer.work") == 1 and asked >= 3)
    engine = process.readiness.engine
    assert engine is not None
    await rig.until(lambda: engine.tally.dead_letters.get("permanent") == 1 and engine.tally.work_rows["retry"] == 1)
    found = samples(process.readiness)
    name = "bill"
    assert found["outbox_consumer_attempts_total", name, "done"] == 1
    assert found["outbox_consumer_attempts_total", name, "dead_letter"] == 1
    assert found["outbox_consumer_attempts_total", name, "raised"] >= 1
    assert found["outbox_consumer_attempt_seconds_count", name] >= 3
    assert found["outbox_consumer_start_delay_seconds_count", "standard"] == 3
    assert found["outbox_consumer_taken_total", "queue"] == 3
    assert found["outbox_consumer_dead_letters", "permanent"] == 1
    assert found["outbox_consumer_last_settled_timestamp_seconds",] > 1_600_000_000
    assert complaints(shown(process.readiness)) == []


async def test_what_stands_is_of_one_group_and_says_how_long_the_first_due_row_waits(connection: Connection) -> None:
    group = waiting_events.GROUP
    found = await standing.read(connection, group)
    assert (found.work, found.dead, found.overdue_s) == ({}, {}, 0.0)
    rows = [
        waiting_events.new_work(waiting_events.an_event(tenant="old", tier=Tier.BULK)),
        waiting_events.new_work(waiting_events.an_event(tenant="later"), delay_s=600),
    ]
    await work.put(connection, rows)
    await connection.execute("UPDATE consumer.work SET due_at = due_at - interval '5 min' WHERE tenant = 'old'")
    found = await standing.read(connection, group)
    assert sum(found.work.values()) == 2
    assert set(found.work) <= set(Reason)
    assert 300.0 <= found.overdue_s < 360.0
    assert (await standing.read(connection, "another")).work == {}


def test_before_it_runs_there_is_only_the_build_to_tell_of() -> None:
    names = [family.name for family in shown(Readiness())]
    assert names == ["outbox_consumer_build", "outbox_consumer_settled"]
