"""What every publisher promises the relay's engine, on every broker that it has an adapter for."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from outbox.errors import BrokerUnavailable
from outbox.naming import Lane
from outbox.topology import directory_queue
from relay.ports import Announcement, Category, Confirmed, Failed, Outgoing
from tests.contracts.publishers import (
    BODY_BYTES_MAX,
    MemoryStage,
    Stage,
    by_tag,
    confirmed_tags,
    event,
    events_of,
    failures,
    lane,
    outgoing,
    postgres_stage,
    rabbit_stage,
    settle,
)
from tests.support.wait import until

STARTED_AT = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
# Control characters, what RabbitMQ strips from names or gives a meaning, and what encodings fold together.
AWKWARD_TENANTS = [
    "a", "a\n", "a\r", "a\r\n", "\na", "a ", "a.b", "a%0A", "a#", "*", "#", "/", "ä", "a\u0308", "\uff21",
    "租户", "\U0001f469\u200d\U0001f680", "\x01", "\x7f", "\u2028", "x" * 200, "租" * 200, "x" * 199 + "y",
]  # fmt: skip


@pytest.fixture(params=["memory", "postgres", "classic", "quorum"])
async def stage(request: pytest.FixtureRequest) -> AsyncIterator[Stage]:
    if request.param == "memory":
        yield MemoryStage()
        return
    if request.param == "postgres":
        async with postgres_stage(request.getfixturevalue("queues_database")) as postgres:
            yield postgres
        return
    async with rabbit_stage(request.getfixturevalue("vhost"), queue_kind=request.param) as made:
        yield made


@pytest.fixture(params=["memory", "postgres", "rabbitmq"])
async def blockable(request: pytest.FixtureRequest) -> AsyncIterator[Stage]:
    if request.param == "memory":
        yield MemoryStage()
        return
    if request.param == "postgres":
        async with postgres_stage(request.getfixturevalue("queues_database")) as postgres:
            yield postgres
        return
    node = request.getfixturevalue("faulty_rabbit")
    async with rabbit_stage(node.url(), queue_kind="classic", node=node) as made:
        yield made


async def opened(stage: Stage, *lanes: Lane) -> None:
    await stage.publisher.open()
    assert not await stage.publisher.declare(lanes)


async def test_what_is_confirmed_is_in_its_queue_as_it_was_emitted(stage: Stage) -> None:
    await opened(stage, lane())
    sent = outgoing(50, lane())

    await stage.publisher.send(sent)
    settled = await settle(stage.publisher, 50)

    assert confirmed_tags(settled) == [one.tag for one in sent]
    assert events_of(await stage.read(lane().queue)) == [one.event for one in sent]


async def test_what_was_answered_while_answers_gathered_is_heard_after_it(stage: Stage) -> None:
    await opened(stage, lane())
    await stage.publisher.send(outgoing(50, lane()))

    with stage.publisher.unread():
        await asyncio.sleep(0.05)
    assert confirmed_tags(await settle(stage.publisher, 50)) == list(range(1, 51))


async def test_a_connection_that_is_lost_while_answers_gather_is_lost_after_it(stage: Stage) -> None:
    await opened(stage, lane())
    with stage.publisher.unread():
        await stage.cut()

    with pytest.raises(BrokerUnavailable):
        await stage.publisher.settlements(timeout_s=5)


async def test_an_event_without_a_queue_fails_and_its_neighbours_go(stage: Stage) -> None:
    """Particular/NServiceBus.RabbitMQ#135."""
    await opened(stage, lane())
    sent = outgoing(10, lane(), lane("nobody"))

    await stage.publisher.send(sent)
    settled = by_tag(await settle(stage.publisher, 10))

    for one in sent:
        settlement = settled[one.tag]
        if one.lane.tenant == "nobody":
            assert isinstance(settlement, Failed)
            assert settlement.category is Category.UNROUTABLE
            assert one.lane.routing_key in settlement.reason
        else:
            assert isinstance(settlement, Confirmed)
    assert len(await stage.read(lane().queue)) == 5


async def test_an_empty_body_without_a_queue_is_no_hang(stage: Stage) -> None:
    """gmr/aiorabbit#13: a returned message with an empty body was never settled."""
    await opened(stage, lane())
    sent = [
        Outgoing(tag=1, lane=lane("nobody"), event=event(payload=b"")),
        Outgoing(tag=2, lane=lane(), event=event(payload=b"")),
        Outgoing(tag=3, lane=lane("nobody"), event=event(payload=b"")),
    ]

    await stage.publisher.send(sent)
    settled = await settle(stage.publisher, 3)

    assert [one.tag for one in failures(settled)] == [1, 3]
    assert [found.payload for found in events_of(await stage.read(lane().queue))] == [b""]


