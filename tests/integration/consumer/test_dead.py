"""Dead letters on a real database: kept whole, shown without content, replayed or discarded as one."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import datetime
from uuid import UUID, uuid4

import psycopg
import pytest

from consumer import status
from consumer.decide.horizon import Ring, slot_of
from consumer.outcome import DeadCategory
from consumer.store import dead, dead_list, gate, work
from consumer.store import replay as store
from consumer.store.dead import NewDead
from consumer.store.dead_list import DeadFilter, DeadState
from consumer.store.replay import Resolved
from consumer.store.stored import Connection, unreadable
from consumer.store.work import Reason
from outbox import wire
from outbox.errors import TransientError
from outbox.event import Event, Tier
from outbox.wire import Message
from outbox_admin.dead_run import Tally, in_batches
from tests.integration.consumer.conftest import Connect
from tests.support.dead_letters import discard, replay
from tests.support.waiting_events import GROUP, an_event, keyed, new_work, stored_of

CANARY = "canary-9f3c1b"
OPEN = DeadFilter(group=GROUP)
RING = Ring(slots=16, slot_seconds=86_400)


def new_dead(
    event: Event, *, handlers: tuple[str, ...] = ("bill",), fingerprint: str = "f", attempts: int = 6
) -> NewDead:
    return NewDead(
        group=GROUP,
        event_id=event.id,
        stored=stored_of(event),
        category=DeadCategory.EXHAUSTED,
        message="the handler failed",
        error_class="ValueError",
        fingerprint=fingerprint,
        attempts=attempts,
        handlers=handlers,
        trace="Traceback: ...",
    )


async def ledger_says(connection: Connection, event: Event, handler: str, state: str) -> None:
    await connection.execute(
        "INSERT INTO consumer.ledger (slot, group_name, event_id, handler, tenant, state, attempts)"
        " VALUES (%s, %s, %s, %s, %s, %s, 1)",
        (slot_of(event.ledger_time, RING), GROUP, event.id, handler, event.tenant, state),
    )


async def take(connection: Connection, owner: UUID | None = None) -> Sequence[work.WorkRow]:
    return await work.take_due(connection, GROUP, owner=owner or uuid4(), per_lane_limit=100, total=100)


async def audit(connection: Connection) -> list[tuple[str, str, dict[str, object]]]:
    cursor = await connection.execute("SELECT actor, action, detail FROM consumer.audit ORDER BY id")
    return [(actor, action, detail) for actor, action, detail in await cursor.fetchall()]


async def test_a_dead_letter_keeps_the_event_whole(connection: Connection) -> None:
    event = keyed(7)
    dead_id = await dead.put(connection, new_dead(event))
    letter = await dead.show(connection, dead_id)
    assert letter is not None
    assert wire.decode(letter.stored.message) == event
    assert letter.stored == stored_of(event)
    assert (letter.summary.event_id, letter.summary.attempts, letter.summary.handlers) == (event.id, 6, ("bill",))
    assert letter.summary.resolution is None
    assert await dead.show(connection, dead_id + 1) is None


async def test_what_cannot_be_read_is_kept_under_the_lane_it_came_by(connection: Connection) -> None:
    message = Message(
        message_id="\0", type="", app_id="", content_type="", headers={"x": {"deep": [b"\0", None]}}, body=b"\xff\0"
    )
    new = NewDead(
        group=GROUP,
        event_id=None,
        stored=unreadable(message, tier=Tier.BULK, tenant="acme"),
        category=DeadCategory.UNREADABLE,
        message="ce-id: want this header, got none",
        fingerprint="f",
    )
    ids = [await dead.put(connection, new) for _ in range(2)]
    assert ids[0] != ids[1]
    letter = await dead.show(connection, ids[0])
    assert letter is not None
    assert letter.stored.message == replace(message, message_id="\ufffd")
    resolved = await replay(connection, OPEN, actor="ops")
    assert [one.because for one in resolved.refused] == ["its envelope could not be read: there is no event"] * 2


async def test_a_failed_burial_leaves_nothing_half_done(connection: Connection) -> None:
    """procrastinate-org/procrastinate#1446"""
    event = an_event()
    await work.put(connection, [new_work(event)])
    owner = uuid4()
    await take(connection, owner)

    async def bury() -> None:
        async with connection.transaction():
            await work.finish(connection, GROUP, [event.id], owner=owner)
            await dead.put(connection, new_dead(event, handlers=("NUL: \0",)))

    with pytest.raises(psycopg.DataError):
        await bury()
    assert await work.exists(connection, GROUP, [event.id]) == {event.id}
    assert await dead_list.matching(connection, OPEN) == []


