"""Claims of leased handlers on a real database: who has an event, who has lost it, and that batches never deadlock."""

import asyncio
import random
from uuid import UUID

import psycopg
import pytest

from consumer.decide.horizon import Ring
from consumer.decide.order import Turn
from consumer.store import gate, incarnation
from consumer.store.claims import Ask, Claims, Completion, Taken
from consumer.store.ledger import Claim, Entry, Ledger, State
from consumer.store.stored import Connection
from outbox.event import Event, Ordering
from tests.integration.consumer.conftest import Connect
from tests.support.engine import GROUP, an_event
from tests.support.waiting_events import HORIZON

RING = Ring(slots=16, slot_seconds=86_400)


@pytest.fixture
def claims() -> Claims:
    return Claims(group=GROUP, ring=RING, horizon=HORIZON)


async def begin(connection: Connection) -> UUID:
    return await incarnation.begin(connection, GROUP, host="h", pid=1, lease_s=30)


async def expire(connection: Connection, one: UUID) -> None:
    """What time would do: *one* has not renewed for longer than its lease."""
    await connection.execute(
        "UPDATE consumer.incarnation SET expires_at = clock_timestamp() - interval '1 s' WHERE id = %s", (one,)
    )


async def take(claims: Claims, connection: Connection, event: Event, by: UUID, **kinds: bool) -> Taken | State | Turn:
    (answer,) = await claims.take(connection, [Ask(event=event, handler="h", **kinds)], incarnation=by)
    return answer


async def taken(claims: Claims, connection: Connection, event: Event, by: UUID, **kinds: bool) -> Taken:
    answer = await take(claims, connection, event, by, **kinds)
    assert isinstance(answer, Taken)
    return answer


def completion(event: Event, claim: Taken, *, handler: str = "h") -> Completion:
    return Completion(event=event, handler=handler, claim=claim)


async def state_of(connection: Connection, event: Event) -> tuple[str, int]:
    cursor = await connection.execute("SELECT state, attempts FROM consumer.ledger WHERE event_id = %s", (event.id,))
    (row,) = await cursor.fetchall()
    return row[0], row[1]


def keyed(number: int, *, key: str = "k", is_first: bool = False) -> Event:
    return an_event(
        number, ordering=Ordering(key=key, number=number, is_first=is_first, previous_time=an_event().ledger_time)
    )


async def test_a_claim_is_one_processs_until_it_is_completed_and_then_nobodys(
    claims: Claims, connection: Connection
) -> None:
    one, other = await begin(connection), await begin(connection)
    event = an_event()
    claim = await taken(claims, connection, event, one)
    assert (claim.attempt, claim.incarnation, claim.unended) == (1, one, 0)
    assert await take(claims, connection, event, other) is State.RUNNING
    assert await claims.complete(connection, [completion(event, claim)]) == {claim.token}
    assert await take(claims, connection, event, other) is State.DONE
    assert await claims.complete(connection, [completion(event, claim)]) == frozenset()
    assert await state_of(connection, event) == ("done", 1)


async def test_recovery_of_an_abandoned_claim_never_overwrites_what_was_completed_meanwhile(
    claims: Claims, connection: Connection
) -> None:
    """riverqueue/river#1302"""
    frozen, other = await begin(connection), await begin(connection)
    done, left = an_event(1), an_event(2)
    claim, lost = [await taken(claims, connection, event, frozen) for event in (done, left)]
    assert await claims.complete(connection, [completion(done, claim)]) == {claim.token}
    await expire(connection, frozen)
    assert await take(claims, connection, done, other) is State.DONE
    again = await taken(claims, connection, left, other)
    assert (again.attempt, again.unended) == (1, 1)
    assert again.token > lost.token
    # It wakes, with its lease as it was, or even with another.
    assert await claims.complete(connection, [completion(left, lost)]) == frozenset()
    await connection.execute(
        "UPDATE consumer.incarnation SET expires_at = clock_timestamp() + interval '1 min' WHERE id = %s", (frozen,)
    )
    assert await claims.complete(connection, [completion(left, lost)]) == frozenset()
    ledger = Ledger(group=GROUP, ring=RING)
    failed = Entry(handler="h", state=State.RETRY, attempts=1, token=lost.token)
    assert await ledger.record(connection, left, [failed]) == {"h": State.RUNNING}
    assert await claims.complete(connection, [completion(left, again)]) == {again.token}


