"""What only a real RabbitMQ, a real network and a killed node can show of the relay's publisher."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Self
from urllib.parse import urlsplit, urlunsplit

import aiormq
import pytest

from outbox.errors import BrokerUnavailable
from outbox.event import Event
from outbox.topology import EVENTS_EXCHANGE, QueueKind, lane_arguments, refused_queue
from relay.ports import Category, Confirmed, Outgoing, Settlement
from relay.rabbitmq import RabbitPublisher
from tests.contracts.publishers import (
    RabbitStage,
    by_tag,
    confirmed_tags,
    event,
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

    with pytest.raises(BrokerUnavailable, match=said) as raised:
        await RabbitPublisher(url=url).open()
    assert "wrong" not in str(raised.value)


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
        DeafProxy(vhost) as proxy,
    ):
        publisher = RabbitPublisher(url=proxy.url, queue_kind="classic", heartbeat_s=2)
        await publisher.open()
        await publisher.declare([lane()])
        proxy.is_deaf = True

        await publisher.send(sent)
        with pytest.raises(BrokerUnavailable):
            await settle(publisher, 1_000)

        proxy.is_deaf = False
        await publisher.open()
        await publisher.send(sent)
        assert len(confirmed_tags(await settle(publisher, 1_000))) == 1_000
        await publisher.close()
        arrived = [each.id for each in events_of(await stage.read(lane().queue))]
    assert set(arrived) == {one.event.id for one in sent}
    assert len(arrived) <= 2_000


class DeafProxy:
    """Forwards to the broker, and while *is_deaf* throws away what the broker answers."""

    def __init__(self, url: str) -> None:
        self._parts = urlsplit(url)
        self._server: asyncio.Server | None = None
        self._links: set[asyncio.Task[None]] = set()
        self.is_deaf = False
        self.url = ""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        login = self._parts.netloc.rpartition("@")[0]
        self.url = urlunsplit(self._parts._replace(netloc=f"{login}@127.0.0.1:{port}"))
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for link in self._links:
            link.cancel()
        await asyncio.gather(*self._links, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._links.add(task)
        back, forth = await asyncio.open_connection(self._parts.hostname, self._parts.port)
        try:
            await asyncio.gather(
                self._pump(reader, forth, can_be_deaf=False), self._pump(back, writer, can_be_deaf=True)
            )
        finally:
            for side in (writer, forth):
                side.transport.abort()
            self._links.discard(task)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, can_be_deaf: bool) -> None:
        with suppress(OSError):
            while chunk := await source.read(65536):
                if not (can_be_deaf and self.is_deaf):
                    sink.write(chunk)
                    await sink.drain()
        sink.close()


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
        f"queue {lane().queue}: want x-queue-type classic, as our classic queues have, the broker has it with quorum"
    )


async def test_a_mismatch_that_the_broker_describes_by_another_argument_still_names_our_kind(
    stage: RabbitStage,
) -> None:
    await stage.publisher.open()
    await stage.declare_queue(lane().queue, lane_arguments("quorum"))

    faults = await stage.publisher.declare([lane()])

    assert faults[0].category is Category.MISMATCH
    assert "as our classic queues have, the broker has it with" in faults[0].reason


async def test_a_queue_held_exclusively_elsewhere_is_forbidden_and_the_rest_declared(
    stage: RabbitStage, vhost: str
) -> None:
    await stage.publisher.open()
    async with aiormq.connect(vhost) as connection:
        channel = await connection.channel()
        await channel.queue_declare(lane("held").queue, exclusive=True)

        faults = await stage.publisher.declare([lane("held"), lane()])

    assert [(fault.lane, fault.category) for fault in faults] == [(lane("held"), Category.FORBIDDEN)]


async def test_publishing_goes_on_while_thousands_of_confirms_hide_the_heartbeats(stage: RabbitStage) -> None:
    """The client behind our channel must not call a busy connection stuck: three heartbeats of 2 s are 9 s."""
    publisher, tag, until_s = stage.publisher, 1, time.monotonic() + 11
    await publisher.open()
    await publisher.declare([lane()])

    while time.monotonic() < until_s:
        await publisher.send(outgoing(50, lane(), first_tag=tag))
        assert len(confirmed_tags(await settle(publisher, 50))) == 50
        tag += 50
        await asyncio.to_thread(time.sleep, 0.05)

    assert len(await stage.read(lane().queue)) == tag - 1


# ------------------------------------------------------------------ a node that is blocked, restarted and killed


@pytest.mark.parametrize("queue_kind", ["classic", "quorum"])
async def test_a_broker_killed_with_ten_thousand_in_flight_has_all_that_it_confirmed(
    faulty_rabbit: Node, queue_kind: QueueKind
) -> None:
    """dotnetcore/CAP#730, abpframework/abp#24340: events were marked as published that no broker had."""
    lanes = [lane(f"t{number}", group=queue_kind) for number in range(20)]
    sent = outgoing(10_000, *lanes)
    async with rabbit_stage(faulty_rabbit.url(), queue_kind=queue_kind) as stage:
        await stage.publisher.open()
        assert not await stage.publisher.declare(lanes)
    # 3.10 forgets the leader of a quorum queue that was declared less than a second before the kill.
    await asyncio.to_thread(faulty_rabbit.restart)
    heard: list[Settlement] = []
    async with rabbit_stage(faulty_rabbit.url(), queue_kind=queue_kind) as stage:
        publisher = stage.publisher
        await publisher.open()
        kill = asyncio.create_task(_kill_after(2_000, heard, faulty_rabbit))
        with pytest.raises(BrokerUnavailable):
            await _publish_until_lost(publisher, sent, heard)
        await kill
    await asyncio.to_thread(faulty_rabbit.start)

    confirmed = set(confirmed_tags(list(by_tag(heard).values())))
    async with rabbit_stage(faulty_rabbit.url(), queue_kind=queue_kind) as stage:
        await stage.publisher.open()
        assert not await stage.publisher.declare(lanes)
        # A confirm shows that the queue has its leader again; a read before that ends the reader's connection.
        await stage.publisher.send(outgoing(20, *lanes))
        await settle(stage.publisher, 20)
        found = {each.id for one in lanes for each in events_of(await stage.read(one.queue))}
    assert 2_000 <= len(confirmed) < 10_000
    lost = [one.tag for one in sent if one.tag in confirmed and one.event.id not in found]
    assert not lost