async def test_a_second_handler_that_dies_joins_the_events_dead_letter(connection: Connection) -> None:
    event = an_event()
    first = await dead.put(connection, new_dead(event, handlers=("bill",)))
    await dead.mark_published(connection, [first])
    assert await dead.put(connection, new_dead(event, handlers=("bill",))) == first
    assert await dead.unpublished(connection, GROUP, limit=10) == []  # a duplicate: nothing new to tell
    assert await dead.put(connection, new_dead(event, handlers=("ship",))) == first
    (letter,) = await dead.unpublished(connection, GROUP, limit=10)
    assert letter.summary.handlers == ("bill", "ship")
    await dead.put(connection, new_dead(event, handlers=()))
    await dead.put(connection, new_dead(event, handlers=("bill",)))
    (found,) = await dead_list.matching(connection, OPEN)
    assert found.summary.handlers == ()  # the event as a whole


async def test_a_secret_in_a_payload_is_in_no_summary(connection: Connection) -> None:
    """PostgreSQL repeats a row's values in its error details; what is shown must not."""
    event = replace(an_event(payload=json.dumps({"card": CANARY}).encode()), idempotency_key=CANARY)
    dead_id = await dead.put(connection, new_dead(event))
    await work.put(connection, [new_work(an_event(payload=CANARY.encode()))])
    shown = [
        str(await dead_list.matching(connection, OPEN)),
        str(await dead_list.groups(connection, OPEN)),
        json.dumps(status.to_json(await status.read(connection, GROUP))),
        str(await replay(connection, OPEN, actor="ops")),
        str(await audit(connection)),
    ]
    assert not any(CANARY in text for text in shown)
    letter = await dead.show(connection, dead_id)
    assert letter is not None
    assert CANARY not in str(letter.summary)
    assert CANARY in letter.stored.message.body.decode()


async def test_lists_are_filtered_and_paged_newest_first(connection: Connection) -> None:
    ids = [await dead.put(connection, new_dead(an_event(tenant=f"t{n % 2}"))) for n in range(6)]
    found = await dead_list.matching(connection, OPEN, limit=4)
    assert [one.summary.id for one in found] == ids[:1:-1]
    rest = await dead_list.matching(connection, OPEN, limit=4, before_id=found[-1].summary.id)
    assert [one.summary.id for one in rest] == [ids[1], ids[0]]
    of_tenant = await dead_list.matching(connection, replace(OPEN, tenant="t1", category=DeadCategory.EXHAUSTED))
    assert [one.summary.id for one in of_tenant] == [ids[5], ids[3], ids[1]]
    assert await dead_list.matching(connection, replace(OPEN, type="other")) == []
    assert (
        await dead_list.matching(connection, replace(OPEN, dead_before=of_tenant[-1].summary.dead_at, tenant="t1"))
        == []
    )
    assert len(await dead_list.matching(connection, replace(OPEN, ids=(ids[0], ids[4]), fingerprint="f"))) == 2


async def test_letters_that_failed_alike_are_one_group(connection: Connection) -> None:
    for n in range(3):
        await dead.put(connection, new_dead(an_event(tenant=f"t{n}"), fingerprint="often"))
    await dead.put(connection, new_dead(an_event(), fingerprint="once"))
    often, once = await dead_list.groups(connection, OPEN)
    assert (often.fingerprint, often.letters, often.tenants) == ("often", 3, 3)
    assert (once.fingerprint, once.letters, once.types) == ("once", 1, ("orders.order.placed",))