async def test_who_lost_the_lease_completes_nothing_though_nobody_took_over(
    claims: Claims, connection: Connection
) -> None:
    one, other = await begin(connection), await begin(connection)
    events = [an_event(number) for number in range(2)]
    lost = await taken(claims, connection, events[0], one)
    kept = await taken(claims, connection, events[1], other)
    await expire(connection, one)
    both = [completion(events[0], lost), completion(events[1], kept)]
    assert await claims.complete(connection, both) == {kept.token}
    assert await state_of(connection, events[0]) == ("running", 1)


async def test_a_claim_whose_answer_was_lost_is_taken_again_uncharged(claims: Claims, connection: Connection) -> None:
    one = await begin(connection)
    event = an_event()
    first = await taken(claims, connection, event, one)
    again = await taken(claims, connection, event, one)
    assert (again.attempt, again.unended) == (1, 1)
    assert again.token > first.token
    assert await claims.complete(connection, [completion(event, first)]) == frozenset()


async def test_a_retry_is_its_work_rows_and_counts_and_a_replay_counts_anew(
    claims: Claims, connection: Connection
) -> None:
    one = await begin(connection)
    ledger = Ledger(group=GROUP, ring=RING)
    event = an_event()
    claim = await taken(claims, connection, event, one)
    for state in (State.RETRY, State.DEAD):
        entry = Entry(handler="h", state=state, attempts=claim.attempt, token=claim.token)
        assert await ledger.record(connection, event, [entry]) == {}
        assert await take(claims, connection, event, one) is state
        if state is State.RETRY:
            claim = await taken(claims, connection, event, one, is_stored=True)
            assert claim.attempt == 2
    assert await take(claims, connection, event, one, is_stored=True) is State.DEAD
    assert (await taken(claims, connection, event, one, is_stored=True, is_replay=True)).attempt == 1


async def test_a_transactional_handler_takes_over_what_it_left_behind_as_a_leased_one(
    claims: Claims, connection: Connection
) -> None:
    dead = await begin(connection)
    ledger = Ledger(group=GROUP, ring=RING)
    event = an_event()
    await taken(claims, connection, event, dead)
    again = Claim(event=event, handler="h", is_stored=True)
    assert await ledger.claim(connection, again) is State.RUNNING
    await expire(connection, dead)
    failed = Entry(handler="h", state=State.RETRY, attempts=1)
    assert await ledger.record(connection, event, [failed]) == {}
    assert await ledger.claim(connection, again) == 2


async def test_a_key_is_held_while_a_claim_of_it_runs_and_as_long_as_its_lease(
    claims: Claims, connect: Connect, connection: Connection
) -> None:
    one, other = await begin(connection), await begin(connection)
    session = await connect()
    first, second = keyed(7, is_first=True), keyed(8)
    late = keyed(5)

    async def enter(event: Event) -> Turn:
        async with session.transaction():
            return await gate.enter(session, GROUP, event, horizon=HORIZON)

    claim = await taken(claims, connection, first, one)
    for event in (second, late, keyed(9, is_first=True)):  # whatever its number says, it is not alone
        assert await take(claims, connection, event, other) is Turn.BUSY
        assert await enter(event) is Turn.BUSY
    assert await take(claims, connection, first, other) is State.RUNNING
    await expire(connection, one)
    assert await enter(second) is Turn.EARLY
    assert await claims.complete(connection, [completion(first, claim)]) == frozenset()
    assert await enter(second) is Turn.EARLY
    again = await taken(claims, connection, first, other)
    assert await enter(late) is Turn.BUSY
    # The one that was fenced lets nothing go that is another's.
    assert await claims.complete(connection, [completion(first, claim)]) == frozenset()
    assert await enter(late) is Turn.BUSY
    assert await claims.complete(connection, [completion(first, again)]) == {again.token}
    assert await enter(second) is Turn.READY
    assert await enter(late) is Turn.LATE
    cursor = await connection.execute("SELECT count(*) FROM consumer.key_claim")
    assert await cursor.fetchone() == (0,)


