"""Queues in PostgreSQL beyond the broker contract: leases that run out, tokens that are stale, wakes that are lost."""

from collections.abc import AsyncIterator, Sequence

import pytest

from consumer.ports import Broker
from consumer.postgres import claims, leases
from consumer.postgres.claims import Claimed, Wish
from outbox.errors import SchemaMissing
from outbox.queues import standing
from outbox.queues.session import connect
from outbox.shell.severed import Connection
from tests.support.brokers import PostgresBench, a_message, postgres_bench
from tests.support.inbox import RecordingInbox
from tests.support.plans import plan_of
from tests.support.wait import until


@pytest.fixture
async def bench(queues_database: str) -> AsyncIterator[PostgresBench]:
    async with postgres_bench(queues_database) as made:
        yield made


@pytest.fixture
async def other(queues_database: str) -> AsyncIterator[Connection]:
    """Another process's connection."""
    async with await connect(queues_database, name="other", within_s=10.0) as connection:
        yield connection


async def filled(bench: PostgresBench, count: int) -> None:
    await bench.declare("q")
    await bench.publish("q", [a_message(number) for number in range(count)])


async def consuming(bench: PostgresBench, *, prefetch: int = 10) -> tuple[Broker, RecordingInbox]:
    broker, inbox = bench.broker(), RecordingInbox()
    await broker.attach("q", prefetch=prefetch)
    await broker.start(inbox)
    await inbox.up()
    return broker, inbox


async def taken(connection: Connection, token: int, count: int, *, dead: Sequence[int] = ()) -> list[Claimed]:
    queue_id = (await standing.ids(connection, ["q"]))["q"]
    return await claims.claim(connection, token, [Wish(queue_id=queue_id, after=0, room=count)], dead=dead)


async def held(connection: Connection) -> int:
    return (await standing.counts(connection, ["q"]))["q"].held


async def test_a_message_is_taken_before_it_is_delivered(bench: PostgresBench, other: Connection) -> None:
    await filled(bench, 3)
    _, inbox = await consuming(bench)
    await inbox.received(3)
    assert await held(other) == 3


async def test_what_a_dead_process_held_comes_again_in_its_place_once_its_lease_has_run_out(
    bench: PostgresBench, other: Connection
) -> None:
    """janbjorge/pgqueuer#630"""
    await filled(bench, 3)
    assert len(await taken(other, await leases.begin(other, lease_s=1.0), 2)) == 2
    _, inbox = await consuming(bench)
    assert [(one.message.message_id, one.is_redelivered) for one in await inbox.received(3)] == [
        ("2", False),
        ("0", True),
        ("1", True),
    ]


async def test_a_settlement_with_a_stale_token_does_nothing(bench: PostgresBench, other: Connection) -> None:
    """riverqueue/river#1302: it was taken over meanwhile, and only who has it now may end it or hand it back."""
    await filled(bench, 1)
    stale, fresh = await leases.begin(other, lease_s=60.0), await leases.begin(other, lease_s=60.0)
    ((first,), again) = await taken(other, stale, 1), await taken(other, fresh, 1)
    assert not again
    await leases.run_out(other, stale)
    assert len(await taken(other, fresh, 1, dead=await leases.dead(other))) == 1

    await claims.settle(other, stale, [first.place])
    await claims.hand_back(other, stale, [first.place])

    assert await held(other) == 1
    await claims.settle(other, fresh, [first.place])
    assert (await standing.counts(other, ["q"]))["q"] == standing.QueueCount(ready=0, held=0)


async def test_a_lease_that_has_run_out_takes_nothing_and_is_not_renewed(
    bench: PostgresBench, other: Connection
) -> None:
    await filled(bench, 1)
    token = await leases.begin(other, lease_s=60.0)
    assert await leases.renew(other, token, lease_s=60.0)
    await leases.run_out(other, token)
    assert not await leases.renew(other, token, lease_s=60.0)
    assert not await taken(other, token, 1)


async def test_a_process_that_stood_still_for_its_lease_loses_its_channel(
    bench: PostgresBench, other: Connection
) -> None:
    await filled(bench, 2)
    broker, inbox = await consuming(bench)
    late = [one.receipt for one in await inbox.received(2)]
    await other.execute("update outbox_broker.lease set expires_at = clock_timestamp()")
    await inbox.up(times=2)
    assert inbox.lost_epochs == [late[0].epoch]
    deliveries = (await inbox.received(4))[2:]
    assert all(one.is_redelivered and one.receipt.epoch != late[0].epoch for one in deliveries)
    broker.settle(late)
    await broker.stop()
    assert await bench.ready("q") == 2


async def test_a_claim_whose_answer_was_lost_is_taken_again(bench: PostgresBench, other: Connection) -> None:
    """The connection ended behind its commit: nobody has the messages, and they have a token."""
    await bench.declare("q")
    _, inbox = await consuming(bench)
    (token,) = await (await other.execute("select token from outbox_broker.lease")).fetchone() or (0,)
    await other.execute(
        """insert into outbox_broker.message
               (queue_id, token, deliveries, routing_key, message_id, type, app_id, content_type, headers, body)
           select id, %s, 1, 'q', '7', 't', 'a', 'c', '{}', '' from outbox_broker.queue""",
        (token,),
    )
    await bench.break_connections()
    assert [(one.message.message_id, one.is_redelivered) for one in await inbox.received(1)] == [("7", True)]