async def test_pumps_at_once_publish_different_letters(connect: Connect) -> None:
    one, other = await connect(), await connect()
    ids = [await dead.put(one, new_dead(an_event())) for _ in range(4)]
    async with one.transaction():
        mine = await dead.unpublished(one, GROUP, limit=2)
        async with other.transaction():
            theirs = await asyncio.wait_for(dead.unpublished(other, GROUP, limit=10), 5)
        await dead.mark_published(one, [letter.summary.id for letter in mine])
    assert [letter.summary.id for letter in mine + theirs] == ids
    assert [letter.summary.id for letter in await dead.unpublished(one, GROUP, limit=10)] == ids[2:]


async def test_a_replayed_letter_is_handled_from_its_first_attempt_on(connection: Connection) -> None:
    event = keyed(7)
    dead_id = await dead.put(connection, new_dead(event))
    resolved = await replay(connection, replace(OPEN, ids=(dead_id,)), actor="ops")
    assert (resolved.ids, resolved.refused) == ((dead_id,), ())
    (row,) = await take(connection)
    assert (row.reason, row.attempts, row.handlers, row.stored) == (Reason.REPLAY, 0, ("bill",), stored_of(event))
    assert not await dead_list.matching(connection, OPEN)
    (found,) = await dead_list.matching(connection, replace(OPEN, state=DeadState.REPLAYED))
    assert (found.summary.resolution, found.summary.resolved_by) == ("replayed", "ops")
    assert await audit(connection) == [("ops", "dead.replay", {"ids": [dead_id], "refused": {}})]


async def test_an_unknown_type_is_replayed_for_every_handler(connection: Connection) -> None:
    """riverqueue/river#1105, JasperFx/wolverine#4151, celery/celery#6485"""
    await dead.put(connection, new_dead(an_event(), handlers=()))
    await replay(connection, OPEN, actor="ops")
    (row,) = await take(connection)
    assert row.handlers is None


async def test_what_the_ledger_calls_done_is_not_replayed(connection: Connection) -> None:
    done, half = an_event(), an_event()
    await ledger_says(connection, done, "bill", "done")
    await ledger_says(connection, half, "bill", "skipped")
    await ledger_says(connection, half, "ship", "dead")
    done_id = await dead.put(connection, new_dead(done))
    half_id = await dead.put(connection, new_dead(half, handlers=("bill", "ship")))
    resolved = await replay(connection, OPEN, actor="ops")
    assert resolved.ids == (half_id,)
    assert [(one.id, one.because) for one in resolved.refused] == [
        (done_id, "the ledger says that it was handled meanwhile")
    ]
    (row,) = await take(connection)
    assert row.handlers == ("ship",)
    assert [one.summary.id for one in await dead_list.matching(connection, OPEN)] == [done_id]


async def test_a_replay_joins_the_retry_of_another_handler(connection: Connection) -> None:
    event = an_event()
    await dead.put(connection, new_dead(event, handlers=("bill",)))
    await work.put(connection, [new_work(event, handlers=("ship",), delay_s=600, attempts=3)])
    await replay(connection, OPEN, actor="ops")
    (row,) = await take(connection)
    assert (row.handlers, row.reason, row.attempts) == (("bill", "ship"), Reason.REPLAY, 0)


Resolve = Callable[..., Awaitable[Resolved]]


@pytest.mark.parametrize("resolve", [replay, discard])
async def test_an_event_that_is_being_handled_is_left_alone(connection: Connection, resolve: Resolve) -> None:
    event = keyed(7)
    dead_id = await dead.put(connection, new_dead(event))
    await work.put(connection, [new_work(event, handlers=("ship",))])
    owner = uuid4()
    await take(connection, owner)
    resolved = await resolve(connection, OPEN, actor="ops")
    assert resolved.ids == ()
    assert [one.id for one in resolved.refused] == [dead_id]
    await work.finish(connection, GROUP, [event.id], owner=owner)
    assert (await resolve(connection, OPEN, actor="ops")).ids == (dead_id,)


async def test_a_replay_comes_at_the_rate_that_was_asked_for(connection: Connection) -> None:
    for _ in range(4):
        await dead.put(connection, new_dead(an_event()))
    await replay(connection, OPEN, actor="ops", per_s=0.01)
    cursor = await connection.execute("SELECT due_at FROM consumer.work ORDER BY due_at")
    times: list[datetime] = [due_at for (due_at,) in await cursor.fetchall()]
    assert [round((time - times[0]).total_seconds()) for time in times] == [0, 100, 200, 300]


