"""What is made of a fleet, from what was seen of it."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from consumer.decide.verification import DeadSince, Finding, Member, Sample, Wanted, findings

NOON = datetime(2026, 11, 29, 12, tzinfo=UTC)
WELL = Member(has_said=True, is_connected=True, lanes=4, attached=4, settled=10)
WANTED = Wanted(group="billing", fleet="version 2", processes=2, settled=1, dead=0, watch_s=10)
SEEN = Sample(at=NOON, fleet=(WELL, WELL), others=3, lanes=4, backlog=0, dead=(), pauses=0, is_group_paused=False)
KNOWN = DeadSince(fingerprint="f", category="permanent", message="no such order", letters=3, is_new=False)


def seen(seconds: float, **changes: object) -> Sample:
    return replace(SEEN, at=NOON + timedelta(seconds=seconds), **changes)  # type: ignore[arg-type]


def refused(*samples: Sample, wanted: Wanted = WANTED) -> list[Finding]:
    return [one for one in findings(samples, wanted) if not one.is_ok]


def test_a_fleet_that_consumes_all_lanes_and_settled_something_for_the_whole_watch_is_verified() -> None:
    assert refused(seen(0), seen(10)) == []
    (finding,) = refused(seen(0), seen(9))
    assert finding.name == "watch"


@pytest.mark.parametrize(
    ("name", "changes", "says"),
    [
        ("processes", {"fleet": (WELL,)}, "1 of 2 processes of version 2 are alive, and 3 others"),
        ("processes", {"fleet": (WELL, Member(has_said=False))}, "1 of them never said how they do"),
        ("processes", {"fleet": (WELL, replace(WELL, is_connected=False))}, "1 of them do not reach the broker"),
        ("lanes", {"fleet": (WELL, replace(WELL, attached=3))}, "1 of 2 processes consume from all"),
        ("lanes", {"lanes": 9}, "the group has 9"),
        ("lanes", {"lanes": 0, "fleet": (replace(WELL, lanes=0, attached=0),) * 2}, "no lane of group billing"),
        ("lanes", {"is_group_paused": True}, "the whole group is paused"),
        ("settled", {"fleet": (replace(WELL, settled=0),) * 2, "backlog": 5}, "settled 0 events"),
        ("dead letters", {"dead": (replace(KNOWN, is_new=True),)}, "3 dead letters of a kind that was not there"),
        ("dead letters", {"dead": (KNOWN,)}, "3 dead letters came during the watch"),
    ],
)
def test_what_is_not_as_wanted_is_named_with_the_next_step(name: str, changes: dict[str, object], says: str) -> None:
    found = refused(seen(0), seen(10, **changes))
    assert [one.name for one in found] == [name]
    assert says in found[0].says
    assert found[0].do
    # A kind of dead letters that came with the new code does not go away by waiting.
    assert found[0].is_final == ("not there before" in found[0].says)


def test_a_fleet_that_had_nothing_to_do_is_verified_unless_more_was_wanted() -> None:
    idle = {"fleet": (replace(WELL, settled=0),) * 2}
    assert refused(seen(0, **idle), seen(10, **idle)) == []
    assert [one.name for one in refused(seen(0, **idle), seen(10, **idle), wanted=replace(WANTED, settled=2))] == [
        "settled"
    ]


def test_workers_of_some_tiers_each_need_their_own_lanes_and_together_all() -> None:
    some, others = replace(WELL, lanes=1, attached=1), replace(WELL, lanes=3, attached=3)
    assert refused(seen(0), seen(10, fleet=(some, others))) == []
    assert [one.name for one in refused(seen(0), seen(10, fleet=(some, some)))] == ["lanes"]


def test_a_backlog_that_rises_through_the_watch_grows_and_one_that_swings_does_not() -> None:
    rising = [seen(second, backlog=100 + 50 * second) for second in range(12)]
    assert [one.name for one in refused(*rising)] == ["backlog"]
    swinging = [seen(second, backlog=100 + 400 * (second % 2)) for second in range(12)]
    assert refused(*swinging) == []
    falling = [seen(second, backlog=1000 - 50 * second) for second in range(12)]
    assert refused(*falling) == []


def test_dead_letters_of_a_known_kind_that_came_before_the_watch_do_not_count_nor_do_as_many_as_allowed() -> None:
    assert refused(seen(0, dead=(KNOWN,)), seen(10, dead=(KNOWN,))) == []
    more = replace(KNOWN, letters=5)
    assert [one.name for one in refused(seen(0, dead=(KNOWN,)), seen(10, dead=(more,)))] == ["dead letters"]
    assert refused(seen(0, dead=(KNOWN,)), seen(10, dead=(more,)), wanted=replace(WANTED, dead=2)) == []
