"""The status of a group on a real database: is anything stuck, whose, why."""

import io
import json
import re

from rich.console import Console

from consumer import status
from consumer.decide.heartbeat import Heartbeat, OpenBreaker
from consumer.outcome import DeadCategory
from consumer.rabbitmq.depths import ready
from consumer.status import Queued, Status
from consumer.status_text import show
from consumer.store import dead, directory, gate, incarnation, work
from consumer.store.dead import NewDead
from consumer.store.directory import Announcement
from consumer.store.stored import Connection
from consumer.store.work import Reason
from outbox import wire
from outbox.event import Event, Tier
from outbox.naming import Lane
from tests.support.brokers import a_message, rabbit_bench
from tests.support.waiting_events import GROUP, HORIZON, an_event, keyed, new_work, stored_of


def text_of(found: Status) -> str:
    console = Console(width=140, record=True, file=io.StringIO())
    show(found, console)
    return console.export_text()


async def bury(connection: Connection, event: Event) -> int:
    new = NewDead(
        group=GROUP,
        event_id=event.id,
        stored=stored_of(event),
        category=DeadCategory.PERMANENT,
        message="m",
        fingerprint="f",
    )
    return await dead.put(connection, new)


async def test_an_idle_group_has_no_problems(connection: Connection) -> None:
    await incarnation.begin(connection, GROUP, host="web-1", pid=7, lease_s=30)
    found = await status.read(connection, GROUP)
    assert status.problems(found) == []
    assert "nothing is stuck" in text_of(found)
    assert "web-1" in text_of(found)


async def test_what_waits_is_told_by_tier_and_tenant_longest_overdue_first(connection: Connection) -> None:
    await work.put(connection, [new_work(an_event(tenant="new")), new_work(an_event(tenant="later"), delay_s=600)])
    await work.put(connection, [new_work(an_event(tenant="old", tier=Tier.BULK)) for _ in range(2)])
    await connection.execute(
        "UPDATE consumer.work SET due_at = due_at - interval '5 min', created_at = created_at - interval '1 h'"
        " WHERE tenant = 'old'"
    )
    found = await status.read(connection, GROUP)
    assert [(one.tier, one.tenant, one.rows, one.due) for one in found.waiting] == [
        (Tier.BULK, "old", 2, 2),
        (Tier.STANDARD, "new", 1, 1),
        (Tier.STANDARD, "later", 1, 0),
    ]
    assert found.waiting[0].overdue_s >= 300
    assert (found.at - found.waiting[0].waiting_since).total_seconds() >= 3600
    assert found.waiting[2].overdue_s == 0


async def test_due_events_without_a_living_process_are_a_problem(connection: Connection) -> None:
    await work.put(connection, [new_work(an_event())])
    await incarnation.begin(connection, GROUP, host="h", pid=1, lease_s=-1)
    (problem,) = status.problems(await status.read(connection, GROUP))
    assert problem == "1 event due, and no process of billing is alive: start outbox-consumer"


async def test_overdue_events_beside_a_living_process_are_a_problem(connection: Connection) -> None:
    await incarnation.begin(connection, GROUP, host="h", pid=1, lease_s=30)
    await work.put(connection, [new_work(an_event())])
    await connection.execute("UPDATE consumer.work SET due_at = due_at - interval '5 min'")
    (problem,) = status.problems(await status.read(connection, GROUP))
    assert re.search(r"tenant 'acme' \(standard\) are overdue by 3\d\d s", problem)


async def alive(connection: Connection, *heartbeats: Heartbeat) -> None:
    for pid, heartbeat in enumerate(heartbeats, 1):
        process = await incarnation.begin(connection, GROUP, host="h", pid=pid, lease_s=30)
        await incarnation.renew(connection, process, lease_s=30, heartbeat=heartbeat)


async def test_events_of_a_tier_that_no_living_process_serves_are_a_problem(connection: Connection) -> None:
    await alive(connection, Heartbeat(tiers=(Tier.INTERACTIVE,)), Heartbeat(tiers=(Tier.INTERACTIVE, Tier.STANDARD)))
    await work.put(connection, [new_work(an_event(tier=tier)) for tier in (Tier.STANDARD, Tier.BULK)])
    await work.put(connection, [new_work(an_event(tenant="globex", tier=Tier.BULK))])
    await work.put(connection, [new_work(an_event(tenant="later", tier=Tier.BULK), delay_s=600)])
    (problem,) = status.problems(await status.read(connection, GROUP))
    assert problem == (
        "2 events due, and no process of billing serves their tier: start outbox-consumer run --tiers bulk"
    )
    await alive(connection, Heartbeat())  # older code serves all tiers and does not say so
    assert status.problems(await status.read(connection, GROUP)) == []


