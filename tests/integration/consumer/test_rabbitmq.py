"""The consuming connection on a real broker: load, silence, frozen networks, queues that hang."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence

import aiormq
import pytest

from consumer.ports import Broker, Delivery, LostBecause
from consumer.rabbitmq import attach as rabbitmq_attach
from consumer.rabbitmq import wire
from consumer.rabbitmq.broker import rabbitmq_broker
from consumer.rabbitmq.channel import Attachment, Listener, WireChannel
from consumer.rabbitmq.connection import Address, PlainConnection, close, connect, write
from outbox.errors import BrokerUnavailable, ConfigError
from outbox.topology import QueueKind
from tests.support.brokers import RabbitBench, a_message, rabbit_bench
from tests.support.inbox import RecordingInbox
from tests.support.wait import until


@pytest.fixture
async def bench(vhost: str) -> AsyncIterator[RabbitBench]:
    async with rabbit_bench(vhost, "classic") as found:
        yield found


@pytest.fixture(params=["classic", "quorum"])
async def either(request: pytest.FixtureRequest, vhost: str) -> AsyncIterator[RabbitBench]:
    kind: QueueKind = request.param
    async with rabbit_bench(vhost, kind) as found:
        yield found


class SettlingInbox(RecordingInbox):
    """Settles what comes, in the next turn of the loop."""

    def __init__(self, broker: Broker) -> None:
        super().__init__()
        self._broker = broker

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        super().deliver(deliveries)
        self._broker.settle([delivery.receipt for delivery in deliveries])

    async def more(self, *, up_to: int) -> None:
        """Wait for one more delivery, unless *up_to* have come."""
        wanted = min(len(self.deliveries) + 1, up_to)
        await until(lambda: len(self.deliveries) >= wanted, every_s=0.002, what=f"{wanted} deliveries")


async def fill(bench: RabbitBench, queue: str, count: int) -> None:
    await bench.declare(queue)
    await bench.publish(queue, [a_message(number) for number in range(count)])


async def test_whatever_connecting_fails_of_it_is_tried_again(
    bench: RabbitBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [StopAsyncIteration(), AttributeError("reader")]

    async def odd(address: Address) -> PlainConnection:
        if failures:
            raise failures.pop()
        return await connect(address)

    monkeypatch.setattr(wire, "connect", odd)
    await fill(bench, "q", 1)
    broker, inbox = bench.broker(), RecordingInbox()
    await broker.start(inbox)
    await broker.attach("q", prefetch=1)
    await inbox.received(1)


async def test_a_handler_that_burns_cpu_for_three_heartbeats_loses_no_connection(
    bench: RabbitBench, vhost: str
) -> None:
    """Bogdanp/dramatiq#461, mosquito/aio-pika#650"""
    await fill(bench, "q", 20)
    broker = bench.broker(Address(url=vhost, name="burner", heartbeat_s=2))
    inbox = RecordingInbox()
    await broker.start(inbox)
    await broker.attach("q", prefetch=10)
    await inbox.received(10)
    until_s = time.monotonic() + 3 * 2 + 1
    while time.monotonic() < until_s:  # this is the engine's loop, and it never awaits
        sum(range(1000))
    broker.settle(inbox.receipts())
    await inbox.received(20)
    broker.settle(inbox.receipts())
    await broker.stop()
    assert inbox.connections == [True]
    assert inbox.lost_epochs == []
    assert sorted(map(int, inbox.ids)) == list(range(20))
    assert await bench.ready("q") == 0


async def test_a_frozen_network_is_noticed_within_three_heartbeats_and_replaced(bench: RabbitBench) -> None:
    """mosquito/aio-pika#588, mosquito/aio-pika#669"""
    await fill(bench, "q", 4)
    broker, inbox = bench.broker(bench.address(heartbeat_s=3)), RecordingInbox()
    await broker.start(inbox)
    await broker.attach("q", prefetch=2)
    await inbox.received(2)
    bench.proxy.freeze()
    await until(lambda: not inbox.is_connected, deadline_s=3 * 3 + 1, what="the frozen connection to be given up")
    assert inbox.lost_epochs
    bench.proxy.thaw()
    await inbox.up(times=2, deadline_s=15)
    await inbox.received(4)
    broker.settle(inbox.receipts()[2:])
    await until(lambda: set(inbox.ids) == {"0", "1", "2", "3"}, what="all four, two of them twice")


async def test_stopping_on_a_frozen_network_takes_seconds_not_for_ever(bench: RabbitBench) -> None:
    await fill(bench, "q", 4)
    broker, inbox = bench.broker(), RecordingInbox()
    await broker.start(inbox)
    await broker.attach("q", prefetch=2)
    await inbox.received(2)
    bench.proxy.freeze()
    broker.settle(inbox.receipts())
    async with asyncio.timeout(15):
        await broker.stop()