async def _kill_after(count: int, heard: Sequence[Settlement], node: Node) -> None:
    await until(lambda: len(heard) > count, every_s=0.001, what="confirms before the kill")
    await asyncio.to_thread(node.kill)


async def _publish_until_lost(publisher: RabbitPublisher, sent: Sequence[Outgoing], heard: list[Settlement]) -> None:
    for start in range(0, len(sent), 100):
        await publisher.send(sent[start : start + 100])
        heard += await publisher.settlements(timeout_s=0.0)
    async with asyncio.timeout(30):
        while True:
            heard += await publisher.settlements(timeout_s=1.0)


async def test_a_memory_alarm_of_many_heartbeats_blocks_and_then_everything_goes_once(faulty_rabbit: Node) -> None:
    """Juniper OpenSDN#129: a blocked connection was taken for a lost one."""
    async with rabbit_stage(faulty_rabbit.url(), queue_kind="classic", heartbeat_s=2, node=faulty_rabbit) as stage:
        publisher, target = stage.publisher, lane("alarm")
        await publisher.open()
        assert not await publisher.declare([target])
        await stage.block()
        began = time.monotonic()
        try:
            await publisher.send(outgoing(500, target))
            await until(lambda: publisher.is_blocked, what="the alarm")
            heard = await _heard_for(publisher, until_s=began + 12)
        finally:
            await stage.unblock()
        rest = await settle(publisher, 500 - len(heard))

        assert not publisher.is_blocked
        assert len(confirmed_tags([*heard, *rest])) == 500
        found = events_of(await stage.read(target.queue))
        assert len(found) == len({each.id for each in found}) == 500


async def _heard_for(publisher: RabbitPublisher, *, until_s: float) -> list[Settlement]:
    heard: list[Settlement] = []
    while time.monotonic() < until_s:
        heard += await publisher.settlements(timeout_s=0.5)
    return heard


async def test_while_blocked_a_declaration_blames_the_connection_and_no_lane(faulty_rabbit: Node) -> None:
    async with rabbit_stage(faulty_rabbit.url(), queue_kind="classic", node=faulty_rabbit) as stage:
        publisher = RabbitPublisher(url=faulty_rabbit.url(), queue_kind="classic", declare_timeout_s=0.5)
        await publisher.open()
        assert not await publisher.declare([lane("early")])
        await stage.block()
        try:
            await publisher.send(outgoing(1, lane("early")))
            await until(lambda: publisher.is_blocked, what="the alarm")
            with pytest.raises(BrokerUnavailable):
                await publisher.declare([lane("late")])
        finally:
            await stage.unblock()
            await publisher.close()


