"""The in-process broker behaves as RabbitMQ does where our processes can see it."""

import asyncio
from collections.abc import Sequence
from itertools import pairwise

import pytest

from outbox.errors import BrokerUnavailable, QueueMismatch
from outbox.inprocess import Connection, Handed, InProcessBroker, QueueCount, Routing
from outbox.wire import Message


def message(number: int) -> Message:
    return Message(
        message_id=str(number), type="t", app_id="a", content_type="application/json", headers={}, body=b"%d" % number
    )


def a_broker(**arguments: str | int) -> InProcessBroker:
    broker = InProcessBroker()
    broker.declare_exchange("x", "direct")
    broker.declare_queue("q", arguments)
    broker.bind("q", "x", "k")
    return broker


def fill(broker: InProcessBroker, count: int) -> None:
    for number in range(count):
        assert broker.publish("x", "k", message(number)) is Routing.QUEUED


class Hands:
    """What one consumer was handed."""

    def __init__(self, connection: Connection, *, prefetch: int, queue: str = "q") -> None:
        self.handed: list[Handed] = []
        self.is_cancelled = False
        self.consumer = connection.consume(
            queue, prefetch=prefetch, on_deliveries=self._take, on_cancelled=self._cancelled
        )

    def _take(self, batch: Sequence[Handed]) -> None:
        self.handed.extend(batch)

    def _cancelled(self) -> None:
        self.is_cancelled = True

    @property
    def bodies(self) -> list[int]:
        return [int(handed.message.body) for handed in self.handed]


async def turn() -> None:
    """Let the loop run what was scheduled."""
    for _ in range(3):
        await asyncio.sleep(0)


async def test_messages_are_handed_out_in_order_and_within_the_prefetch() -> None:
    broker = a_broker()
    fill(broker, 5)
    connection = broker.connect()
    hands = Hands(connection, prefetch=2)
    await turn()
    assert hands.bodies == [0, 1]
    connection.settle(hands.handed[0].tag)
    await turn()
    assert hands.bodies == [0, 1, 2]
    assert broker.counts() == {"q": QueueCount(ready=2, unsettled=2, consumers=1)}


async def test_two_consumers_share_a_queue_in_turn() -> None:
    broker = a_broker()
    one, other = Hands(broker.connect(), prefetch=10), Hands(broker.connect(), prefetch=10)
    fill(broker, 4)
    await turn()
    assert (one.bodies, other.bodies) == ([0, 2], [1, 3])


async def test_what_is_handed_back_takes_its_old_place_marked_redelivered() -> None:
    broker = a_broker()
    fill(broker, 3)
    connection = broker.connect()
    hands = Hands(connection, prefetch=2)
    await turn()
    hands.consumer.cancel()
    for handed in reversed(hands.handed):
        connection.settle(handed.tag, requeue=True)
    again = Hands(connection, prefetch=10)
    await turn()
    assert again.bodies == [0, 1, 2]
    assert [handed.is_redelivered for handed in again.handed] == [True, True, False]


async def test_a_cancelled_consumer_keeps_what_it_holds_and_receives_no_more() -> None:
    broker = a_broker()
    fill(broker, 3)
    connection = broker.connect()
    hands = Hands(connection, prefetch=1)
    await turn()
    hands.consumer.cancel()
    connection.settle(hands.handed[0].tag)
    await turn()
    assert hands.bodies == [0]
    assert broker.counts() == {"q": QueueCount(ready=2, unsettled=0, consumers=0)}


async def test_a_dropped_connection_hands_back_before_it_hears_of_it() -> None:
    broker = a_broker()
    fill(broker, 3)
    seen: list[QueueCount] = []
    connection = broker.connect(on_lost=lambda: seen.append(broker.counts()["q"]))
    hands = Hands(connection, prefetch=3)
    await turn()
    broker.drop_connections()
    assert seen == [QueueCount(ready=3, unsettled=0, consumers=0)]
    connection.settle(hands.handed[0].tag)  # too late: it is another's now
    assert broker.counts()["q"].ready == 3
    with pytest.raises(BrokerUnavailable):
        connection.publish("x", "k", message(9))


