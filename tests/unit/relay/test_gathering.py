import pytest

from relay.decide.gathering import Gathering

WINDOW = 1600


def gathering() -> Gathering:
    return Gathering(window=WINDOW, least_s=1.0, most_s=10.0)


@pytest.mark.parametrize(("in_flight", "has_room", "wait_s"), [(99, True, 0.0), (100, True, 1.0), (1, False, 1.0)])
def test_confirms_gather_when_they_are_many_or_nothing_can_go_out_without_them(
    in_flight: int, has_room: bool, wait_s: float
) -> None:
    assert gathering().wait_s(in_flight, has_room=has_room) == wait_s


def test_they_get_longer_while_they_come_in_crumbs_and_no_longer_than_the_most() -> None:
    one = gathering()
    waits = []
    for _ in range(6):
        waits.append(one.wait_s(WINDOW, has_room=False))
        one.heard(99)
    assert waits == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


def test_enough_leaves_the_wait_as_it_is_and_plenty_shortens_it_to_the_least() -> None:
    one = gathering()
    one.wait_s(WINDOW, has_room=False)
    waits = []
    for heard in (0, 0, 100, 400, 401, 401, 401):
        one.heard(heard)
        waits.append(one.wait_s(WINDOW, has_room=False))
    assert waits == [2.0, 4.0, 4.0, 4.0, 2.0, 1.0, 1.0]


def test_once_few_are_on_their_way_it_begins_anew() -> None:
    one = gathering()
    one.wait_s(WINDOW, has_room=False)
    one.heard(0)
    assert one.wait_s(1, has_room=True) == 0.0
    assert one.wait_s(WINDOW, has_room=True) == 1.0
