"""An alert names who looks after a group of dead letters that grows, once for all processes."""

from collections.abc import AsyncIterator

import pytest

from consumer import Alert, DeadLetter, Outcome
from consumer.ports import AlertKind
from consumer.store import growth, incarnation
from consumer.store import replay as store
from outbox.event import EventModel
from tests.integration.consumer.conftest import Connect
from tests.support.engine import GROUP, TYPE, Rig, an_event, memory_rig


class OrderPlaced(EventModel, type=TYPE):
    order_id: int


@pytest.fixture
async def rig(migrated_database: str) -> AsyncIterator[Rig]:
    async with memory_rig(migrated_database) as rig:
        yield rig


async def test_the_owner_of_dead_letters_is_named_when_more_of_them_come(
    rig: Rig, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("consumer.engine.growth._LOOK_S", 0.2)
    alerts: list[Alert] = []
    rig.consumer.on_alert(alerts.append)

    @rig.consumer.on(OrderPlaced)
    async def bill(event: OrderPlaced) -> Outcome | None:
        return DeadLetter(reason="no such customer" if event.order_id < 9 else "another reason")

    await rig.start()
    await rig.publish(an_event(1))
    await rig.until(lambda: rig.count("consumer.dead") == 1)
    fingerprint = rig.value("SELECT fingerprint FROM consumer.dead")
    connection = await connect()
    await store.own(connection, GROUP, fingerprint, owner="team-billing", actor="lead")
    await rig.publish(an_event(9), an_event(2))
    await rig.until(lambda: [alert for alert in alerts if alert.kind is AlertKind.DEAD_GROWTH], deadline_s=40)
    (alert, *_) = [alert for alert in alerts if alert.kind is AlertKind.DEAD_GROWTH]
    assert "team-billing" in alert.text
    assert f"--fingerprint {fingerprint}" in alert.text
    assert alert.event_type == TYPE


async def test_only_the_process_that_has_run_for_longest_tells_of_it(connect: Connect) -> None:
    connection = await connect()
    first, second = [
        await incarnation.begin(connection, GROUP, host="here", pid=number, lease_s=60) for number in range(2)
    ]
    await connection.execute(
        "INSERT INTO consumer.dead (group_name, handlers, category, message, fingerprint, attempts, tier, tenant, type,"
        " message_id, app_id, content_type, headers, body)"
        " VALUES ('billing', '{}', 'permanent', 'm', 'f', 1, 1, 'acme', 't', '', '', '', '{}', '')"
    )
    await store.own(connection, GROUP, "f", owner="me", actor="lead")
    assert await growth.owned(connection, GROUP, asked_by=second, within_s=60) == []
    (found,) = await growth.owned(connection, GROUP, asked_by=first, within_s=60)
    assert (found.owner, found.letters, found.type) == ("me", 1, "t")
    assert await growth.owned(connection, GROUP, asked_by=first, within_s=0) == []