async def test_operators_at_once_replay_each_letter_once(connect: Connect) -> None:
    connections = [await connect() for _ in range(3)]
    ids = {await dead.put(connections[0], new_dead(an_event())) for _ in range(20)}
    async with asyncio.timeout(30):
        resolved = await asyncio.gather(
            *(replay(connection, OPEN, actor=f"ops-{n}") for n, connection in enumerate(connections))
        )
    assert sorted(one for found in resolved for one in found.ids) == sorted(ids)
    assert len(await take(connections[0])) == 20


async def test_replays_and_burials_at_once_do_not_deadlock(connect: Connect) -> None:
    operator, *processes = [await connect() for _ in range(4)]
    events = [an_event() for _ in range(10)]
    for event in events:
        await dead.put(operator, new_dead(event))

    async def bury_again(connection: Connection, handler: str) -> None:
        for event in events:
            async with connection.transaction():
                await work.put(connection, [new_work(event, handlers=(handler,))])
                await dead.put(connection, new_dead(event, handlers=(handler,)))

    async def replay_all() -> None:
        for _ in range(10):
            try:
                await replay(operator, OPEN, actor="ops", limit=4)
            except TransientError:  # one of them was buried again meanwhile
                continue

    async with asyncio.timeout(60):
        await asyncio.gather(replay_all(), *(bury_again(one, f"h{n}") for n, one in enumerate(processes)))


async def test_a_discarded_letter_frees_its_key_in_its_turn(connection: Connection) -> None:
    event = keyed(2)
    await dead.put(connection, new_dead(event))
    resolved = await discard(connection, OPEN, actor="ops")
    assert len(resolved.ids) == 1
    (row,) = await take(connection)
    assert (row.event_id, row.handlers) == (event.id, ())
    assert (await audit(connection))[0][:2] == ("ops", "dead.discard")


async def test_a_discarded_letter_without_a_key_is_just_gone(connection: Connection) -> None:
    await dead.put(connection, new_dead(an_event()))
    await discard(connection, OPEN, actor="ops")
    assert await take(connection) == []
    assert await dead_list.matching(connection, OPEN) == []


async def test_a_key_is_not_moved_past_a_handler_that_died(connection: Connection) -> None:
    """MassTransit#3543: two handlers of one event; the one that succeeds later must not free the key."""
    event = keyed(1)
    key = gate.key_of(GROUP, event)
    await dead.put(connection, new_dead(event, handlers=("bill",)))
    await gate.advance(connection, [(key, 1)], unless_dead=True)
    assert (await gate.blocked_keys(connection, GROUP)).total == 1
    await discard(connection, OPEN, actor="ops")
    await gate.advance(connection, [(key, 1)], unless_dead=True)
    assert (await gate.blocked_keys(connection, GROUP)).total == 0


async def test_filters_reach_no_other_groups_letters(connection: Connection) -> None:
    other = await dead.put(connection, replace(new_dead(an_event()), group="shipping"))
    resolved = await replay(connection, replace(OPEN, ids=(other,)), actor="ops")
    assert (resolved.ids, resolved.refused) == ((), ())


async def test_a_run_does_not_replay_what_dies_again_while_it_goes_on(connection: Connection) -> None:
    """Otherwise a handler that still fails would keep it going for ever."""
    for _ in range(5):
        await dead.put(connection, new_dead(an_event()))
    total, to_id = await dead_list.count(connection, OPEN)
    tally = Tally(total=total)

    async def decide(ids: Sequence[int]) -> Resolved:
        resolved = await store.replay(connection, GROUP, ids, actor="ops")
        for _ in ids:
            await dead.put(connection, new_dead(an_event()))
        return resolved

    await in_batches(connection, OPEN, decide, tally=tally, to_id=to_id, per_s=2000, tell=lambda: None)
    assert (tally.done, tally.left) == (5, 0)
    # One at a time, and with more open letters than it was to look at.
    tally = Tally(total=10)
    await in_batches(connection, OPEN, decide, tally=tally, to_id=to_id + 2, per_s=1000, tell=lambda: None)
    assert tally.done == 2
