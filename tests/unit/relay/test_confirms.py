"""Acks, nacks and returns of one channel, told apart without a broker."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.ports import Category, Confirmed, Failed, Nacked, Outgoing, Settlement
from relay.rabbitmq.confirms import Confirms
from tests.contracts.publishers import event, lane, outgoing


def published(*sent: Outgoing) -> Confirms:
    confirms = Confirms()
    for one in sent:
        confirms.published(one)
    return confirms


def came_back(confirms: Confirms, one: Outgoing) -> bool:
    return confirms.returned(routing_key=one.lane.routing_key, message_id=str(one.event.id), reason="312 NO_ROUTE")


def test_a_single_ack_settles_one() -> None:
    confirms = published(*outgoing(3, lane(), first_tag=70))

    assert confirms.settled(2, is_multiple=False, is_ack=True) == [Confirmed(tag=71)]
    assert [one.tag for one in confirms.unsettled()] == [70, 72]


def test_a_multiple_ack_settles_everything_up_to_it_that_was_not_settled_yet() -> None:
    confirms = published(*outgoing(5, lane()))
    confirms.settled(2, is_multiple=False, is_ack=True)

    assert confirms.settled(4, is_multiple=True, is_ack=True) == [Confirmed(tag=tag) for tag in (1, 3, 4)]
    assert [one.tag for one in confirms.unsettled()] == [5]


def test_an_ack_of_number_zero_settles_everything() -> None:
    confirms = published(*outgoing(3, lane()))

    assert len(confirms.settled(0, is_multiple=True, is_ack=True)) == 3
    assert confirms.is_idle


def test_a_nack_is_no_failure() -> None:
    confirms = published(*outgoing(2, lane()))

    assert confirms.settled(2, is_multiple=True, is_ack=False) == [Nacked(tag=1), Nacked(tag=2)]


def test_a_returned_event_fails_when_its_ack_comes() -> None:
    sent = outgoing(2, lane())
    confirms = published(*sent)

    assert came_back(confirms, sent[0])
    assert confirms.settled(2, is_multiple=True, is_ack=True) == [
        Failed(tag=1, category=Category.UNROUTABLE, reason="312 NO_ROUTE"),
        Confirmed(tag=2),
    ]


def test_the_same_event_to_two_groups_is_told_apart() -> None:
    """mosquito/aio-pika#689."""
    here = outgoing(1, lane(), first_tag=1)[0]
    there = Outgoing(tag=2, lane=lane(group="shipping"), event=here.event)
    confirms = published(here, there)

    assert came_back(confirms, there)
    settled = confirms.settled(2, is_multiple=True, is_ack=True)
    assert [type(one) for one in settled] == [Confirmed, Failed]


def test_the_same_event_twice_on_one_lane_is_returned_twice() -> None:
    first = outgoing(1, lane())[0]
    confirms = published(first, replace(first, tag=2))

    assert came_back(confirms, first)
    assert came_back(confirms, first)
    assert [type(one) for one in confirms.settled(2, is_multiple=True, is_ack=True)] == [Failed, Failed]


def test_a_return_of_what_was_never_published_is_told() -> None:
    confirms = published(*outgoing(2, lane()))

    assert not came_back(confirms, Outgoing(tag=9, lane=lane(), event=event()))


@given(data=st.data(), count=st.integers(1, 60))
def test_everything_is_settled_once_and_fails_only_if_it_came_back(data: st.DataObject, count: int) -> None:
    sent = outgoing(count, lane(), lane(group="shipping"), lane("other"))
    bad = data.draw(st.sets(st.sampled_from(sent).map(lambda one: one.tag)))
    confirms = published(*sent)
    # As RabbitMQ does: returns in publishing order, each before its own ack; acks in any order, single or multiple.
    to_return = [one for one in sent if one.tag in bad]
    settled: list[Settlement] = []
    while not confirms.is_idle:
        delivery_tag = data.draw(st.sampled_from([one.tag for one in confirms.unsettled()]))
        while to_return and to_return[0].tag <= delivery_tag:
            assert came_back(confirms, to_return.pop(0))
        settled += confirms.settled(delivery_tag, is_multiple=data.draw(st.booleans()), is_ack=True)

    assert sorted(one.tag for one in settled) == [one.tag for one in sent]
    assert {one.tag for one in settled if isinstance(one, Failed)} == bad


@pytest.mark.parametrize("is_multiple", [True, False])
def test_a_confirm_of_what_is_settled_says_nothing(is_multiple: bool) -> None:
    confirms = published(*outgoing(2, lane()))
    confirms.settled(2, is_multiple=True, is_ack=True)

    assert not confirms.settled(2, is_multiple=is_multiple, is_ack=True)
