"""Which queues are asked for how much: no more than there is room for, and none that is known to have nothing."""

from collections.abc import Sequence

from consumer.postgres.claims import Claimed, Place, Wish
from consumer.postgres.lanes import Lanes
from outbox.queues.wakes import Wake, WakeKind
from tests.support.brokers import a_message

IDS = {"q": 1, "other": 2}


def lanes_with(*queues: str, prefetch: int = 2) -> Lanes:
    lanes = Lanes()
    for queue in queues:
        lanes.attach(queue, prefetch=prefetch, is_extra=False)
    assert not lanes.resolve(lanes.unknown(), IDS)
    return lanes


def claimed(*seqs: int, queue_id: int = 1) -> list[Claimed]:
    return [
        Claimed(place=Place(queue_id=queue_id, seq=seq), routing_key="q", message=a_message(seq), is_redelivered=False)
        for seq in seqs
    ]


def asked(lanes: Lanes) -> Sequence[Wish]:
    return lanes.wishes(most=10)


def taken(lanes: Lanes, *seqs: int) -> list[int]:
    """What is asked is answered with *seqs*; their tags."""
    got, homeless = lanes.take(asked(lanes), claimed(*seqs))
    assert not homeless
    return [tag for tag, _, _ in got]


def test_a_queue_that_gave_less_than_was_asked_is_not_asked_again_until_it_is_told_of() -> None:
    lanes = lanes_with("q")
    taken(lanes, 7)
    assert not asked(lanes)
    lanes.stir([Wake(queue_id=2)])
    assert not asked(lanes)
    lanes.stir([Wake(queue_id=1)])
    assert asked(lanes) == [Wish(queue_id=1, after=7, room=1)]


def test_a_queue_that_gave_all_that_was_asked_is_asked_again_as_soon_as_there_is_room() -> None:
    lanes = lanes_with("q")
    first, _ = taken(lanes, 7, 9)
    assert not asked(lanes)
    assert lanes.settle(first) == Place(queue_id=1, seq=7)
    assert asked(lanes) == [Wish(queue_id=1, after=9, room=1)]


def test_what_is_told_while_the_answer_is_awaited_is_not_forgotten() -> None:
    lanes = lanes_with("q")
    wishes = asked(lanes)
    lanes.stir([Wake(queue_id=1)])
    lanes.take(wishes, claimed(7))
    assert asked(lanes) == [Wish(queue_id=1, after=7, room=1)]


def test_what_comes_back_is_looked_for_in_its_old_place() -> None:
    lanes = lanes_with("q")
    first, second = taken(lanes, 7, 9)
    lanes.settle(first, is_back=True)
    assert asked(lanes) == [Wish(queue_id=1, after=6, room=1)]
    lanes.settle(second)
    lanes.stir([Wake(queue_id=1, kind=WakeKind.BACK)])
    assert asked(lanes) == [Wish(queue_id=1, after=0, room=2)]


def test_what_comes_back_while_the_answer_is_awaited_is_looked_for_in_its_old_place() -> None:
    lanes = lanes_with("q", prefetch=3)
    first, _ = taken(lanes, 7, 9)
    lanes.stir([Wake(queue_id=1)])
    wishes = asked(lanes)
    lanes.settle(first, is_back=True)
    lanes.take(wishes, claimed(11))
    assert asked(lanes)[0].after == 6


def test_what_an_extra_consumer_took_leaves_the_base_ones_room_alone() -> None:
    lanes = lanes_with("q")
    lanes.attach("q", prefetch=3, is_extra=True)
    tags = taken(lanes, 1, 2, 3, 4, 5)
    lanes.detach("q", is_extra=True)
    assert not asked(lanes)
    for tag in tags[2:]:  # the extra one's, which are in hand still
        assert lanes.settle(tag) is not None
    assert not asked(lanes)
    lanes.settle(tags[0])
    assert asked(lanes)[0].room == 1


def test_what_was_taken_for_a_consumer_that_is_detached_meanwhile_goes_back() -> None:
    lanes = lanes_with("q")
    wishes = asked(lanes)
    lanes.detach("q", is_extra=False)
    assert lanes.take(wishes, claimed(3)) == ([], [Place(queue_id=1, seq=3)])
    assert not lanes.held


def test_a_queue_that_was_made_anew_is_another() -> None:
    lanes = lanes_with("q", "other")
    assert lanes.resolve(lanes.known(), {"q": 5, "other": 2}) == ["q"]
    assert lanes.known() == ["other"]


def test_a_lost_connection_leaves_wishes_and_nothing_else() -> None:
    lanes = lanes_with("q")
    tag, _ = taken(lanes, 1, 2)
    lanes.lose()
    assert (list(lanes.unknown()), list(lanes.held), lanes.settle(tag)) == (["q"], [], None)
    lanes.resolve(["q"], IDS)
    assert asked(lanes) == [Wish(queue_id=1, after=0, room=2)]


def test_of_many_queues_each_has_its_turn() -> None:
    lanes = Lanes()
    names = {f"q{number}": number for number in range(1, 8)}
    for name in names:
        lanes.attach(name, prefetch=10, is_extra=False)
    lanes.resolve(lanes.unknown(), names)
    seen = list[int]()
    for _ in range(3):
        wishes = lanes.wishes(most=3)
        seen += [wish.queue_id for wish in wishes]
        lanes.stir([Wake(queue_id=queue_id) for queue_id in (1, 2, 3)])  # busy ones
        lanes.take(wishes, [])
    assert set(seen) == set(names.values())


def test_a_queue_without_room_is_asked_once_there_is_some() -> None:
    lanes = lanes_with("q")
    first, _ = taken(lanes, 1, 2)
    lanes.stir_all()
    assert not asked(lanes)
    lanes.settle(first)
    assert asked(lanes) == [Wish(queue_id=1, after=0, room=1)]