async def test_in_one_batch_each_event_is_judged_for_itself(claims: Claims, connection: Connection) -> None:
    one, other = await begin(connection), await begin(connection)
    theirs, done, free = an_event(1), an_event(2), an_event(3)
    early, first, busy = keyed(3), keyed(1, key="x", is_first=True), keyed(2, key="x")
    await taken(claims, connection, theirs, other)
    finished = await taken(claims, connection, done, one)
    await claims.complete(connection, [completion(done, finished)])
    asks = [Ask(event=event, handler="h") for event in (theirs, early, done, first, busy, free)]
    answers = await claims.take(connection, asks, incarnation=one)
    assert [type(answer) for answer in answers] == [State, Turn, State, Taken, Turn, Taken]
    assert answers[:3] == [State.RUNNING, Turn.EARLY, State.DONE]
    assert answers[4] is Turn.BUSY
    mine = [(event, answers[place]) for place, event in ((3, first), (5, free))]
    completions = [completion(event, claim) for event, claim in mine if isinstance(claim, Taken)]
    assert len(await claims.complete(connection, completions)) == 2
    cursor = await connection.execute("SELECT number FROM consumer.key_position")
    assert await cursor.fetchall() == [(1,)]


async def test_batched_claims_and_completions_from_many_processes_never_deadlock(
    claims: Claims, connect: Connect
) -> None:
    """Sixteen sessions claim and complete batches that overlap, in random order; PostgreSQL kills none of them."""
    events = [an_event(number) for number in range(40)]
    events += [keyed(1, key=f"k{number}", is_first=True) for number in range(10)]
    completed: list[UUID] = []

    async def work_off(seed: int) -> None:
        rng = random.Random(seed)
        session = await connect()
        me = await begin(session)
        while len(set(completed)) < len(events):
            picked = rng.sample(events, 20)
            asks = [Ask(event=event, handler="h", is_stored=rng.random() < 0.5) for event in picked]
            answers = await claims.take(session, asks, incarnation=me)
            mine = [(event, claim) for event, claim in zip(picked, answers, strict=True) if isinstance(claim, Taken)]
            rng.shuffle(mine)
            kept = await claims.complete(session, [completion(event, claim) for event, claim in mine])
            completed.extend(event.id for event, claim in mine if claim.token in kept)

    async with asyncio.timeout(30):
        await asyncio.gather(*(work_off(seed) for seed in range(16)))
    assert sorted(completed) == sorted(event.id for event in events)


async def test_a_row_that_a_transaction_keeps_is_not_waited_for(
    claims: Claims, connect: Connect, connection: Connection
) -> None:
    one, holder = await begin(connection), await connect()
    event = an_event()
    async with holder.transaction():
        await Ledger(group=GROUP, ring=RING).claim(holder, Claim(event=event, handler="h"))
        ask = Ask(event=event, handler="h")
        assert await claims.take_patiently(connection, ask, incarnation=one, patience_s=0.05) is State.RUNNING
    assert (await connection.execute("SELECT 1")).rowcount == 1


async def test_a_claim_of_a_process_that_began_a_moment_ago_is_not_taken_for_abandoned(
    claims: Claims, connect: Connect, connection: Connection
) -> None:
    """A statement that waited for it must not judge it by leases as they were before it waited."""
    me, late = await begin(connection), await connect()
    event = an_event()
    holder = await connect()
    blocker = an_event()
    # Its batch's first row is locked, so the statement has begun when the other process is born.
    first, second = sorted([blocker, event], key=lambda one: one.id)
    await taken(claims, connection, first, me)
    asks = [Ask(event=one, handler="h") for one in (first, second)]
    async with holder.transaction():
        await holder.execute("SELECT FROM consumer.ledger WHERE event_id = %s FOR UPDATE", (first.id,))
        waiting = asyncio.create_task(claims.take(late, asks, incarnation=me))
        await _until_blocked(connection)
        born = await begin(connection)
        theirs = await taken(claims, connection, second, born)
    answers = await waiting
    assert isinstance(answers[0], Taken)
    assert answers[1] is State.RUNNING
    assert await claims.complete(connection, [completion(second, theirs)]) == {theirs.token}


async def _until_blocked(connection: psycopg.AsyncConnection[tuple[object, ...]]) -> None:
    async with asyncio.timeout(10):
        while True:
            cursor = await connection.execute(
                "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
            )
            if await cursor.fetchone() is not None:
                return