async def test_a_queue_deleted_mid_run_fails_events_until_it_is_declared_again(stage: Stage) -> None:
    """Particular/NServiceBus.RabbitMQ#135."""
    await opened(stage, lane())
    await stage.publisher.send(outgoing(5, lane()))
    await settle(stage.publisher, 5)
    await stage.delete_queue(lane().queue)

    await stage.publisher.send(outgoing(5, lane(), first_tag=6))
    gone = await settle(stage.publisher, 5)
    assert not await stage.publisher.declare([lane()])
    await stage.publisher.send(outgoing(5, lane(), first_tag=11))
    back = await settle(stage.publisher, 5)

    assert [one.category for one in failures(gone)] == [Category.UNROUTABLE] * 5
    assert confirmed_tags(back) == [11, 12, 13, 14, 15]
    assert len(await stage.read(lane().queue)) == 5


async def test_one_event_to_two_groups_fails_only_for_the_one_without_a_queue(stage: Stage) -> None:
    """mosquito/aio-pika#689: a return was matched by message id alone and hit the wrong publish."""
    here, there = lane(), lane(group="shipping")
    await opened(stage, here)
    events = [event() for _ in range(50)]
    pairs = [(here, there) if number % 2 else (there, here) for number in range(50)]
    sent = [
        Outgoing(tag=2 * number + second, lane=pair[second], event=events[number])
        for number, pair in enumerate(pairs)
        for second in (0, 1)
    ]

    await stage.publisher.send(sent)
    settled = by_tag(await settle(stage.publisher, 100))

    wrong = [one for one in sent if isinstance(settled[one.tag], Failed) is not (one.lane == there)]
    assert not wrong
    assert events_of(await stage.read(here.queue)) == events


async def test_events_that_are_sent_apart_fare_as_others_do(stage: Stage) -> None:
    lanes = [lane(f"t{number}") for number in range(40)]
    await opened(stage, *lanes)
    alone = [replace(one, is_apart=True) for one in outgoing(42, *lanes, lane("nobody"), lane("large"))]
    alone[41] = replace(alone[41], event=event(payload=bytes(BODY_BYTES_MAX + 1)))

    await stage.publisher.send([*alone, *outgoing(1, lane("t0"), first_tag=100)])
    settled = await settle(stage.publisher, 43)

    assert confirmed_tags(settled) == [*range(1, 41), 100]
    found = sorted(failures(settled), key=lambda one: one.tag)
    assert [one.category for one in found] == [Category.UNROUTABLE, Category.TOO_LARGE]
    assert lane("nobody").routing_key in found[0].reason
    for sent in alone[1:40]:
        assert events_of(await stage.read(sent.lane.queue)) == [sent.event]


async def test_a_lanes_events_arrive_in_the_order_they_were_sent(stage: Stage) -> None:
    lanes = [lane(f"t{number}") for number in range(4)]
    await opened(stage, *lanes)
    sent = outgoing(600, *lanes)

    for start in range(0, 600, 40):
        await stage.publisher.send(sent[start : start + 40])
    await settle(stage.publisher, 600)

    for each in lanes:
        expected = [one.event.id for one in sent if one.lane == each]
        assert [found.id for found in events_of(await stage.read(each.queue))] == expected


async def test_two_thousand_in_flight_are_settled_once_each(stage: Stage) -> None:
    lanes = [lane(f"t{number}") for number in range(10)]
    await opened(stage, *lanes)
    sent = outgoing(2000, *lanes, lane("nobody"))

    for start in range(0, 2000, 200):
        await stage.publisher.send(sent[start : start + 200])
    settled = by_tag(await settle(stage.publisher, 2000))

    unroutable = {one.tag for one in sent if one.lane.tenant == "nobody"}
    assert {one.tag for one in failures(list(settled.values()))} == unroutable
    assert settled.keys() == {one.tag for one in sent}


async def test_an_oversized_payload_among_200_fails_alone_and_the_199_arrive_once(stage: Stage) -> None:
    """celery/py-amqp#428, rabbitmq/amqp091-go#285: one such message took the channel and its neighbours."""
    await opened(stage, lane())
    sent = outgoing(200, lane())
    sent[100] = Outgoing(tag=sent[100].tag, lane=lane(), event=event(payload=bytes(BODY_BYTES_MAX + 1)))

    await stage.publisher.send(sent)
    settled = await settle(stage.publisher, 200)

    assert [(one.tag, one.category) for one in failures(settled)] == [(101, Category.TOO_LARGE)]
    assert failures(settled)[0].reason == f"payload: want at most {BODY_BYTES_MAX} bytes, got {BODY_BYTES_MAX + 1}"
    assert [found.id for found in events_of(await stage.read(lane().queue))] == [
        one.event.id for one in sent if one.tag != 101
    ]


