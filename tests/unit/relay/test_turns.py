from collections import Counter

from outbox.event import Tier
from relay.decide.turns import WEIGHTS, Turns


def serve(turns: Turns[str], tiers: dict[str, Tier], rounds: int, *, rows: int = 10) -> list[str]:
    """Give turns to items that always have more."""
    served = []
    for _ in range(rounds):
        item = turns.take()
        assert item is not None
        served.append(item)
        turns.charge(item, tiers[item], rows)
        turns.offer(item, tiers[item])
    return served


def test_tenants_of_a_tier_take_turns() -> None:
    turns = Turns[str]()
    tiers = dict.fromkeys("abc", Tier.STANDARD)
    for item, tier in tiers.items():
        turns.offer(item, tier)
    assert "".join(serve(turns, tiers, 7)) == "abcabca"


def test_tiers_share_by_weight_and_bulk_is_never_starved() -> None:
    turns = Turns[str]()
    tiers = {"i": Tier.INTERACTIVE, "s": Tier.STANDARD, "b": Tier.BULK}
    for item, tier in tiers.items():
        turns.offer(item, tier)
    total = sum(WEIGHTS.values())
    served = Counter(serve(turns, tiers, total * 20))
    for item, tier in tiers.items():
        assert abs(served[item] - WEIGHTS[tier] * 20) <= 1


def test_a_tier_that_was_idle_gets_no_credit_for_it() -> None:
    turns = Turns[str]()
    tiers = {"s": Tier.STANDARD, "b": Tier.BULK}
    turns.offer("s", Tier.STANDARD)
    serve(turns, tiers, 1000)
    turns.offer("b", Tier.BULK)
    served = Counter(serve(turns, tiers, 10))
    assert served["b"] == 2


def test_an_item_waits_at_most_once() -> None:
    turns = Turns[str]()
    turns.offer("a", Tier.BULK)
    turns.offer("a", Tier.BULK)
    assert turns.take() == "a"
    assert turns.take() is None


def test_an_item_that_is_not_to_be_served_again_waits_on() -> None:
    turns = Turns[str]()
    for item in ("a", "b"):
        turns.offer(item, Tier.BULK)
    assert turns.take(but={"a"}) is None
    assert [turns.take(but={"b"}), turns.take()] == ["a", "b"]


def test_a_turn_is_charged_by_what_it_published_not_by_being_taken() -> None:
    turns = Turns[str]()
    tiers = {"big": Tier.STANDARD, "small": Tier.INTERACTIVE}
    for item, tier in tiers.items():
        turns.offer(item, tier)
    rows = Counter[str]()
    for _ in range(300):
        served = turns.take()
        assert served is not None
        published = 200 if served == "big" else 1
        rows[served] += published
        turns.charge(served, tiers[served], published)
        turns.offer(served, tiers[served])
    assert rows["small"] > 100
    assert rows["big"] <= 200 * 3


def test_a_lane_that_had_nothing_to_publish_goes_before_those_that_had_their_chunk() -> None:
    turns = Turns[str]()
    tiers = dict.fromkeys(["busy", "busier", "quiet"], Tier.STANDARD)
    turns.offer("busy", Tier.STANDARD)
    turns.offer("busier", Tier.STANDARD)
    assert serve(turns, tiers, 2, rows=200) == ["busy", "busier"]
    turns.offer("quiet", Tier.STANDARD)
    assert serve(turns, tiers, 1, rows=1) == ["quiet"]


def test_lanes_that_come_anew_time_after_time_keep_nobody_waiting_for_ever() -> None:
    """A lane is forgotten when it has nothing to publish, so its next event is a new lane's."""
    turns = Turns[str]()
    turns.offer("busy", Tier.STANDARD)
    assert turns.take() == "busy"
    turns.charge("busy", Tier.STANDARD, 200)
    turns.offer("busy", Tier.STANDARD)
    for number in range(2_000):
        turns.offer(f"new-{number}", Tier.STANDARD)
        served = turns.take()
        assert served is not None
        turns.charge(served, Tier.STANDARD, 1)
        if served == "busy":
            break
    assert served == "busy"


def test_what_was_served_long_ago_is_forgotten() -> None:
    turns = Turns[str]()
    for number in range(10_000):
        turns.offer(f"tenant-{number}", Tier.STANDARD)
        served = turns.take()
        assert served is not None
        turns.charge(served, Tier.STANDARD, 1)
    assert len(turns._rounds[Tier.STANDARD]._time) < 500
