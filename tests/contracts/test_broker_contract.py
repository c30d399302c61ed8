"""What every adapter of the consumer's broker and exchange ports does."""

from collections.abc import AsyncIterator

import pytest

from consumer.ports import Broker, LostBecause, Receipt
from outbox import topology
from outbox.errors import QueueMismatch
from tests.support.brokers import BROKER_KINDS, Bench, BrokerKind, a_message, memory_bench, postgres_bench, rabbit_bench
from tests.support.inbox import RecordingInbox
from tests.support.wait import until


@pytest.fixture(params=BROKER_KINDS)
async def bench(request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    kind: BrokerKind = request.param
    if kind == "memory":
        async with memory_bench() as memory:
            yield memory
    elif kind == "postgres":
        async with postgres_bench(request.getfixturevalue("queues_database")) as postgres:
            yield postgres
    else:
        async with rabbit_bench(request.getfixturevalue("vhost"), kind) as rabbit:
            yield rabbit


async def fill(bench: Bench, queue: str, count: int) -> None:
    await bench.declare(queue)
    await bench.publish(queue, [a_message(number) for number in range(count)])


async def started(bench: Bench) -> tuple[Broker, RecordingInbox]:
    broker, inbox = bench.broker(), RecordingInbox()
    await broker.start(inbox)
    await inbox.up()
    return broker, inbox


async def queue_is_left_with(bench: Bench, queue: str, count: int) -> None:
    async def is_so() -> bool:
        return await bench.ready(queue) == count

    _: bool = await until(is_so, what=f"{queue} to hold {count} ready messages")


async def test_messages_come_whole_and_in_order(bench: Bench) -> None:
    await fill(bench, "q", 20)
    broker, inbox = await started(bench)
    await broker.attach("q", prefetch=50)
    deliveries = await inbox.received(20)
    assert [delivery.message for delivery in deliveries] == [a_message(number) for number in range(20)]
    assert {(delivery.queue, delivery.routing_key, delivery.is_redelivered) for delivery in deliveries} == {
        ("q", "q", False)
    }


async def test_empty_and_large_bodies_come_whole(bench: Bench) -> None:
    await bench.declare("q")
    bodies = [b"", b"x" * 400_000, b"end"]
    await bench.publish("q", [a_message(number, body=body) for number, body in enumerate(bodies)])
    broker, inbox = await started(bench)
    await broker.attach("q", prefetch=50)
    assert [delivery.message.body for delivery in await inbox.received(3)] == bodies


async def test_no_more_than_the_prefetch_is_unsettled(bench: Bench) -> None:
    await fill(bench, "q", 6)
    broker, inbox = await started(bench)
    await broker.attach("q", prefetch=2)
    await inbox.received(2)
    await queue_is_left_with(bench, "q", 4)
    broker.settle([inbox.deliveries[1].receipt])
    await inbox.received(3)
    await queue_is_left_with(bench, "q", 3)
    assert inbox.ids == ["0", "1", "2"]


async def test_attaching_what_is_attached_changes_nothing(bench: Bench) -> None:
    await fill(bench, "q", 6)
    broker, inbox = await started(bench)
    for prefetch in (2, 2, 5):
        await broker.attach("q", prefetch=prefetch)
    await inbox.received(2)
    await queue_is_left_with(bench, "q", 4)


async def test_an_extra_consumer_adds_its_own_prefetch(bench: Bench) -> None:
    await fill(bench, "q", 10)
    broker, inbox = await started(bench)
    await broker.attach("q", prefetch=2)
    await broker.attach("q", prefetch=5, is_extra=True)
    await inbox.received(7)
    await queue_is_left_with(bench, "q", 3)
    assert sorted(map(int, inbox.ids)) == list(range(7))


async def test_what_a_detached_consumer_holds_can_be_settled(bench: Bench) -> None:
    await fill(bench, "q", 10)
    broker, inbox = await started(bench)
    await broker.attach("q", prefetch=2)
    await broker.attach("q", prefetch=5, is_extra=True)
    await inbox.received(7)
    await broker.detach("q", is_extra=True)
    await broker.detach("q")
    broker.settle(inbox.receipts())
    await bench.publish("q", [a_message(10)])
    await queue_is_left_with(bench, "q", 4)
    assert len(inbox.deliveries) == 7
    assert inbox.lost_queues == []


async def test_a_detached_queue_can_be_attached_again(bench: Bench) -> None:
    await fill(bench, "q", 4)
    broker, inbox = await started(bench)
    await broker.attach("q", prefetch=2)
    await inbox.received(2)
    await broker.detach("q")
    await broker.attach("q", prefetch=3)
    await inbox.received(4)
    broker.settle(inbox.receipts())
    await broker.stop()
    assert await bench.ready("q") == 0


async def test_what_is_handed_back_comes_again_marked_redelivered(bench: Bench) -> None:
    await fill(bench, "q", 3)
    broker, inbox = await started(bench)
    await broker.attach("q", prefetch=1)
    await inbox.received(1)
    broker.settle([inbox.deliveries[0].receipt], requeue=True)
    await inbox.received(2)
    again = next(delivery for delivery in inbox.deliveries[1:] if delivery.message.message_id == "0")
    assert again.is_redelivered


async def test_stopping_hands_back_what_is_unsettled_and_keeps_what_is_settled(bench: Bench) -> None:
    """A settle is written even when stop follows at once: no redelivery after success (Bogdanp/dramatiq#148)."""
    await fill(bench, "q", 100)
    broker, inbox = await started(bench)
    await broker.attach("q", prefetch=60)
    await inbox.received(60)
    broker.settle(inbox.receipts()[:50])
    await broker.stop()
    await queue_is_left_with(bench, "q", 50)


async def test_stopping_again_changes_nothing_and_nothing_is_heard_afterwards(bench: Bench) -> None:
    await fill(bench, "q", 1)
    broker, inbox = await started(bench)
    await broker.stop()
    heard = list(inbox.connections)
    await broker.stop()
    await broker.attach("q", prefetch=1)
    broker.settle([Receipt(epoch=1, tag=1)])
    await queue_is_left_with(bench, "q", 1)
    assert (inbox.connections, inbox.deliveries) == (heard, [])


async def test_stopping_what_was_never_started_is_no_error(bench: Bench) -> None:
    await bench.broker().stop()


async def test_settling_twice_is_ignored(bench: Bench) -> None:
    await fill(bench, "q", 3)
    broker, inbox = await started(bench)
    await broker.attach("q", prefetch=1)
    for count in (1, 2, 3):
        await inbox.received(count)
        broker.settle(inbox.receipts())
        broker.settle(inbox.receipts(), requeue=True)
    await broker.stop()
    assert await bench.ready("q") == 0
    assert inbox.lost_epochs == []


async def test_settling_in_any_order_settles_exactly_those(bench: Bench) -> None:
    await fill(bench, "q", 12)
    broker, inbox = await started(bench)
    await broker.attach("q", prefetch=12)
    await inbox.received(12)
    receipts = inbox.receipts()
    broker.settle([receipts[5], receipts[0], receipts[1], receipts[3]])
    broker.settle([receipts[2], receipts[11], receipts[7]])
    broker.settle([receipts[9]], requeue=True)
    await inbox.received(13)
    assert inbox.ids[12] == "9"
    await broker.stop()
    await queue_is_left_with(bench, "q", 5)  # 4, 6, 8, 9, 10


async def test_a_missing_queue_is_lost_and_the_others_deliver(bench: Bench) -> None:
    await fill(bench, "q", 2)
    broker, inbox = await started(bench)
    await broker.attach("none", prefetch=1)
    await broker.attach("q", prefetch=2)
    await inbox.received(2)
    await until(lambda: inbox.lost_queues, what="the missing queue to be told")
    assert inbox.lost_queues == [("none", LostBecause.MISSING)]
    assert inbox.lost_epochs == []


async def test_a_queue_deleted_under_its_consumers_is_lost_once_and_the_others_deliver(bench: Bench) -> None:
    """The broker's cancel is heard (mosquito/aio-pika#334, mosquito/aiormq#116)."""
    await fill(bench, "doomed", 3)
    await fill(bench, "q", 1)
    broker, inbox = await started(bench)
    await broker.attach("doomed", prefetch=1)
    await broker.attach("doomed", prefetch=1, is_extra=True)
    await broker.attach("q", prefetch=10)
    await inbox.received(3)
    await bench.delete("doomed")
    await until(lambda: inbox.lost_queues, what="the deleted queue to be told")
    broker.settle(inbox.receipts())  # those of the deleted queue too: no error
    await bench.publish("q", [a_message(7)])
    await until(lambda: "7" in inbox.ids, what="the other queue to deliver")
    assert inbox.lost_queues == [("doomed", LostBecause.MISSING)]
    assert inbox.connections == [True]


async def test_a_lost_queue_can_be_attached_once_it_exists(bench: Bench) -> None:
    broker, inbox = await started(bench)
    await broker.attach("q", prefetch=1)
    await until(lambda: inbox.lost_queues, what="the missing queue to be told")
    await fill(bench, "q", 1)
    await broker.attach("q", prefetch=1)
    await inbox.received(1)


async def test_wishes_made_before_the_start_are_kept(bench: Bench) -> None:
    await fill(bench, "q", 2)
    broker, inbox = bench.broker(), RecordingInbox()
    await broker.attach("q", prefetch=1)
    await broker.start(inbox)
    await inbox.received(1)
    await queue_is_left_with(bench, "q", 1)


async def test_a_broken_connection_comes_back_with_every_queue_and_its_own_prefetch(bench: Bench) -> None:
    """mosquito/aio-pika#645, celery/celery#9512"""
    prefetches = {"one": 1, "two": 2, "five": 5}
    broker, inbox = await started(bench)
    for queue, prefetch in prefetches.items():
        await fill(bench, queue, 8)
        await broker.attach(queue, prefetch=prefetch)
    await broker.attach("two", prefetch=4, is_extra=True)
    await inbox.received(12)
    before = len(inbox.deliveries)

    await bench.break_connections()
    await inbox.up(times=2)
    await inbox.received(before + 12)

    again = inbox.deliveries[before:]
    counts = {queue: sum(delivery.queue == queue for delivery in again) for queue in prefetches}
    assert counts == {"one": 1, "two": 6, "five": 5}
    for queue, count in counts.items():
        await queue_is_left_with(bench, queue, 8 - count)
    old = {receipt.epoch for receipt in inbox.receipts()[:before]}
    assert old <= set(inbox.lost_epochs)
    assert old.isdisjoint(delivery.receipt.epoch for delivery in again)
    assert all(delivery.is_redelivered for delivery in again)
    assert inbox.connections == [True, False, True]


async def test_a_receipt_of_a_lost_connection_settles_nothing(bench: Bench) -> None:
    """mosquito/aio-pika#312, mosquito/aio-pika#688"""
    await fill(bench, "q", 3)
    broker, inbox = await started(bench)
    await broker.attach("q", prefetch=3)
    await inbox.received(3)
    late = inbox.receipts()
    await bench.break_connections()
    await inbox.up(times=2)
    await inbox.received(6)
    broker.settle(late)
    broker.settle(late, requeue=True)
    await broker.stop()
    await queue_is_left_with(bench, "q", 3)


async def test_two_processes_share_a_queue(bench: Bench) -> None:
    await fill(bench, "q", 6)
    both = [await started(bench), await started(bench)]
    for broker, _ in both:
        await broker.attach("q", prefetch=3)
    for _, inbox in both:
        await inbox.received(3)
    seen = sorted(int(number) for _, inbox in both for number in inbox.ids)
    assert seen == list(range(6))


async def test_a_published_copy_arrives_in_the_queue_of_its_group(bench: Bench) -> None:
    exchange = bench.exchange()
    await exchange.declare_group("billing", "classic")
    await exchange.publish(topology.DIRECTORY_EXCHANGE, "billing", a_message(1))
    await exchange.publish(topology.REFUSED_EXCHANGE, "billing.bulk.acme", a_message(2))
    assert await bench.ready(topology.directory_queue("billing")) == 1
    assert await bench.ready(topology.refused_queue("billing")) == 1


async def test_a_copy_that_nobody_collects_is_confirmed_all_the_same(bench: Bench) -> None:
    exchange = bench.exchange()
    await exchange.publish(topology.DEAD_EXCHANGE, "billing.bulk.acme", a_message(1))
    await exchange.publish(topology.ROLL_CALL_EXCHANGE, "billing", a_message(2))
    await exchange.close()
    await exchange.close()


async def test_declaring_a_group_again_changes_nothing_and_another_kind_is_a_mismatch(bench: Bench) -> None:
    await bench.exchange().declare_group("billing", "classic")
    exchange = bench.exchange()
    await exchange.declare_group("billing", "classic")
    with pytest.raises(QueueMismatch):
        await exchange.declare_group("billing", "quorum")
    await exchange.publish(topology.DIRECTORY_EXCHANGE, "billing", a_message(1))