async def test_headers_over_one_frame_among_200_fail_alone_and_the_199_arrive_once(stage: Stage) -> None:
    """celery/py-amqp#428, rabbitmq/amqp091-go#285: such headers close the whole connection."""
    await opened(stage, lane())
    sent = outgoing(200, lane())
    sent[100] = Outgoing(tag=sent[100].tag, lane=lane(), event=event(actor="a" * 200_000))

    await stage.publisher.send(sent)
    settled = await settle(stage.publisher, 200)

    assert [(one.tag, one.category) for one in failures(settled)] == [(101, Category.TOO_LARGE)]
    assert failures(settled)[0].reason.startswith("headers: want at most ")
    assert [found.id for found in events_of(await stage.read(lane().queue))] == [
        one.event.id for one in sent if one.tag != 101
    ]


async def test_a_body_of_many_frames_arrives_whole(stage: Stage) -> None:
    await opened(stage, lane())
    payload = bytes(range(256)) * (BODY_BYTES_MAX // 256)

    await stage.publisher.send([Outgoing(tag=1, lane=lane(), event=event(payload=payload))])

    assert isinstance((await settle(stage.publisher, 1))[0], Confirmed)
    assert (await stage.read(lane().queue))[0].body == payload


async def test_a_lost_connection_raises_and_opening_again_goes_on(stage: Stage) -> None:
    await opened(stage, lane())
    await stage.publisher.send(outgoing(3, lane()))
    await settle(stage.publisher, 3)

    await stage.cut()

    with pytest.raises(BrokerUnavailable):
        await stage.publisher.settlements(timeout_s=10.0)
    with pytest.raises(BrokerUnavailable):
        await stage.publisher.send(outgoing(1, lane(), first_tag=4))
    await stage.publisher.open()
    assert not await stage.publisher.declare([lane()])
    await stage.publisher.send(outgoing(3, lane(), first_tag=5))
    assert confirmed_tags(await settle(stage.publisher, 3)) == [5, 6, 7]
    assert len(await stage.read(lane().queue)) == 6


async def test_nothing_settled_within_the_timeout_is_an_empty_answer(stage: Stage) -> None:
    await opened(stage, lane())

    assert not await stage.publisher.settlements(timeout_s=0.05)


async def test_settlements_of_an_unopened_publisher_raise(stage: Stage) -> None:
    with pytest.raises(BrokerUnavailable):
        await stage.publisher.settlements(timeout_s=0.05)
    with pytest.raises(BrokerUnavailable):
        await stage.publisher.send(outgoing(1, lane()))
    with pytest.raises(BrokerUnavailable):
        await stage.publisher.declare([lane()])


async def test_closing_twice_is_harmless_and_wakes_who_waits(stage: Stage) -> None:
    await opened(stage, lane())
    waiting = asyncio.create_task(stage.publisher.settlements(timeout_s=60.0))
    await asyncio.sleep(0)

    await stage.publisher.close()
    await stage.publisher.close()

    with pytest.raises(BrokerUnavailable):
        await asyncio.wait_for(waiting, 5.0)


async def test_a_blocked_broker_is_visible_and_loses_nothing(blockable: Stage) -> None:
    publisher = blockable.publisher
    await opened(blockable, lane())
    await publisher.send(outgoing(1, lane()))
    await settle(publisher, 1)
    assert not publisher.is_blocked

    await blockable.block()
    try:
        # RabbitMQ tells a connection of an alarm when it next publishes.
        await publisher.send(outgoing(100, lane(), first_tag=2))
        await until(lambda: publisher.is_blocked, what="the alarm")
        await publisher.send(outgoing(100, lane(), first_tag=102))
        during = await publisher.settlements(timeout_s=0.2)
    finally:
        await blockable.unblock()
    after = await settle(publisher, 200 - len(during))

    assert not publisher.is_blocked
    assert confirmed_tags([*during, *after]) == list(range(2, 202))
    found = events_of(await blockable.read(lane().queue))
    assert len({each.id for each in found}) == len(found) == 201


async def test_declaring_again_changes_nothing(stage: Stage) -> None:
    lanes = [lane(f"t{number}") for number in range(20)]
    await opened(stage, *lanes)
    await stage.publisher.send(outgoing(20, *lanes))
    await settle(stage.publisher, 20)

    assert not await stage.publisher.declare([*lanes, *lanes])

    assert [len(await stage.read(each.queue)) for each in lanes] == [1] * 20


async def test_declaring_nothing_is_nothing(stage: Stage) -> None:
    await opened(stage)

    assert not await stage.publisher.declare([])
    assert not await stage.publisher.announce([])


async def test_a_queue_with_other_arguments_is_one_clear_fault_and_other_lanes_work_on(stage: Stage) -> None:
    """mosquito/aio-pika#565: such a queue kept a connection in an endless loop."""
    await stage.publisher.open()
    await stage.declare_queue(lane("odd").queue, {"x-max-length": 7})
    good = [lane(f"t{number}") for number in range(12)]

    faults = await stage.publisher.declare([*good[:6], lane("odd"), *good[6:]])

    assert [(fault.lane, fault.category) for fault in faults] == [(lane("odd"), Category.MISMATCH)]
    assert lane("odd").queue in faults[0].reason
    assert "want" in faults[0].reason
    await stage.publisher.send(outgoing(12, *good))
    assert len(confirmed_tags(await settle(stage.publisher, 12))) == 12


async def test_another_groups_broken_directory_leaves_this_group_alone(stage: Stage) -> None:
    await stage.publisher.open()
    await stage.declare_queue(directory_queue("shipping"), {"x-max-length": 7})

    faults = await stage.publisher.declare([lane(group="shipping"), lane()])

    assert [(fault.lane, fault.category) for fault in faults] == [(lane(group="shipping"), Category.MISMATCH)]
    assert directory_queue("shipping") in faults[0].reason


async def test_announcements_reach_each_groups_own_directory(stage: Stage) -> None:
    lanes = [lane("a\nb"), lane("租" * 200), lane(group="shipping")]
    await opened(stage, *lanes)

    assert not await stage.publisher.announce([Announcement(lane=each, group_started_at=STARTED_AT) for each in lanes])

    billing = await stage.read(directory_queue("billing"))
    shipping = await stage.read(directory_queue("shipping"))
    assert [json.loads(message.body) for message in billing] == [told(each) for each in lanes[:2]]
    assert [json.loads(message.body) for message in shipping] == [told(lanes[2])]
    assert {message.type for message in billing} == {"fairpost.lane"}


def told(lane: Lane) -> Mapping[str, str]:
    return {
        "group": lane.group,
        "tier": lane.tier.label,
        "tenant": lane.tenant,
        "queue": lane.queue,
        "group_started_at": STARTED_AT.isoformat(),
    }


async def test_an_announcement_no_directory_takes_is_a_fault_and_the_next_declare_mends_it(stage: Stage) -> None:
    await opened(stage, lane(), lane(group="shipping"))
    await stage.delete_queue(directory_queue("billing"))
    announcements = [Announcement(lane=each, group_started_at=STARTED_AT) for each in (lane(), lane(group="shipping"))]

    faults = await stage.publisher.announce(announcements)
    assert not await stage.publisher.declare([lane()])
    again = await stage.publisher.announce(announcements)

    assert [fault.lane for fault in faults] == [lane()]
    assert not again
    assert len(await stage.read(directory_queue("billing"))) == 1


async def test_a_roll_call_is_heard_once_per_group(stage: Stage) -> None:
    await opened(stage, lane())
    assert not stage.publisher.roll_calls()

    await stage.call_roll("not a group")
    await stage.call_roll("billing")
    await stage.call_roll("billing")
    await stage.call_roll("shipping")
    heard: set[str] = set()

    def both_are_heard() -> bool:
        heard.update(stage.publisher.roll_calls())
        return {"billing", "shipping"} <= heard

    await until(both_are_heard)

    assert heard == {"billing", "shipping"}
    assert not stage.publisher.roll_calls()


async def test_no_two_tenants_share_a_lane(stage: Stage) -> None:
    """RabbitMQ strips CR and LF from names: tenants ``a`` and ``a\\n`` would share one."""
    lanes = [lane(tenant) for tenant in AWKWARD_TENANTS]
    await opened(stage, *lanes)
    sent = outgoing(len(lanes), *lanes)

    await stage.publisher.send(sent)
    await settle(stage.publisher, len(lanes))

    for one in sent:
        assert [found.tenant for found in events_of(await stage.read(one.lane.queue))] == [one.lane.tenant]


async def test_a_tenant_full_of_topic_wildcards_and_header_names_reaches_only_its_own_lane(stage: Stage) -> None:
    """RabbitMQ reads CC and BCC headers as more routing keys; nothing an app gives becomes one."""
    victim, evil = lane("victim"), lane("CC")
    await opened(stage, victim, evil)
    attack = event(tenant="CC", actor=victim.routing_key)

    await stage.publisher.send([Outgoing(tag=1, lane=evil, event=attack)])
    await settle(stage.publisher, 1)

    assert not await stage.read(victim.queue)
    assert events_of(await stage.read(evil.queue)) == [attack]
