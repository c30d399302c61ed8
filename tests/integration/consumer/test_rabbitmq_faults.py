"""The consuming connection on a broker that is restarted, killed, blocked, and whose queues hang."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from consumer.ports import LostBecause
from consumer.rabbitmq import attach as rabbitmq_attach
from consumer.rabbitmq.exchange import RabbitMQExchange
from outbox.errors import BrokerUnavailable
from outbox.topology import DIRECTORY_EXCHANGE, QueueKind, directory_queue
from tests.support.brokers import RabbitBench, a_message, rabbit_bench
from tests.support.containers import RabbitContainer
from tests.support.inbox import RecordingInbox
from tests.support.patience import impatient, times_out_in_queues
from tests.support.rabbit import RabbitNode
from tests.support.services import fresh_name
from tests.support.wait import until

Node = RabbitNode | RabbitContainer


KINDS: tuple[QueueKind, ...] = ("classic", "quorum")


@pytest.fixture
async def bench(faulty_rabbit: Node) -> AsyncIterator[RabbitBench]:
    name = fresh_name("faulty")
    faulty_rabbit.management.add_vhost(name)
    async with rabbit_bench(faulty_rabbit.url(name), "classic") as found:
        yield found


async def fill(bench: RabbitBench, queue: str, count: int, *, kind: QueueKind = "classic") -> None:
    await bench.declare(queue, kind=kind)
    await bench.publish(queue, [a_message(number) for number in range(count)])


class Hanging:
    """A queue's process on the broker, suspended: it answers nothing until it goes on."""

    def __init__(self, node: Node, bench: RabbitBench, queue: str) -> None:
        self._node = node
        self._process = (
            f'element(2, {{ok, _}} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"{bench.vhost}">>, queue, <<"{queue}">>)))'
        )

    async def begin(self) -> None:
        await self._tell("suspend")

    async def end(self) -> None:
        await self._tell("resume")

    async def _tell(self, what: str) -> None:
        await asyncio.to_thread(self._node.ctl, "eval", f"sys:{what}(amqqueue:get_pid({self._process})).")


async def test_a_restarted_broker_is_consumed_from_within_ten_seconds(bench: RabbitBench, faulty_rabbit: Node) -> None:
    """ag2ai/faststream#2758, celery/celery#10302"""
    broker, inbox = bench.broker(), RecordingInbox()
    await broker.start(inbox)
    for kind in KINDS:
        await fill(bench, kind, 6, kind=kind)
        await broker.attach(kind, prefetch=2)
    await inbox.received(4)
    broker.settle([each.receipt for each in inbox.deliveries if each.message.message_id == "0"])
    await inbox.received(6)

    await asyncio.to_thread(faulty_rabbit.stop)
    await until(lambda: not inbox.is_connected, what="the loss to be heard")
    await asyncio.to_thread(faulty_rabbit.start)
    up_at, before = time.monotonic(), len(inbox.deliveries)
    await inbox.received(before + 4, deadline_s=10)
    assert time.monotonic() - up_at < 10
    assert inbox.connections == [True, False, True]
    for kind in KINDS:
        assert [each.message.message_id for each in inbox.deliveries[before:] if each.queue == kind] == ["1", "2"]


async def test_a_killed_broker_is_consumed_from_again(bench: RabbitBench, faulty_rabbit: Node) -> None:
    """ag2ai/faststream#2758"""
    broker, inbox = bench.broker(), RecordingInbox()
    await broker.start(inbox)
    for kind in KINDS:
        await fill(bench, kind, 3, kind=kind)
        await broker.attach(kind, prefetch=3)
    await inbox.received(6)
    # The list of quorum queues reaches the disk within two seconds; a younger one comes back without a leader.
    declared_at = time.monotonic()
    await until(lambda: time.monotonic() - declared_at > 3)
    await asyncio.to_thread(faulty_rabbit.kill)
    await until(lambda: not inbox.is_connected, what="the loss to be heard")
    await asyncio.to_thread(faulty_rabbit.start)
    await inbox.received(12, deadline_s=15)
    assert all(delivery.is_redelivered for delivery in inbox.deliveries[6:])