async def test_what_was_settled_when_the_connection_broke_stays_settled(
    bench: PostgresBench, other: Connection
) -> None:
    await filled(bench, 2)
    broker, inbox = await consuming(bench, prefetch=2)
    await inbox.received(2)
    async with other.transaction():  # what it would delete is locked
        await other.execute("select from outbox_broker.message for update")
        broker.settle(inbox.receipts())
        waiting = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and query like %s"

        async def is_waiting() -> bool:
            row = await (await other.execute(waiting, ("%DELETE FROM outbox_broker.message%",))).fetchone()
            return row == (1,)

        await until(is_waiting, what="the settlement to wait")
        await bench.break_connections()
    await inbox.up(times=2)
    await broker.stop()
    assert (await standing.counts(other, ["q"]))["q"] == standing.QueueCount(ready=0, held=0)
    assert len(inbox.deliveries) == 2


async def test_a_message_that_nobody_was_told_of_is_found(bench: PostgresBench, other: Connection) -> None:
    await bench.declare("q")
    _, inbox = await consuming(bench)
    await other.execute(
        """insert into outbox_broker.message
               (queue_id, routing_key, message_id, type, app_id, content_type, headers, body)
           select id, 'q', '1', 't', 'a', 'c', '{}', '' from outbox_broker.queue"""
    )
    await inbox.received(1)


async def test_several_processes_take_each_message_once(bench: PostgresBench) -> None:
    await bench.declare("q")
    processes = [await consuming(bench, prefetch=7) for _ in range(3)]
    for start in range(0, 900, 100):
        await bench.publish("q", [a_message(number) for number in range(start, start + 100)])
    settled = [0] * len(processes)

    def all_came() -> bool:
        for number, (broker, inbox) in enumerate(processes):
            broker.settle(inbox.receipts()[settled[number] :])
            settled[number] = len(inbox.deliveries)
        return sum(settled) >= 900

    await until(all_came, deadline_s=30.0, every_s=0.005)
    came = sorted(int(one) for _, inbox in processes for one in inbox.ids)
    assert came == list(range(900))
    assert all(settled)


async def test_a_queue_with_something_in_it_is_not_deleted_if_it_is_to_be_empty(
    bench: PostgresBench, other: Connection
) -> None:
    await filled(bench, 1)
    assert not await standing.delete(other, "q", if_empty=True)
    broker, inbox = await consuming(bench)
    broker.settle([one.receipt for one in await inbox.received(1)])
    await broker.stop()
    assert await standing.delete(other, "q", if_empty=True)
    assert await standing.delete(other, "q", if_empty=True)


async def test_a_lease_is_forgotten_when_it_ran_out_long_ago_and_holds_nothing(
    bench: PostgresBench, other: Connection
) -> None:
    await filled(bench, 1)
    holding, empty = await leases.begin(other, lease_s=60.0), await leases.begin(other, lease_s=60.0)
    assert len(await taken(other, holding, 1)) == 1
    await other.execute("update outbox_broker.lease set expires_at = clock_timestamp() - interval '2 hours'")
    await leases.forget_dead(other)
    assert list(await leases.dead(other)) == [holding]
    assert empty != holding


async def test_queues_that_were_never_migrated_are_named(database: str) -> None:
    with pytest.raises(SchemaMissing, match="run 'outbox migrate'"):
        await connect(database, name="test", within_s=5.0)


@pytest.mark.parametrize("is_analysed", [False, True])
async def test_plans_that_were_made_on_an_empty_queue_stay_right_when_it_is_full(
    bench: PostgresBench, other: Connection, *, is_analysed: bool
) -> None:
    """What is asked of a queue is found by its index, from where it is looked for on, and nothing else is read.

    Whatever the server believes of their number: analysed after a burst was drained, that is none.
    """
    await bench.declare("q")
    (queue_id,) = (await standing.ids(other, ["q"])).values()
    await _fill(other, queue_id)
    await other.execute("delete from outbox_broker.message")
    await other.execute("vacuum analyze outbox_broker.message")
    token = await leases.begin(other, lease_s=60.0)
    for _ in range(10):  # beyond the number of runs after which a server may choose a generic plan
        assert not await taken(other, token, 100)
        await claims.hand_back(other, token, [])
    await _fill(other, queue_id)
    if is_analysed:
        await other.execute("analyze outbox_broker.message")
    (middle,) = await (
        await other.execute("select min(seq) + 4000 from outbox_broker.message where queue_id = %s", (queue_id,))
    ).fetchone() or (0,)
    seqs = ",".join(str(middle + 2 * number) for number in range(1, 51))
    places = f"array_fill({queue_id}::bigint, array[50]), array[{seqs}]"
    claim = f"{places}, {token}, array[{queue_id}], array[{middle}], array[100], array[]::bigint[]"
    for mark, arguments, rows in (
        ("picked AS MATERIALIZED", claim, 100),
        ("SET token = NULL WHERE", f"{places}, {token}", 50),
    ):
        plan = await plan_of(other, mark, arguments)
        scans = [node for node in plan if node.get("Relation Name") == "message"]
        by_index = [node for node in scans if node["Node Type"] == "Index Scan"]
        assert max(node["Actual Rows"] * node["Actual Loops"] for node in by_index) == rows
        for node in scans:
            assert node["Node Type"] in {"Index Scan", "Tid Scan", "ModifyTable"}, node
            assert node["Actual Rows"] * node["Actual Loops"] + node.get("Rows Removed by Filter", 0) <= rows, node
        assert sum(node.get("Rows Removed by Join Filter", 0) for node in plan) == 0


async def _fill(connection: Connection, queue_id: int) -> None:
    await connection.execute(
        """insert into outbox_broker.message
               (queue_id, routing_key, message_id, type, app_id, content_type, headers, body)
           select %s + n %% 2, 'q', n, 't', 'a', 'c', '{}', '' from generate_series(1, 8000) n""",
        (queue_id,),
    )
