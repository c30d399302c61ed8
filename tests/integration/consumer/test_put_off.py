"""Work rows that a pause puts off, on a real database: they keep what they are, and come due when it has ended."""

from datetime import datetime
from uuid import UUID, uuid4

from consumer.decide.fairness import PauseScope
from consumer.store import gate, work, work_counts
from consumer.store.put_off import put_off, put_off_suspects, release
from consumer.store.stored import Connection
from consumer.store.work import Reason
from outbox.event import Event, Tier
from tests.support.waiting_events import GROUP, an_event, keyed, new_work


async def take(connection: Connection, owner: UUID, *, suspects: bool = False) -> list[UUID]:
    rows = await work.take_due(connection, GROUP, owner=owner, per_lane_limit=10, total=100, suspects=suspects)
    return [row.event_id for row in rows]


async def due_at(connection: Connection, event: Event) -> datetime:
    cursor = await connection.execute("SELECT due_at FROM consumer.work WHERE event_id = %s", (event.id,))
    ((due,),) = await cursor.fetchall()
    assert isinstance(due, datetime)
    return due


async def claimed_and_put_off(connection: Connection, *events: Event, reason: Reason = Reason.RETRY) -> None:
    owner = uuid4()
    await work.put(connection, [new_work(event, reason=reason, attempts=3) for event in events])
    assert sorted(await take(connection, owner)) == sorted(event.id for event in events)
    await put_off(connection, GROUP, [event.id for event in events], owner=owner)


async def test_what_was_put_off_is_claimed_by_nobody_and_then_due_as_before(connection: Connection) -> None:
    event, owner = an_event(), uuid4()
    await work.put(connection, [new_work(event, reason=Reason.REPLAY, attempts=3)])
    due = await due_at(connection, event)
    await take(connection, owner)
    await put_off(connection, GROUP, [event.id], owner=uuid4())  # not its owner
    await put_off(connection, GROUP, [event.id], owner=owner)
    assert await take(connection, owner) == []
    (count,) = await work_counts.read(connection, GROUP)
    assert (count.rows, count.owned, count.due, count.paused, count.next_due_at) == (1, 0, 0, 1, None)

    assert await release(connection, GROUP, paused=[]) == 1
    assert await due_at(connection, event) == due
    (row,) = await work.take_due(connection, GROUP, owner=owner, per_lane_limit=10, total=10)
    assert (row.reason, row.attempts) == (Reason.REPLAY, 3)


async def test_the_end_of_one_pause_leaves_what_another_is_about(connection: Connection) -> None:
    events = {name: an_event(tenant=name) for name in ("tenant", "lane", "typed", "free")}
    other = an_event(tenant="lane", tier=Tier.BULK)
    await claimed_and_put_off(connection, *events.values(), other)
    typed = events["typed"]
    paused: list[PauseScope] = [
        (None, "tenant", None),
        (Tier.STANDARD, "lane", typed.type),
        (None, "typed", typed.type),
        (None, "free", "another.type"),
        (Tier.INTERACTIVE, None, None),
    ]
    assert await release(connection, GROUP, paused=paused) == 2
    assert set(await take(connection, uuid4())) == {events["free"].id, other.id}
    assert await release(connection, GROUP, paused=[(None, None, None)]) == 0
    assert await release(connection, GROUP, paused=[]) == 3


async def test_a_suspect_that_is_paused_waits_too_and_stays_one(connection: Connection) -> None:
    events = [an_event(tenant=tenant) for tenant in ("acme", "globex")]
    await work.put(connection, [new_work(event, reason=Reason.SUSPECT) for event in events])
    await work.put(connection, [new_work(an_event())])
    assert await put_off_suspects(connection, GROUP, paused=[(None, "acme", events[0].type)]) == 1
    assert await put_off_suspects(connection, GROUP, paused=[(None, "acme", None)]) == 0
    assert await take(connection, uuid4(), suspects=True) == [events[1].id]
    assert not await work.has_suspects(connection, GROUP)
    assert await release(connection, GROUP, paused=[]) == 1
    assert await take(connection, uuid4(), suspects=True) == [events[0].id]


async def test_thousands_come_due_in_one_go(connection: Connection) -> None:
    await connection.execute(
        """
        INSERT INTO consumer.work (group_name, event_id, reason, due_at, attempts, tier, tenant, type, message_id,
                                   app_id, content_type, headers, body, due_before_pause)
        SELECT %s, gen_random_uuid(), 'held', now() + interval '100 years', 0, 1,
               'acme', 't', '', '', '', '{}', '', now()
        FROM generate_series(1, 2500)
        """,
        (GROUP,),
    )
    assert await release(connection, GROUP, paused=[]) == 2500


async def test_an_event_that_is_paused_is_not_made_due_by_its_predecessor(connection: Connection) -> None:
    first, second = keyed(1), keyed(2)
    await gate.advance(connection, [(gate.key_of(GROUP, first), 1)])
    await claimed_and_put_off(connection, second, reason=Reason.WAITING)
    assert await gate.sweep(connection, GROUP) == 0
    assert not await work.make_due(connection, GROUP, tenant=second.tenant, tier=second.tier, key="order-1", number=2)
    assert await release(connection, GROUP, paused=[]) == 1
    assert await take(connection, uuid4()) == [second.id]