@pytest.mark.parametrize("kind", KINDS)
async def test_a_queue_that_does_not_answer_holds_up_no_other_and_is_back_once_it_does(
    bench: RabbitBench, faulty_rabbit: Node, kind: QueueKind
) -> None:
    for queue in ("hung", "early", "late"):
        await fill(bench, queue, 1, kind=kind)
    hanging = Hanging(faulty_rabbit, bench, "hung")
    broker, inbox = bench.broker(bench.address(rpc_timeout_s=1.5), shared_channels=1), RecordingInbox()
    await broker.start(inbox)
    await broker.attach("early", prefetch=9)
    await inbox.received(1)

    await hanging.begin()
    await broker.attach("hung", prefetch=9)
    await broker.attach("late", prefetch=9)
    await inbox.received(2, deadline_s=5)
    await until(lambda: inbox.lost_queues, what="the hanging queue to be told")
    assert inbox.lost_queues == [("hung", LostBecause.UNRESPONSIVE)]
    await bench.publish("early", [a_message(7)])
    await inbox.received(3)

    await hanging.end()
    await inbox.received(4, deadline_s=15)
    assert sorted(delivery.queue for delivery in inbox.deliveries) == ["early", "early", "hung", "late"]
    assert inbox.lost_epochs == []
    assert inbox.connections == [True]


