"""A network that freezes, deafens and breaks under the relay's publisher."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Sequence

import pytest

from outbox.errors import BrokerUnavailable
from relay.ports import Outgoing
from relay.rabbitmq.publisher import RabbitPublisher
from tests.contracts.publishers import (
    RabbitStage,
    confirmed_tags,
    event,
    events_of,
    lane,
    outgoing,
    rabbit_stage,
    settle,
)
from tests.support.containers import RabbitContainer
from tests.support.rabbit import RabbitNode
from tests.support.wait import until
from tests.support.withholding import WithholdingProxy, everything

Node = RabbitNode | RabbitContainer


@pytest.fixture
async def stage(vhost: str) -> AsyncIterator[RabbitStage]:
    async with rabbit_stage(vhost, queue_kind="classic", heartbeat_s=2) as made:
        yield made


async def test_a_frozen_network_is_noticed_within_two_heartbeats_and_everything_is_sent_again(
    stage: RabbitStage,
) -> None:
    """mosquito/aio-pika#636: a publish hung for ever on a connection that was gone."""
    publisher, sent = stage.publisher, outgoing(300, lane())
    await publisher.open()
    await publisher.declare([lane()])
    stage.proxy.freeze()
    began = time.monotonic()

    await publisher.send(sent)
    with pytest.raises(BrokerUnavailable, match="heartbeat"):
        await settle(publisher, 300)

    assert time.monotonic() - began < 8
    stage.proxy.thaw()
    await publisher.open()
    await publisher.send(sent)
    assert confirmed_tags(await settle(publisher, 300)) == [one.tag for one in sent]
    assert {each.id for each in events_of(await stage.read(lane().queue))} == {one.event.id for one in sent}


async def test_a_socket_that_takes_nothing_ends_send_at_its_deadline(vhost: str) -> None:
    """mosquito/aio-pika#636."""
    async with rabbit_stage(vhost, queue_kind="classic", write_timeout_s=0.5, body_bytes_max=2**24) as stage:
        await stage.publisher.open()
        await stage.publisher.declare([lane()])
        stage.proxy.freeze()
        big = [Outgoing(tag=tag, lane=lane(), event=event(payload=bytes(8_000_000))) for tag in range(20)]

        with pytest.raises(BrokerUnavailable, match=r"took nothing for 0\.5 s"):
            await asyncio.wait_for(_send_singly(stage.publisher, big), 20)


async def _send_singly(publisher: RabbitPublisher, batch: Sequence[Outgoing]) -> None:
    for one in batch:
        await publisher.send([one])


async def test_a_node_that_answers_nobody_fails_to_open_within_the_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        publisher = RabbitPublisher(url=f"amqp://guest:guest@127.0.0.1:{port}/", connect_timeout_s=0.3)

        with pytest.raises(BrokerUnavailable, match=f"127.0.0.1:{port}: no answer in time"):
            await asyncio.wait_for(publisher.open(), 5)


async def test_what_was_heard_before_the_loss_is_handed_out_before_it_raises(stage: RabbitStage) -> None:
    publisher, sent = stage.publisher, outgoing(50, lane())
    await publisher.open()
    await publisher.declare([lane()])
    await publisher.send(sent)
    channel = publisher._channel
    assert channel is not None
    await until(lambda: len(channel._settled) == 50, what="every confirm, taken by nobody")

    stage.proxy.cut()
    await until(lambda: channel._loss, what="the loss")

    assert len(confirmed_tags(await publisher.settlements(timeout_s=0.0))) == 50
    with pytest.raises(BrokerUnavailable):
        await publisher.settlements(timeout_s=0.0)


async def test_confirms_that_never_come_end_in_a_loss_and_a_resend_without_one_event_lost(vhost: str) -> None:
    """dotnetcore/CAP#730: what is not confirmed is unknown, and sent again."""
    sent = outgoing(1_000, lane())
    async with (
        rabbit_stage(vhost, queue_kind="classic") as stage,
        WithholdingProxy(vhost, withheld=everything) as proxy,
    ):
        publisher = RabbitPublisher(url=proxy.url, queue_kind="classic", heartbeat_s=2)
        await publisher.open()
        await publisher.declare([lane()])
        proxy.is_withholding = True

        await publisher.send(sent)
        with pytest.raises(BrokerUnavailable):
            await settle(publisher, 1_000)

        proxy.is_withholding = False
        await publisher.open()
        await publisher.send(sent)
        assert len(confirmed_tags(await settle(publisher, 1_000))) == 1_000
        await publisher.close()
        arrived = [each.id for each in events_of(await stage.read(lane().queue))]
    assert set(arrived) == {one.event.id for one in sent}
    assert len(arrived) <= 2_000


async def test_publishing_goes_on_while_confirms_hide_the_heartbeats_from_the_client(vhost: str) -> None:
    """A broker that sends confirms sends no heartbeats, and the client gives up after six seconds without."""
    async with rabbit_stage(vhost, queue_kind="classic", heartbeat_s=1) as stage:
        publisher, tag, until_s = stage.publisher, 1, time.monotonic() + 9
        await publisher.open()
        await publisher.declare([lane()])

        while time.monotonic() < until_s:
            await publisher.send(outgoing(20, lane(), first_tag=tag))
            assert len(confirmed_tags(await settle(publisher, 20))) == 20
            tag += 20
