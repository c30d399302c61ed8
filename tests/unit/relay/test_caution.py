"""One event that closes the channel is found, and its neighbours are not blamed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.ports import Category, Failed, Outgoing
from relay.rabbitmq.caution import Caution, Refusal, refusal
from tests.contracts.publishers import lane, outgoing

REFUSAL = Refusal(category=Category.REFUSED, reason="the broker closed the channel: 406 no")


def test_nothing_is_delayed_before_a_broker_has_refused() -> None:
    assert not Caution().is_needed


def test_a_suspect_goes_alone_and_the_next_waits_for_its_answer() -> None:
    sent = outgoing(3, lane())
    caution = Caution()
    caution.refused(sent, REFUSAL)

    assert not caution.add(sent)
    assert caution.due(is_idle=True) == (sent[0],)
    assert not caution.due(is_idle=False)
    assert caution.due(is_idle=True) == (sent[1],)


def test_the_one_that_was_alone_is_condemned_and_the_rest_go_together() -> None:
    sent = outgoing(5, lane())
    caution = Caution()
    caution.refused(sent, REFUSAL)
    caution.add(sent)
    caution.due(is_idle=True)
    caution.due(is_idle=True)
    caution.refused([sent[1]], REFUSAL)

    assert caution.add(sent[1:]) == [Failed(tag=2, category=Category.REFUSED, reason=REFUSAL.reason)]
    assert caution.due(is_idle=True) == sent[2:]
    assert not caution.is_needed


def test_a_refusal_with_one_unsettled_needs_no_search() -> None:
    sent = outgoing(1, lane())
    caution = Caution()
    caution.refused(sent, REFUSAL)

    assert caution.add(sent) == [Failed(tag=1, category=Category.REFUSED, reason=REFUSAL.reason)]


def test_another_loss_clears_nobody() -> None:
    sent = outgoing(2, lane())
    caution = Caution()
    caution.refused(sent, REFUSAL)
    caution.add(sent)
    caution.due(is_idle=True)

    caution.interrupted()

    caution.add(sent)
    assert caution.due(is_idle=True) == (sent[0],)


def test_suspects_that_never_come_again_delay_nobody() -> None:
    caution = Caution()
    caution.refused(outgoing(3, lane()), REFUSAL)
    others = outgoing(4, lane("other"), first_tag=10)

    caution.add(others)

    assert caution.due(is_idle=False) == others


@pytest.mark.parametrize(
    ("code", "text", "category", "limit"),
    [
        (406, "PRECONDITION_FAILED - message size 5000 is larger than configured max size 4000", "too_large", 4000),
        (406, "PRECONDITION_FAILED - message size 536870913 is larger than max size 536870912", "too_large", 536870912),
        (311, "CONTENT_TOO_LARGE", "too_large", None),
        (501, "FRAME_ERROR - type 2, all octets = <<>>: {frame_too_large,131073,131064}", "too_large", None),
        (406, "PRECONDITION_FAILED - invalid expiration 'soon'", "refused", None),
    ],
)
def test_a_refusal_by_size_is_told_from_any_other(code: int, text: str, category: str, limit: int | None) -> None:
    found = refusal(code, text, reason="the broker's words")
    assert (found.category.value, found.body_bytes_max, found.reason) == (category, limit, "the broker's words")


def test_a_broker_that_names_its_limit_names_every_offender_and_clears_all_others_at_once() -> None:
    sent = [
        *outgoing(3, lane()),
        *outgoing(2, lane(), first_tag=4, payload=bytes(4_001)),
        *outgoing(3, lane(), first_tag=6),
    ]
    caution = Caution()
    caution.refused(sent, refusal(406, "message size 4001 is larger than configured max size 4000", reason="406"))

    assert [(one.tag, one.category) for one in caution.add(sent)] == [(4, Category.TOO_LARGE), (5, Category.TOO_LARGE)]
    assert caution.due(is_idle=True) == [*sent[:3], *sent[5:]]
    assert caution.body_bytes_max == 4_000
    caution.interrupted()
    assert caution.body_bytes_max is None  # whoever restarts the broker may have given it another


@given(count=st.integers(1, 30), data=st.data())
def test_whatever_is_refused_is_found_and_all_else_is_sent_in_order(count: int, data: st.DataObject) -> None:
    sent = outgoing(count, lane())
    bad = data.draw(st.sets(st.integers(1, count), max_size=4))
    caution = Caution()
    failed: list[int] = []
    stored: list[int] = []
    unsettled: list[Outgoing] = list(sent)
    while unsettled:  # one connection after another
        failed += [one.tag for one in caution.add(unsettled)]
        unsettled = [one for one in unsettled if one.tag not in failed]
        while run := caution.due(is_idle=True):
            in_flight = list(run)
            refusing = next((one for one in run if one.tag in bad), None)
            if refusing is not None:
                # What stood before it has arrived, but its confirms are lost with the channel.
                stored += [one.tag for one in run[: run.index(refusing)]]
                caution.refused(in_flight, REFUSAL)
                break
            stored += [one.tag for one in run]
            unsettled = [one for one in unsettled if one not in run]

    assert sorted(failed) == sorted(bad)
    assert set(stored) == {one.tag for one in sent} - bad
    first_time = list(dict.fromkeys(stored))
    assert first_time == sorted(first_time)