async def test_a_queue_that_hangs_while_it_is_attached_costs_a_channel_once_and_ends_on_its_own(
    bench: RabbitBench, faulty_rabbit: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    for queue in ("hung", "other"):
        await fill(bench, queue, 1, kind="quorum")
    hanging = Hanging(faulty_rabbit, bench, "hung")
    broker, inbox = bench.broker(bench.address(rpc_timeout_s=1.5), shared_channels=1), RecordingInbox()
    await broker.start(inbox)
    await broker.attach("other", prefetch=1)
    await inbox.received(1)
    broker.settle(inbox.receipts())

    async def answers_at_once(*_: object) -> None:
        """As a queue does that hangs only a moment later."""

    await hanging.begin()
    monkeypatch.setattr(rabbitmq_attach, "_ask", answers_at_once)
    await broker.attach("hung", prefetch=1)
    await until(lambda: inbox.lost_queues, what="the hanging queue to be told")
    assert inbox.lost_queues == [("hung", LostBecause.UNRESPONSIVE)]
    # The channel that was given up hangs in the broker and may hold a prefetch, here 1, until the queue goes on.
    await bench.publish("other", [a_message(number) for number in range(1, 5)])
    for count in (2, 3, 4):
        await inbox.received(count)
        broker.settle(inbox.receipts())

    await hanging.end()
    await inbox.received(6, deadline_s=15)
    assert sorted(each.queue for each in inbox.deliveries) == ["hung", *["other"] * 5]
    by_queue = {each.queue: each.receipt.epoch for each in inbox.deliveries}
    assert by_queue["hung"] != by_queue["other"]
    assert inbox.connections == [True]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_delivery_held_past_the_brokers_patience_costs_its_channel_and_no_running_handler(
    bench: RabbitBench, faulty_rabbit: Node, kind: QueueKind
) -> None:
    """mosquito/aio-pika#288, mosquito/aiormq#70: the handler is nobody's callback, so nothing cancels it."""
    if times_out_in_queues(faulty_rabbit):
        pytest.skip("RabbitMQ closes no channel for it from 4.3 on")
    async with impatient(faulty_rabbit):
        for queue in ("slow", "quick"):
            await fill(bench, queue, 1, kind=kind)
        broker, inbox = bench.broker(shared_channels=2), RecordingInbox()
        await broker.start(inbox)
        await broker.attach("slow", prefetch=1)
        (held,) = await inbox.received(1)
        may_commit = asyncio.Event()
        handler = asyncio.create_task(may_commit.wait())
        await broker.attach("quick", prefetch=5)
        await inbox.received(2)
        broker.settle(inbox.receipts(of="quick"))
        await until(lambda: held.receipt.epoch in inbox.lost_epochs, what="the channel to be closed", deadline_s=20)
        assert not handler.done()
        may_commit.set()
        assert await handler
        broker.settle([held.receipt])  # too late, and no error
        await inbox.received(3)
        assert inbox.deliveries[2].message.message_id == held.message.message_id
        assert inbox.deliveries[2].is_redelivered
        assert inbox.lost_epochs == [held.receipt.epoch]
        assert inbox.connections == [True]


@pytest.mark.parametrize("kind", KINDS)
async def test_where_queues_time_consumers_out_a_delivery_held_too_long_comes_again_and_its_channel_stays(
    bench: RabbitBench, faulty_rabbit: Node, kind: QueueKind
) -> None:
    """From RabbitMQ 4.3 on a quorum queue cancels that consumer alone, and a classic one has no such patience."""
    if not times_out_in_queues(faulty_rabbit):
        pytest.skip("RabbitMQ closes the channel up to 4.2")
    async with impatient(faulty_rabbit):
        for queue in ("slow", "quick"):
            await fill(bench, queue, 1, kind=kind)
        broker, inbox = bench.broker(shared_channels=1), RecordingInbox()
        await broker.start(inbox)
        await broker.attach("slow", prefetch=1)
        (held,) = await inbox.received(1)
        await broker.attach("quick", prefetch=5)
        await inbox.received(2)
        broker.settle(inbox.receipts(of="quick"))
        if kind == "quorum":
            await until(lambda: len(inbox.receipts(of="slow")) > 1, what="it to come again", deadline_s=40)
        broker.settle([held.receipt])  # of a quorum queue too late, and no error
        for queue in ("slow", "quick"):
            await bench.publish(queue, [a_message(1)])

        def have_both_come() -> bool:
            broker.settle(inbox.receipts())
            return {("slow", "1"), ("quick", "1")} <= {
                (each.queue, each.message.message_id) for each in inbox.deliveries
            }

        await until(have_both_come, what="what came later")
        await broker.detach("slow")
        consumers = ("list_consumers", "-p", bench.vhost, "queue_name")
        await until(lambda: faulty_rabbit.ctl(*consumers).split()[1:] == ["quick"], what="no consumer of it to be left")
        assert (inbox.lost_epochs, inbox.lost_queues, inbox.connections) == ([], [], [True])


async def test_an_alarm_stops_publishing_and_never_the_acknowledgements(
    bench: RabbitBench, faulty_rabbit: Node
) -> None:
    await fill(bench, "q", 40)
    broker, inbox = bench.broker(), RecordingInbox()
    exchange = RabbitMQExchange(bench.address(), confirm_timeout_s=1.0)
    await exchange.declare_group("billing", "classic")
    await exchange.publish(DIRECTORY_EXCHANGE, "billing", a_message(1))
    await broker.start(inbox)
    await asyncio.to_thread(faulty_rabbit.block)
    try:
        with pytest.raises(BrokerUnavailable, match="within 1 s"):
            await exchange.publish(DIRECTORY_EXCHANGE, "billing", a_message(2))
        await broker.attach("q", prefetch=5)
        for count in range(5, 41, 5):
            await inbox.received(count)
            broker.settle(inbox.receipts())
    finally:
        await asyncio.to_thread(faulty_rabbit.unblock)
    await exchange.publish(DIRECTORY_EXCHANGE, "billing", a_message(3))
    await exchange.close()
    assert await bench.ready(directory_queue("billing")) in {2, 3}  # the unconfirmed one may have arrived, once
    assert inbox.connections == [True]
