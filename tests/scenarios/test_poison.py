"""Events that end the process that handles them: they are found, run alone, and buried; nobody else pays."""

from collections.abc import Mapping
from uuid import UUID

import pytest

from consumer.engine.suspects import Suspects
from consumer.store import start as starts
from consumer.store import work
from consumer.store.desk import Desk
from consumer.store.work import Reason
from outbox.event import Ordering
from outbox.shell.child import own_command
from tests.scenarios import dangerous
from tests.scenarios.conftest import Start
from tests.scenarios.dangerous import an_order
from tests.support.engine import GROUP, Rig, memory_rig
from tests.support.waiting_events import new_work


async def test_what_ends_its_process_is_buried_as_poison_and_its_neighbours_are_done_uncharged(
    rig: Rig, start: Start
) -> None:
    """celery/celery PR#6103, OasisLMF/OasisPlatform#975, rabbitmq/rabbitmq-website PR#2207, sidekiq/sidekiq#4633"""
    # Nothing waits for the leases of workers whose end their supervisor has seen.
    fleet = start(2, prefetch="10", slots="16", lease_s="120")
    await fleet.until_ready()
    order = [Ordering(key="k", number=number, is_first=number == 1, previous_time=None) for number in (1, 2)]
    poison, successor = an_order(1, "kill", ordering=order[0]), an_order(2, ordering=order[1])
    # All of them prefetched and begun together.
    neighbours = [an_order(number, "slow") for number in range(10, 19)]
    await rig.publish(*neighbours, poison, successor)
    await rig.until(lambda: rig.count("consumer.dead") == 1, what="the poison to be buried", deadline_s=60.0)
    await rig.until(lambda: rig.count("effect") == 9, what="the neighbours to be done", deadline_s=30.0)
    assert len(set(rig.effects())) == 9
    assert rig.value("SELECT count(*) FROM consumer.ledger WHERE state = 'done' AND attempts = 1") == 9
    letters = rig.rows("SELECT event_id, category, convert_from(body, 'UTF8') FROM consumer.dead")
    assert letters == [(poison.id, "poison", poison.payload.decode())]
    await rig.until(lambda: rig.rows("SELECT reason FROM consumer.work") == [("waiting",)], what="its key to be held")
    # It has ended one or two processes where others ran, and two where it ran alone.
    assert len(fleet.said("suspect's process died")) == 2
    assert len(fleet.said("worker died")) <= 2
    assert await fleet.is_ready()
    assert await fleet.end() == 0


@pytest.mark.parametrize("deed", ["exit", "segfault", "parse", "eat", "burn"])
async def test_a_suspect_that_ends_its_process_a_second_time_running_alone_is_convicted(
    migrated_database: str, monkeypatch: pytest.MonkeyPatch, tmp_path: object, deed: str
) -> None:
    """OasisLMF/OasisPlatform#975, sidekiq/sidekiq#4859"""
    settings: Mapping[str, str] = {
        "TMPDIR": str(tmp_path),
        "OUTBOX_DATABASE_URL": migrated_database,
        "OUTBOX_RABBITMQ_URL": "amqp://nobody@127.0.0.1:1/",
        "OUTBOX_CONSUMER_SUSPECT_MEMORY_MB": "256",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    desk = Desk(migrated_database, name="test")
    poison, good = an_order(1, deed), an_order(2)
    async with memory_rig(migrated_database) as rig:
        async with desk.use() as connection:
            await work.put(connection, [new_work(event, reason=Reason.SUSPECT, attempts=0) for event in (poison, good)])
            # One start that did not end is behind it.
            await starts.begin_alone(connection, GROUP, poison.id, incarnation=UUID(int=1))
        suspects = Suspects(
            group=GROUP,
            desk=desk,
            command=lambda id_: own_command("consumer", "suspect", dangerous.APP, str(id_)),
            within_s=8.0 if deed == "burn" else 60.0,
        )
        while rig.count("consumer.work"):
            await suspects.look()
        await desk.close()
        assert rig.rows("SELECT event_id, category FROM consumer.dead") == [(poison.id, "poison")]
        assert rig.effects() == ["2"]
        assert rig.count("consumer.incarnation") == 0