async def test_extra_consumers_opened_and_cancelled_under_load_close_no_channel_and_lose_nothing(
    either: RabbitBench,
) -> None:
    """rabbitmq/rabbitmq-server#5927"""
    messages = 2000
    await either.declare("q")
    broker = either.broker()
    inbox = SettlingInbox(broker)
    await broker.start(inbox)
    await broker.attach("q", prefetch=2)

    async def come_and_go() -> None:
        while len(inbox.deliveries) < messages:
            await broker.attach("q", prefetch=20, is_extra=True)
            await inbox.more(up_to=messages)
            await broker.detach("q", is_extra=True)

    async with asyncio.TaskGroup() as group:
        group.create_task(either.publish("q", [a_message(number) for number in range(messages)]))
        group.create_task(come_and_go())
    await broker.stop()
    assert sorted(map(int, inbox.ids)) == list(range(messages))
    assert inbox.lost_epochs == []
    assert await either.ready("q") == 0


async def test_base_consumers_detached_and_attached_under_load_close_no_channel_and_lose_nothing(
    either: RabbitBench,
) -> None:
    """rabbitmq/rabbitmq-server#5927: the same queue again on the same channel, with deliveries under way."""
    messages = 1000
    await either.declare("q")
    broker = either.broker(shared_channels=1)
    inbox = SettlingInbox(broker)
    await broker.start(inbox)

    async def come_and_go() -> None:
        while len(inbox.deliveries) < messages:
            await broker.attach("q", prefetch=20)
            await inbox.more(up_to=messages)
            await broker.detach("q")

    async with asyncio.TaskGroup() as group:
        group.create_task(either.publish("q", [a_message(number) for number in range(messages)]))
        group.create_task(come_and_go())
    await broker.stop()
    assert sorted(map(int, inbox.ids)) == list(range(messages))
    assert inbox.lost_epochs == []


async def test_a_queue_that_another_holds_exclusively_is_refused_and_the_others_deliver(
    bench: RabbitBench, vhost: str
) -> None:
    await fill(bench, "held", 1)
    await fill(bench, "q", 1)
    broker, inbox = bench.broker(shared_channels=1), RecordingInbox()
    await broker.start(inbox)
    async with aiormq.connect(vhost) as connection:
        channel = await connection.channel()

        async def ignore(_: object) -> None:
            return

        await channel.basic_consume("held", ignore, exclusive=True)
        await broker.attach("q", prefetch=5)
        await inbox.received(1)
        await broker.attach("held", prefetch=1)
        await until(lambda: inbox.lost_queues, what="the refusal to be told")
        assert inbox.lost_queues == [("held", LostBecause.REFUSED)]
        await bench.publish("q", [a_message(5)])
        await until(lambda: "5" in inbox.ids, what="the other queue to deliver")
    assert inbox.connections == [True]


async def test_a_queue_whose_name_the_protocol_cannot_say_is_missing(bench: RabbitBench) -> None:
    await fill(bench, "q", 1)
    broker, inbox = bench.broker(), RecordingInbox()
    await broker.start(inbox)
    names = ["tenant%20one", "x" * 300]
    for name in (*names, "q"):
        await broker.attach(name, prefetch=1)
    await inbox.received(1)
    await until(lambda: len(inbox.lost_queues) == 2)
    assert sorted(inbox.lost_queues) == sorted((name, LostBecause.MISSING) for name in names)
    assert inbox.connections == [True]


