"""How many buckets each relay should hold, and when it is worth moving any. No clock, no I/O.

Every relay decides for itself from the same few rows, and nobody commands: who holds less than its target takes
what is free, who holds more gives the rest up. Targets add up to the number of buckets, so what one must not
take another may, and relays that all stand at their target leave everything as it is.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

# Moving a bucket stops its lanes for a moment: an eighth less than the share is not worth that.
_SLACK: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A relay that lives, by its *token*; *owned* buckets carry it."""

    token: int
    owned: int
    is_able: bool
    """It reaches the broker, so buckets given to it are published."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What is fair for one relay: *target* buckets. It may take *lacking* more, or gives *surplus* up."""

    target: int
    lacking: int
    surplus: int


def fair_share(token: int, peers: Sequence[Peer], *, buckets: int) -> Share:
    """Return what is fair for the relay with *token*, one of *peers*, of *buckets* over all groups.

    A relay that does not reach the broker has no share, unless none does. There is no surplus before another
    lacks more than an eighth of its share, so 33 and 31 of 64 stay as they are.
    """
    able = [peer for peer in peers if peer.is_able] or list(peers)
    least, rest = divmod(buckets, len(able))
    # Those that hold most keep the odd ones: nothing moves for them.
    by_owned = sorted(able, key=lambda peer: (-peer.owned, peer.token))
    targets = {peer.token: least + (rank < rest) for rank, peer in enumerate(by_owned)}
    owned = next(peer.owned for peer in peers if peer.token == token)
    target = targets.get(token, 0)
    is_worth_it = any(targets[peer.token] - peer.owned > least // _SLACK for peer in able)
    return Share(
        target=target,
        lacking=max(0, target - owned),
        surplus=max(0, owned - target) if is_worth_it else 0,
    )
