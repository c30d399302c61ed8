"""What a real RabbitMQ says to wrong logins, queues and exchanges, and what the publisher makes of it."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from urllib.parse import urlsplit, urlunsplit

import aiormq
import pytest

from outbox.errors import BrokerRefused, BrokerUnavailable
from outbox.event import Event
from outbox.topology import EVENTS_EXCHANGE, lane_arguments, refused_queue
from relay.ports import Category
from relay.rabbitmq.publisher import RabbitPublisher
from relay.rabbitmq.tap import Tap
from tests.contracts.publishers import (
    RabbitStage,
    confirmed_tags,
    events_of,
    failures,
    lane,
    outgoing,
    rabbit_stage,
    settle,
)
from tests.support.containers import RabbitContainer
from tests.support.rabbit import RabbitNode
from tests.support.wait import until

Node = RabbitNode | RabbitContainer


@pytest.fixture
async def stage(vhost: str) -> AsyncIterator[RabbitStage]:
    async with rabbit_stage(vhost, queue_kind="classic", heartbeat_s=2) as made:
        yield made


async def test_confirms_of_many_lanes_that_gather_are_read_in_one_go(
    stage: RabbitStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[int] = []
    whole = Tap.data_received

    def counted(tap: Tap, data: bytes) -> None:
        reads.append(len(data))
        whole(tap, data)

    lanes = [lane(f"tenant-{number}") for number in range(20)]
    await stage.publisher.open()
    assert not await stage.publisher.declare(lanes)
    monkeypatch.setattr(Tap, "data_received", counted)
    for first in range(1, 401, 20):
        await stage.publisher.send(outgoing(20, *lanes, first_tag=first))
    reads.clear()
    with stage.publisher.unread():
        await asyncio.sleep(0.5)
        assert not reads

    assert len(await settle(stage.publisher, 400)) == 400
    assert len(reads) < 20


@pytest.mark.parametrize(
    ("login", "path", "said"),
    [("guest:wrong", None, "ACCESS_REFUSED"), ("guest:guest", "/no-such-vhost", "no-such-vhost")],
)
async def test_what_the_broker_says_of_a_wrong_url_is_what_is_raised(
    vhost: str, login: str, path: str | None, said: str
) -> None:
    parts = urlsplit(vhost)
    host = parts.netloc.rpartition("@")[2]
    url = urlunsplit(parts._replace(netloc=f"{login}@{host}", path=path or parts.path))

    with pytest.raises(BrokerRefused, match=said) as raised:
        await RabbitPublisher(url=url).open()
    assert "wrong" not in str(raised.value)


async def test_a_deleted_exchange_blames_no_event_and_opening_again_makes_it(stage: RabbitStage, vhost: str) -> None:
    publisher, sent = stage.publisher, outgoing(20, lane())
    await publisher.open()
    await publisher.declare([lane()])
    async with aiormq.connect(vhost) as connection:
        channel = await connection.channel()
        await channel.exchange_delete(EVENTS_EXCHANGE)

    await publisher.send(sent)
    with pytest.raises(BrokerUnavailable, match="404"):
        await settle(publisher, 20)

    await publisher.open()
    assert not await publisher.declare([lane()])
    await publisher.send(sent)
    assert len(confirmed_tags(await settle(publisher, 20))) == 20


async def test_an_event_the_consumer_rejects_arrives_in_its_groups_refused_queue(
    stage: RabbitStage, vhost: str
) -> None:
    await stage.publisher.open()
    await stage.publisher.declare([lane(), lane(group="shipping")])
    sent = outgoing(1, lane())
    await stage.publisher.send(sent)
    await settle(stage.publisher, 1)

    async with aiormq.connect(vhost) as connection:
        channel = await connection.channel()
        got = await channel.basic_get(lane().queue)
        await channel.basic_reject(got.delivery_tag or 0, requeue=False)

    async def refused() -> Sequence[Event]:
        return events_of(await stage.read(refused_queue("billing")))

    arrived: Sequence[Event] = await until(refused, what="the refused event")
    assert arrived == [sent[0].event]
    assert not await stage.read(refused_queue("shipping"))


async def test_a_thousand_declarations_use_few_channels_and_leave_none(stage: RabbitStage) -> None:
    await stage.publisher.open()
    lanes = [lane(f"t{number}") for number in range(200)]

    assert not await stage.publisher.declare(lanes)
    assert not await stage.publisher.declare(lanes)

    await stage.publisher.send(outgoing(200, *lanes))
    assert len(confirmed_tags(await settle(stage.publisher, 200))) == 200


async def test_many_refused_declarations_are_each_their_own_fault(stage: RabbitStage) -> None:
    """mosquito/aio-pika#565."""
    await stage.publisher.open()
    odd = [lane(f"odd{number}") for number in range(30)]
    good = [lane(f"good{number}") for number in range(30)]
    for each in odd:
        await stage.declare_queue(each.queue, {"x-max-length": 7})

    faults = await stage.publisher.declare([each for pair in zip(odd, good, strict=True) for each in pair])

    assert {fault.lane for fault in faults} == set(odd)
    assert {fault.category for fault in faults} == {Category.MISMATCH}
    await stage.publisher.send(outgoing(30, *good))
    assert len(confirmed_tags(await settle(stage.publisher, 30))) == 30


async def test_a_lane_of_the_other_queue_kind_names_both_values_and_our_kind(stage: RabbitStage) -> None:
    await stage.publisher.open()
    await stage.declare_queue(lane().queue, lane_arguments("classic") | {"x-queue-type": "quorum"})

    faults = await stage.publisher.declare([lane()])

    assert faults[0].reason == (
        f"queue {lane().queue}: want x-queue-type classic, as our classic queues have, got one that exists with quorum"
    )


async def test_a_mismatch_that_the_broker_describes_by_another_argument_still_names_our_kind(
    stage: RabbitStage,
) -> None:
    await stage.publisher.open()
    await stage.declare_queue(lane().queue, lane_arguments("quorum"))

    faults = await stage.publisher.declare([lane()])

    assert faults[0].category is Category.MISMATCH
    assert "as our classic queues have, got one that exists with" in faults[0].reason


async def test_a_queue_held_exclusively_elsewhere_is_forbidden_and_the_rest_declared(
    stage: RabbitStage, vhost: str
) -> None:
    await stage.publisher.open()
    async with aiormq.connect(vhost) as connection:
        channel = await connection.channel()
        await channel.queue_declare(lane("held").queue, exclusive=True)

        faults = await stage.publisher.declare([lane("held"), lane()])

    assert [(fault.lane, fault.category) for fault in faults] == [(lane("held"), Category.FORBIDDEN)]


async def test_a_full_lane_nacks_and_takes_events_again_once_it_has_room(stage: RabbitStage) -> None:
    await stage.publisher.open()
    full = lane("full")
    await stage.publisher.declare([full])
    await stage.delete_queue(full.queue)
    await stage.declare_queue(full.queue, {"x-max-length": 3, "x-overflow": "reject-publish"})
    await _bind(stage, full.queue, full.routing_key)

    await stage.publisher.send(outgoing(5, full))
    settled = await settle(stage.publisher, 5)

    assert confirmed_tags(settled) == [1, 2, 3]
    assert not failures(settled)
    await stage.read(full.queue)
    await stage.publisher.send(outgoing(2, full, first_tag=6))
    assert len(confirmed_tags(await settle(stage.publisher, 2))) == 2


async def _bind(stage: RabbitStage, queue: str, routing_key: str) -> None:
    async with stage._channel() as channel:
        await channel.queue_bind(queue, EVENTS_EXCHANGE, routing_key)