async def test_an_open_breaker_is_told_with_the_number_of_processes_it_is_open_in(connection: Connection) -> None:
    everybody = OpenBreaker(type="orders.placed", handler="bill", tenant=None)
    one_tenant = OpenBreaker(type="orders.placed", handler="bill", tenant="acme")
    await alive(connection, Heartbeat(breakers=(everybody, one_tenant)), Heartbeat(breakers=(everybody,)), Heartbeat())
    found = await status.read(connection, GROUP)
    for_all, for_one = status.problems(found)
    assert for_all.startswith("the breaker of handler 'bill' for orders.placed is open in 2 of 3 processes: ")
    assert "open in 1 of 3 processes, for tenant 'acme': " in for_one
    assert "'handler': 'bill'" in str(status.to_json(found))


async def test_a_blocked_key_is_told_with_what_it_waits_for(connection: Connection) -> None:
    await incarnation.begin(connection, GROUP, host="h", pid=1, lease_s=30)
    dead_id = await bury(connection, keyed(1))
    successor = keyed(2)
    await gate.park(connection, GROUP, successor, wire.encode(successor), horizon=HORIZON)
    blocked, letters = status.problems(await status.read(connection, GROUP))
    assert f"'order-1' of tenant 'acme', waits for event 1 (dead letter {dead_id}: replay or discard it)" in blocked
    assert letters == "1 open dead letter: outbox dead groups --group billing"


async def test_suspects_and_rows_in_hand_are_told(connection: Connection) -> None:
    owner = await incarnation.begin(connection, GROUP, host="h", pid=1, lease_s=30)
    await work.put(connection, [new_work(an_event(), reason=Reason.SUSPECT), new_work(an_event())])
    await work.take_due(connection, GROUP, owner=owner, per_lane_limit=5, total=5)
    found = await status.read(connection, GROUP)
    assert status.problems(found) == ["1 event being handled when the process died"]
    assert [(one.reason, one.owned) for one in found.work] == [(Reason.RETRY, 1), (Reason.SUSPECT, 0)]
    assert found.incarnations[0].owned == 1


async def test_text_and_json_tell_the_same_and_no_payload(connection: Connection) -> None:
    await incarnation.begin(connection, GROUP, host="h", pid=1, lease_s=30)
    lane = Lane(group=GROUP, tier=Tier.BULK, tenant="[red]tenant")
    await directory.learn(connection, [Announcement(lane=lane, group_started_at=an_event().time)])
    await work.put(connection, [new_work(an_event(tenant="[red]tenant", payload=b"canary-77", tier=Tier.BULK))])
    await bury(connection, an_event(payload=b"canary-77"))
    found = await status.read(connection, GROUP)
    as_json = json.dumps(status.to_json(found))
    text = text_of(found)
    for told in (as_json, text):
        assert "canary-77" not in told
        assert "[red]tenant" in told  # a tenant's name is text, not markup
        assert "permanent" in told
        assert "bulk" in told
    assert json.loads(as_json)["lanes"] == 1


async def test_every_group_that_left_a_trace_is_listed(connection: Connection) -> None:
    assert await status.groups(connection) == []
    await work.put(connection, [new_work(an_event(), group="shipping")])
    await bury(connection, an_event())
    assert await status.groups(connection) == ["billing", "shipping"]


async def test_what_lies_in_queues_is_told_by_tier_and_tenant(connection: Connection, vhost: str) -> None:
    """A queue that is gone, and an empty one, are no lanes that anything waits in."""
    full, empty, gone = (Lane(group=GROUP, tier=Tier.BULK, tenant=tenant) for tenant in ("acme", "idle", "gone"))
    async with rabbit_bench(vhost, "classic") as bench:
        for lane in (full, empty):
            await bench.declare(lane.queue)
        await bench.publish(full.queue, [a_message(number) for number in range(3)])
        in_queues = await ready(bench.address(), [gone.queue, full.queue, empty.queue])
    told = status.with_queues(await status.read(connection, GROUP), [gone, full, empty], in_queues)
    assert told.queued == (Queued(tier=Tier.BULK, tenant="acme", events=3),)
    assert "3 events due, and no process" in status.problems(told)[0]
    assert "acme" in text_of(told)
