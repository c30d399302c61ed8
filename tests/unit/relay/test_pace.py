from relay.decide.pace import Pace

PER_S = 5_000


def confirm(pace: Pace, after_s: float, *, seconds: float, since: float = 0.0) -> float:
    """Confirms at a steady rate, all *after_s*; return when the last came."""
    for number in range(int(seconds * PER_S)):
        pace.confirmed(after_s, since + number / PER_S)
    return since + seconds


def test_a_lane_whose_confirms_take_no_longer_than_ever_gets_more_room() -> None:
    pace = Pace()
    start = pace.room
    confirm(pace, 0.003, seconds=1)
    assert pace.room > start * 1.5


def test_a_lane_whose_messages_queue_up_in_the_broker_gets_less_and_never_nothing() -> None:
    pace = Pace()
    confirm(pace, 0.003, seconds=1)
    before = pace.room
    now = confirm(pace, 0.05, seconds=2, since=1.0)
    assert pace.room < before / 2
    confirm(pace, 0.5, seconds=10, since=now)
    assert pace.room >= 32


def test_a_broker_that_is_slow_by_nature_gets_no_less_than_a_quick_one() -> None:
    """A queue that syncs to distant disks confirms late however little it is sent."""
    quick, slow = Pace(), Pace()
    confirm(quick, 0.002, seconds=2)
    confirm(slow, 0.2, seconds=2)
    assert slow.room == quick.room


def test_a_queue_that_has_moved_to_a_slower_node_is_not_held_to_what_it_was_for_ever() -> None:
    pace = Pace()
    now = confirm(pace, 0.002, seconds=1)
    now = confirm(pace, 0.1, seconds=70, since=now)
    at_worst = pace.room
    confirm(pace, 0.1, seconds=5, since=now)
    assert pace.room > at_worst > 32
