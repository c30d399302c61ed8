"""Settling in as few frames as can be, and never one delivery too many."""

from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands, frame

from consumer.rabbitmq.frames import settle_frames

_CHANNEL = 3


def parsed(data: bytes) -> list[commands.Basic.Ack | commands.Basic.Nack]:
    frames = []
    while data:
        size, channel, method = frame.unmarshal(data)
        assert channel == _CHANNEL
        assert isinstance(method, commands.Basic.Ack | commands.Basic.Nack)
        frames.append(method)
        data = data[size:]
    return frames


def settled_by_broker(frames: list[commands.Basic.Ack | commands.Basic.Nack], unsettled: list[int]) -> list[int]:
    """What a broker takes as settled; it closes the channel for a tag that it does not hold."""
    left, settled = list(unsettled), []
    for each in frames:
        tag = each.delivery_tag or 0
        assert tag in left
        meant = [held for held in left if held <= tag] if each.multiple else [tag]
        settled += meant
        left = [held for held in left if held not in meant]
    return settled


@given(st.dictionaries(st.integers(1, 2**40), st.booleans(), max_size=40), st.booleans())
def test_exactly_the_tags_that_were_asked_for_are_settled(asked: dict[int, bool], requeue: bool) -> None:
    unsettled = sorted(asked)
    tags = [tag for tag in unsettled if asked[tag]]
    frames = parsed(settle_frames(tags, unsettled=unsettled, channel=_CHANNEL, requeue=requeue))
    assert settled_by_broker(frames, unsettled) == tags
    wanted = commands.Basic.Nack if requeue else commands.Basic.Ack
    assert all(isinstance(each, wanted) for each in frames)
    assert all(each.requeue for each in frames if isinstance(each, commands.Basic.Nack))


def test_the_oldest_unsettled_deliveries_are_settled_by_one_frame() -> None:
    frames = parsed(settle_frames([4, 5, 9, 12], unsettled=[4, 5, 9, 10, 12], channel=_CHANNEL, requeue=False))
    assert [(each.delivery_tag, each.multiple) for each in frames] == [(9, True), (12, False)]


def test_an_older_unsettled_delivery_keeps_every_frame_single() -> None:
    frames = parsed(settle_frames([5, 6], unsettled=[4, 5, 6], channel=_CHANNEL, requeue=False))
    assert [(each.delivery_tag, each.multiple) for each in frames] == [(5, False), (6, False)]


def test_nothing_to_settle_is_nothing_to_send() -> None:
    assert settle_frames([], unsettled=[1], channel=_CHANNEL, requeue=False) == b""