async def test_an_attach_that_hangs_in_spite_of_an_answer_ends_alone(
    bench: RabbitBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue goes silent between the question and the attaching; here no question is asked at all."""
    await fill(bench, "q", 3)
    broker, inbox = bench.broker(bench.address(rpc_timeout_s=1.0), shared_channels=1), RecordingInbox()
    await broker.start(inbox)
    await broker.attach("q", prefetch=1)
    await inbox.received(1)

    async def no_question(*_: object) -> None:
        return

    monkeypatch.setattr(rabbitmq_attach, "_ask", no_question)
    await broker.attach("late", prefetch=1)  # missing: it kills the shared channel as a hanging one would
    await until(lambda: inbox.lost_queues, what="the missing queue to be told")
    broker.settle(inbox.receipts())
    await inbox.received(2)
    assert inbox.lost_queues == [("late", LostBecause.MISSING)]
    assert inbox.connections == [True]


async def test_a_hundred_queues_attach_over_few_channels(bench: RabbitBench) -> None:
    queues = [f"q{number}" for number in range(100)]
    for queue in queues:
        await fill(bench, queue, 1)
    broker, inbox = bench.broker(), RecordingInbox()
    for queue in queues:
        await broker.attach(queue, prefetch=2)
    await broker.start(inbox)
    deliveries = await inbox.received(100)
    assert {delivery.queue for delivery in deliveries} == set(queues)
    assert len({delivery.receipt.epoch for delivery in deliveries}) == 4


async def test_a_broker_that_comes_later_is_found(bench: RabbitBench) -> None:
    await fill(bench, "q", 1)
    await bench.proxy.refuse()
    broker, inbox = bench.broker(), RecordingInbox()
    async with asyncio.timeout(0.5):
        await broker.start(inbox)
        await broker.attach("q", prefetch=1)
    await bench.proxy.open()
    await inbox.received(1)
    assert inbox.connections == [True]


async def test_a_wrong_password_never_connects_and_stopping_is_quick(vhost: str) -> None:
    broker = rabbitmq_broker(Address(url=vhost.replace("guest:guest", "guest:wrong"), name="intruder"))
    inbox = RecordingInbox()
    await broker.start(inbox)
    async with asyncio.timeout(5):
        await broker.stop()
    assert inbox.connections == []


async def test_a_message_of_a_stranger_comes_as_it_is(bench: RabbitBench, vhost: str) -> None:
    await bench.declare("q")
    async with aiormq.connect(vhost) as connection:
        channel = await connection.channel()
        properties = aiormq.spec.Basic.Properties(
            headers={"number": 1, "list": [True, None], "bytes": bytearray(b"\xff")}
        )
        await channel.basic_publish(b"\x00\xff", routing_key="q", properties=properties)
    broker, inbox = bench.broker(), RecordingInbox()
    await broker.start(inbox)
    await broker.attach("q", prefetch=1)
    (delivery,) = await inbox.received(1)
    assert delivery.message.body == b"\x00\xff"
    assert delivery.message.content_type == ""
    assert delivery.message.headers["number"] == 1
    await bench.exchange().publish("outbox.dead", "billing.bulk.acme", delivery.message)


@pytest.mark.parametrize("url", ["", "http://host/", "amqp://", "host:5672", "amqp://guest:secret@:abc/"])
def test_an_address_that_is_none_is_said_so_in_one_sentence_without_the_password(url: str) -> None:
    with pytest.raises(ConfigError, match="broker URL: want amqp") as raised:
        Address(url=url, name="x")
    assert "secret" not in str(raised.value)


async def test_publishing_to_a_broker_that_is_not_there_says_so(bench: RabbitBench) -> None:
    await bench.proxy.refuse()
    with pytest.raises(BrokerUnavailable, match="connect to"):
        await bench.exchange().publish("outbox.dead", "billing.bulk.acme", a_message(1))


async def test_an_exchange_whose_connection_was_lost_opens_another(bench: RabbitBench) -> None:
    exchange = bench.exchange()
    await exchange.declare_group("billing", "classic")
    bench.proxy.cut()

    async def publishes() -> bool:
        try:
            await exchange.publish("outbox.directory", "billing", a_message(1))
        except BrokerUnavailable:
            return False
        return True

    _: bool = await until(publishes)
    assert await bench.ready("outbox.directory.billing") == 1


async def test_what_still_comes_for_a_consumer_that_was_cancelled_goes_back_and_no_acknowledgement_speaks_for_it(
    either: RabbitBench,
) -> None:
    """A quorum queue may send to a consumer after it has said that it is cancelled."""
    await fill(either, "q", 1)
    await fill(either, "other", 2)
    address, delivered = either.address(), list[Delivery]()

    def ignored(_what: object) -> None: ...

    listener = Listener(opened=ignored, delivered=delivered.append, cancelled=ignored, emptied=ignored, died=ignored)
    connection = await connect(address)
    channel = await WireChannel.opened(connection, address, listener)
    attachment = Attachment(queue="q", prefetch=10, is_extra=False)
    await channel.attach(attachment)
    await until(lambda: len(delivered) == 1, what="what is there")
    write(connection, channel.settle([delivered[0].receipt.tag], requeue=False))
    channel.attachments.clear()  # for us it is cancelled, and the broker sends on
    await either.publish("q", [a_message(1)])
    await channel.attach(Attachment(queue="other", prefetch=10, is_extra=False))
    await until(lambda: len(delivered) == 3, what="what is in the other queue")
    write(connection, channel.settle([delivery.receipt.tag for delivery in delivered[1:]], requeue=False))
    channel.cancel(attachment)
    await until(lambda: _is_left_with(either, "q", 1), what="it to be back in its queue")
    await until(lambda: _is_left_with(either, "other", 0), what="the others to be settled")
    await close(connection)
    assert [each.queue for each in delivered] == ["q", "other", "other"]


async def _is_left_with(bench: RabbitBench, queue: str, count: int) -> bool:
    return await bench.ready(queue) == count