async def test_a_broker_that_is_down_refuses_connections() -> None:
    broker = a_broker()
    broker.is_down = True
    with pytest.raises(BrokerUnavailable):
        broker.connect()


async def test_deleting_a_queue_cancels_its_consumers() -> None:
    broker = a_broker()
    fill(broker, 2)
    connection = broker.connect()
    hands = Hands(connection, prefetch=1)
    await turn()
    broker.delete_queue("q")
    assert hands.is_cancelled
    connection.settle(hands.handed[0].tag)
    assert broker.counts() == {}
    assert broker.publish("x", "k", message(3)) is Routing.UNROUTABLE


async def test_a_queue_with_other_arguments_is_a_mismatch() -> None:
    broker = a_broker(**{"x-queue-type": "quorum"})
    broker.declare_queue("q", {"x-queue-type": "quorum"})
    with pytest.raises(QueueMismatch):
        broker.declare_queue("q", {"x-queue-type": "classic"})
    with pytest.raises(QueueMismatch):
        broker.declare_exchange("x", "topic")


async def test_a_full_queue_rejects_and_no_other_takes_the_message() -> None:
    limits: dict[str, str | int] = {"x-max-length": 1, "x-overflow": "reject-publish"}
    broker = a_broker(**limits)
    broker.declare_queue("other", {})
    broker.bind("other", "x", "k")
    fill(broker, 1)
    assert broker.publish("x", "k", message(1)) is Routing.REJECTED
    assert [count.ready for count in broker.counts().values()] == [1, 1]


async def test_a_full_queue_that_may_drop_makes_room_for_the_newest() -> None:
    broker = a_broker(**{"x-max-length": 1})
    fill(broker, 1)
    assert broker.publish("x", "k", message(1)) is Routing.QUEUED
    assert [count.ready for count in broker.counts().values()] == [1]


@pytest.mark.parametrize(
    ("pattern", "key", "is_taken"),
    [
        ("billing.#", "billing.bulk.acme", True),
        ("billing.#", "billing", True),
        ("billing.#", "billing2.bulk.acme", False),
        ("billing.#", "audit.bulk.acme", False),
        ("#", "audit.bulk.acme", True),
        ("billing", "billing", True),
        ("billing", "billing.bulk", False),
    ],
)
async def test_a_topic_binding_takes_a_whole_group(pattern: str, key: str, is_taken: bool) -> None:
    broker = a_broker()
    broker.declare_exchange("t", "topic")
    broker.bind("q", "t", pattern)
    assert broker.publish("t", key, message(1)) is (Routing.QUEUED if is_taken else Routing.UNROUTABLE)


async def test_a_fanout_reaches_every_queue_once() -> None:
    broker = a_broker()
    broker.declare_exchange("f", "fanout")
    broker.declare_queue("other", {})
    for queue, key in (("q", ""), ("q", "again"), ("other", "")):
        broker.bind(queue, "f", key)
    assert broker.publish("f", "anything", message(1)) is Routing.QUEUED
    assert [count.ready for count in broker.counts().values()] == [1, 1]


async def test_a_blocked_broker_takes_nothing_and_says_so() -> None:
    broker = a_broker()
    heard: list[bool] = []
    connection = broker.connect(on_blocked=heard.append)
    broker.block()
    with pytest.raises(BrokerUnavailable):
        connection.publish("x", "k", message(1))
    broker.block(is_blocked=False)
    assert connection.publish("x", "k", message(1)) is Routing.QUEUED
    assert heard == [True, False]


async def test_a_connections_own_queue_ends_with_it() -> None:
    broker = a_broker()
    connection = broker.connect()
    connection.declare_own_queue("mine")
    connection.close()
    connection.close()
    assert "mine" not in broker.counts()


async def test_one_of_many_dropped_consumers_leaves_the_order_whole() -> None:
    broker = a_broker()
    fill(broker, 20)
    lost, kept = broker.connect(), broker.connect()
    Hands(lost, prefetch=5)
    await turn()
    lost.close()
    hands = Hands(kept, prefetch=20)
    await turn()
    assert len(hands.bodies) == 20
    assert all(one < other for one, other in pairwise(hands.bodies))
