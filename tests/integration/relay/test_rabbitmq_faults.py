"""A RabbitMQ node that is killed, restarted, blocked and of another mind than we."""

import asyncio
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from urllib.parse import urlsplit, urlunsplit

import pytest

from outbox.errors import BrokerUnavailable
from outbox.topology import QueueKind
from relay.ports import Announcement, Category, Confirmed, Outgoing, Settlement
from relay.rabbitmq.publisher import RabbitPublisher
from tests.contracts.publishers import (
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
from tests.support.message_size import messages_up_to
from tests.support.rabbit import RabbitNode
from tests.support.wait import until

Node = RabbitNode | RabbitContainer


@pytest.mark.parametrize("queue_kind", ["classic", "quorum"])
async def test_a_broker_killed_with_ten_thousand_in_flight_has_all_that_it_confirmed(
    faulty_rabbit: Node, queue_kind: QueueKind
) -> None:
    """dotnetcore/CAP#730, abpframework/abp#24340: events were marked as published that no broker had."""
    lanes = [lane(f"t{number}", group=queue_kind) for number in range(20)]
    sent = outgoing(40_000, *lanes)  # the broker takes some of them before it is dead
    async with rabbit_stage(faulty_rabbit.url(), queue_kind=queue_kind) as stage:
        await stage.publisher.open()
        assert not await stage.publisher.declare(lanes)
    if queue_kind == "quorum":
        # RabbitMQ 3.10 never elects a leader for a quorum queue declared just before the node is killed.
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
        # A confirm shows that a quorum queue has its leader; a read before that ends the reader's connection.
        await stage.publisher.send(outgoing(20, *lanes))
        await settle(stage.publisher, 20)
        stored = await asyncio.gather(*(stage.read(one.queue) for one in lanes))
        found = {each.id for messages in stored for each in events_of(messages)}
    assert 2_000 <= len(confirmed) < len(sent)
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


async def test_while_blocked_a_declaration_waits_and_blames_neither_lane_nor_connection(faulty_rabbit: Node) -> None:
    async with rabbit_stage(faulty_rabbit.url(), queue_kind="classic", node=faulty_rabbit) as stage:
        publisher = RabbitPublisher(url=faulty_rabbit.url(), queue_kind="classic")
        await publisher.open()
        assert not await publisher.declare([lane("early")])
        await stage.block()
        try:
            await publisher.send(outgoing(1, lane("early")))
            await until(lambda: publisher.is_blocked, what="the alarm")
            declaring = asyncio.create_task(publisher.declare([lane("late")], patience_s=0.2))
            done, _ = await asyncio.wait((declaring,), timeout=2.0)
            assert not done
        finally:
            await stage.unblock()
        assert not await asyncio.wait_for(declaring, 10)
        await publisher.close()


async def test_while_blocked_an_announcement_waits_and_the_connection_is_kept(faulty_rabbit: Node) -> None:
    async with rabbit_stage(faulty_rabbit.url(), queue_kind="classic", node=faulty_rabbit) as stage:
        publisher = RabbitPublisher(url=faulty_rabbit.url(), queue_kind="classic", call_timeout_s=1.0)
        await publisher.open()
        assert not await publisher.declare([lane("early")])
        await stage.block()
        try:
            await publisher.send(outgoing(1, lane("early")))
            await until(lambda: publisher.is_blocked, what="the alarm")
            told = Announcement(lane=lane("early"), group_started_at=datetime.now(UTC))
            announcing = asyncio.create_task(publisher.announce([told]))
            done, _ = await asyncio.wait((announcing,), timeout=2.5)
            assert not done
        finally:
            await stage.unblock()
        assert not await asyncio.wait_for(announcing, 30)
        assert len(await settle(publisher, 1)) == 1
        await publisher.close()


async def test_a_message_over_the_brokers_own_limit_is_found_and_its_neighbours_go(faulty_rabbit: Node) -> None:
    """celery/py-amqp#428, rabbitmq/amqp091-go#285: our limit is above the broker's, so only it can tell."""
    target = lane("limit")
    sent = outgoing(200, target)
    for bad in (60, 140):
        sent[bad] = Outgoing(tag=sent[bad].tag, lane=target, event=event(payload=bytes(5_000)))
    async with rabbit_stage(faulty_rabbit.url(), queue_kind="classic") as stage:
        async with messages_up_to(faulty_rabbit, 4_000):
            settled, connections = await _publish_like_the_engine(stage.publisher, sent)

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


async def test_a_message_over_the_brokers_own_limit_that_was_sent_apart_costs_no_connection_and_tells_the_limit(
    faulty_rabbit: Node,
) -> None:
    large = [
        Outgoing(tag=tag, lane=lane("limit"), event=event(payload=bytes(5_000)), is_apart=tag == 1) for tag in (1, 2)
    ]
    async with rabbit_stage(faulty_rabbit.url(), queue_kind="classic") as stage:
        async with messages_up_to(faulty_rabbit, 4_000):
            await stage.publisher.open()
            assert not await stage.publisher.declare([lane("limit")])
            await stage.publisher.send(large[:1])
            found = [*await settle(stage.publisher, 1)]
            await stage.publisher.send([large[1], *outgoing(1, lane("limit"), first_tag=3)])
            found += await settle(stage.publisher, 2)
        assert [(one.tag, one.category) for one in failures(found)] == [(tag, Category.TOO_LARGE) for tag in (1, 2)]
        assert all("want at most 4000 bytes, got 5000" in one.reason for one in failures(found))
        assert confirmed_tags(found) == [3]


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