async def test_a_message_over_the_brokers_own_limit_is_found_and_its_neighbours_go(faulty_rabbit: Node) -> None:
    """celery/py-amqp#428, rabbitmq/amqp091-go#285: our limit is above the broker's, so only it can tell."""
    target = lane("limit")
    sent = outgoing(200, target)
    for bad in (60, 140):
        sent[bad] = Outgoing(tag=sent[bad].tag, lane=target, event=event(payload=bytes(5_000)))
    async with rabbit_stage(faulty_rabbit.url(), queue_kind="classic") as stage:
        publisher = stage.publisher
        faulty_rabbit.ctl("eval", "application:set_env(rabbit, max_message_size, 4000).")
        try:
            settled, connections = await _publish_like_the_engine(publisher, sent)
        finally:
            faulty_rabbit.ctl("eval", "application:set_env(rabbit, max_message_size, 134217728).")

        assert [(one.tag, one.category) for one in failures(settled)] == [
            (61, Category.TOO_LARGE),
            (141, Category.TOO_LARGE),
        ]
        assert "406" in failures(settled)[0].reason
        assert len(confirmed_tags(settled)) == 198
        arrived = events_of(await stage.read(target.queue))
        assert {each.id for each in arrived} == {one.event.id for one in sent if one.tag not in (61, 141)}
        # Each search costs two connections, whatever the batch; duplicates are what was unsettled at a close.
        assert connections <= 5


async def _publish_like_the_engine(
    publisher: RabbitPublisher, sent: Sequence[Outgoing]
) -> tuple[Sequence[Settlement], int]:
    """Send what is unsettled, and again on a new connection after each loss, until all is settled."""
    settled: dict[int, Settlement] = {}
    for connections in range(1, 20):
        await publisher.open()
        await publisher.declare(sorted({one.lane for one in sent}, key=lambda each: each.queue))
        try:
            await publisher.send([one for one in sent if one.tag not in settled])
            while len(settled) < len(sent):
                heard = await publisher.settlements(timeout_s=5.0)
                assert heard, "nothing was settled for 5 s"
                settled |= by_tag(heard)
        except BrokerUnavailable:
            continue
        return sorted(settled.values(), key=lambda one: one.tag), connections
    raise AssertionError("the publisher never got through")


async def test_a_user_who_may_not_declare_a_lane_gets_one_sentence_and_the_lanes_it_may(faulty_rabbit: Node) -> None:
    faulty_rabbit.ctl("add_user", "narrow", "secret")
    faulty_rabbit.ctl(
        "set_permissions", "narrow", r"^(amq\.gen.*|outbox\.(?!lane\.billing\.standard\.secret).*)$", ".*", ".*"
    )
    parts = urlsplit(faulty_rabbit.url())
    url = urlunsplit(parts._replace(netloc=f"narrow:secret@{parts.netloc.rpartition('@')[2]}"))
    publisher = RabbitPublisher(url=url, queue_kind="classic")
    await publisher.open()
    try:
        faults = await publisher.declare([lane("secret"), lane("open")])
        await publisher.send(outgoing(1, lane("open")))
        settled = await settle(publisher, 1)
    finally:
        await publisher.close()
        faulty_rabbit.ctl("delete_user", "narrow")

    assert [(fault.lane, fault.category) for fault in faults] == [(lane("secret"), Category.FORBIDDEN)]
    assert "ACCESS_REFUSED" in faults[0].reason
    assert isinstance(settled[0], Confirmed)


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


async def test_a_restarted_node_is_lost_with_a_reason_and_the_next_open_works(faulty_rabbit: Node) -> None:
    target = lane("restart")
    async with rabbit_stage(faulty_rabbit.url(), queue_kind="classic") as stage:
        await stage.publisher.open()
        assert not await stage.publisher.declare([target])
        await asyncio.to_thread(faulty_rabbit.restart)

        with pytest.raises(BrokerUnavailable, match=r"320 CONNECTION_FORCED|connection lost"):
            await settle(stage.publisher, 1)

        await stage.publisher.open()
        assert not await stage.publisher.declare([target])
        await stage.publisher.send(outgoing(10, target))
        assert len(confirmed_tags(await settle(stage.publisher, 10))) == 10
