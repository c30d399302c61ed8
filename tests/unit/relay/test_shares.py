"""Shares: relays that decide alone come to rest, evenly, and stay there."""

import random

import pytest

from relay.decide.shares import Peer, Share, fair_share


def peers(*owned: int, unable: tuple[int, ...] = ()) -> list[Peer]:
    """Relays with tokens from 1 on, and what each owns."""
    return [Peer(token=one, owned=count, is_able=one not in unable) for one, count in enumerate(owned, start=1)]


def test_a_relay_alone_may_take_everything() -> None:
    assert fair_share(1, peers(0), buckets=64) == Share(target=64, lacking=64, surplus=0)


@pytest.mark.parametrize("owned", [(33, 31), (36, 28), (22, 21, 21), (32, 32)])
def test_small_differences_move_nothing(owned: tuple[int, ...]) -> None:
    shares = [fair_share(peer.token, peers(*owned), buckets=64) for peer in peers(*owned)]
    assert [share.surplus for share in shares] == [0] * len(owned)


@pytest.mark.parametrize(
    ("owned", "surplus"),
    [
        ((64, 0), (32, 0)),
        ((32, 32, 0), (10, 11, 0)),
        ((40, 24, 0), (18, 3, 0)),
        ((37, 27), (5, 0)),
        ((8, 8, 8, 8, 8, 8, 8, 8, 0), (0, 1, 1, 1, 1, 1, 1, 1, 0)),
    ],
)
def test_a_relay_that_joins_is_given_its_share_by_those_that_have_more(
    owned: tuple[int, ...], surplus: tuple[int, ...]
) -> None:
    assert tuple(fair_share(peer.token, peers(*owned), buckets=64).surplus for peer in peers(*owned)) == surplus


def test_nobody_may_take_more_than_its_share_while_others_live() -> None:
    assert [fair_share(one, peers(21, 0, 0), buckets=64).lacking for one in (1, 2, 3)] == [1, 21, 21]


def test_more_relays_than_buckets_leave_some_without() -> None:
    assert [fair_share(one, peers(1, 1, 0), buckets=2) for one in (1, 3)] == [
        Share(target=1, lacking=0, surplus=0),
        Share(target=0, lacking=0, surplus=0),
    ]


def test_a_relay_that_cannot_publish_gives_everything_to_those_that_can() -> None:
    given = peers(32, 32, unable=(1,))
    assert fair_share(1, given, buckets=64) == Share(target=0, lacking=0, surplus=32)
    assert fair_share(2, given, buckets=64) == Share(target=64, lacking=32, surplus=0)


def test_where_nobody_can_publish_everybody_keeps_what_it_has() -> None:
    given = peers(32, 32, unable=(1, 2))
    assert [fair_share(one, given, buckets=64).surplus for one in (1, 2)] == [0, 0]


@pytest.mark.parametrize("seed", range(20))
def test_relays_that_decide_alone_come_to_rest_within_an_eighth_of_their_share(seed: int) -> None:
    rng = random.Random(seed)
    buckets = rng.choice([64, 128, 192])
    owned = [0] * rng.randint(1, 12)
    for _ in range(rng.randint(0, buckets)):
        owned[rng.randrange(len(owned))] += 1
    moves = 0
    for _ in range(20 * len(owned)):
        mine = rng.randrange(len(owned))
        share = fair_share(mine + 1, peers(*owned), buckets=buckets)
        free = buckets - sum(owned)
        moves += share.surplus
        owned[mine] += min(share.lacking, free) - share.surplus
    least = buckets // len(owned)
    assert sum(owned) == buckets
    assert min(owned) >= least - least // 8
    assert moves <= buckets
