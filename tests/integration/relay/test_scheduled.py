"""Events with a due time enter the log when it has come, once, by the database's clock."""

import asyncio
import json
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

import pytest

from outbox.inprocess import InProcessBroker
from relay.log import scheduled, store
from tests.integration.relay.running import App, arrived, queued, running, schedule, value

_ROOT = Path(__file__).parents[3]


async def test_a_scheduled_event_is_published_when_due_and_not_before(
    url: str, app: App, broker: InProcessBroker
) -> None:
    async with running(url, broker):
        later, soon = schedule(app, due_in_s=3600.0), schedule(app, due_in_s=0.3)
        app.commit()
        await arrived(broker, [soon])
        assert queued(broker) == [soon]
        assert value(app, "select id from outbox.scheduled") == later
        # Its ledger time is the due time, whenever it was moved: consumers name its partition by it.
        assert value(app, "select ledger_at - emitted_at between '0.2 s' and '0.4 s' from outbox.event")


async def test_an_event_that_was_cancelled_before_it_was_due_is_never_published(
    url: str, app: App, broker: InProcessBroker
) -> None:
    async with running(url, broker):
        cancelled, kept = schedule(app, due_in_s=2.0), schedule(app, due_in_s=2.1)
        app.commit()
        app.execute("delete from outbox.scheduled where id = %s", (cancelled,))
        app.commit()
        await arrived(broker, [kept])
        assert queued(broker) == [kept]


async def test_a_due_event_that_its_app_is_cancelling_holds_back_no_other(
    url: str, app: App, other: App, broker: InProcessBroker
) -> None:
    async with running(url, broker):
        cancelled, kept = schedule(app, due_in_s=0.0), schedule(app, due_in_s=0.0)
        app.commit()
        other.execute("select from outbox.scheduled where id = %s for update", (cancelled,))
        await arrived(broker, [kept])


async def test_two_relays_that_move_what_is_due_move_each_event_once(url: str, app: App) -> None:
    ids = {schedule(app, due_in_s=-1.0) for _ in range(500)}
    app.commit()
    connections = [await store.connect(url, store.FIXED_PLANS, connect_s=5.0, statement_s=5.0) for _ in range(2)]
    moved = await asyncio.gather(
        *(scheduled.move_due(one, rows_max=50, within_s=5.0) for _ in range(8) for one in connections)
    )
    assert sum(moved) == 500
    assert {row[0] for row in app.execute("select id from outbox.event")} == ids
    for connection in connections:
        await store.close(connection)


@pytest.mark.parametrize("off_s", [-600.0, 600.0])
async def test_a_clock_ten_minutes_off_in_app_and_relay_changes_no_due_time(url: str, app: App, off_s: float) -> None:
    """Clock reports of several projects: work came early or late by as much as the worker's clock was off."""
    command = [sys.executable, "-m", "tests.integration.relay.skewed", url, str(off_s)]
    process = await asyncio.create_subprocess_exec(*command, cwd=_ROOT, stdout=PIPE)
    printed, _ = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0
    said = json.loads(next(line for line in printed.splitlines() if line.startswith(b"{")))
    assert said["published"] == 2
    assert 0.9 < said["seconds"] < 10
    # All other times are the database's too: a consumer's ledger would refuse an event from the future.
    assert value(app, "select max(abs(extract(epoch from clock_timestamp() - emitted_at))) < 60 from outbox.event")
    assert value(app, "select count(*) from outbox.scheduled where due_at - emitted_at between '4 m' and '6 m'") == 2
