"""What follows from the end of a worker process. Pure: no clock, no I/O; the dice are an argument."""

import random
from collections.abc import Set
from dataclasses import dataclass
from typing import Final, TypeAlias

from outbox.backoff import Jitter, backoff_s

#: A worker that lived for so long has not died of how it was started.
SOUND_S: Final = 60.0
_BASE_S: Final = 0.5
_CAP_S: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """Start another in its place, *after_s* from now."""

    after_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """Another would end in the same way: all end, with *code*."""

    code: int


def decide(code: int, of_all: Set[int], *, was_any_ready: bool, deaths: int, rng: random.Random) -> Restart | End:
    """Say what to do about a worker that has ended with *code* (or minus a signal's number) and was not asked to.

    Args:
        of_all: the codes that speak of every worker: of the app, the settings and the servers.
        was_any_ready: whether any worker was ready since the start. Then all of these were right, and those that work
            go on: a server that is away, a password that was changed and a file that is being replaced pass.
        deaths: how many have died in this one's place without living ``SOUND_S``, this one included; 0 if it has.
    """
    if code in of_all and not was_any_ready:
        return End(code=code)
    return Restart(after_s=backoff_s(max(1, deaths), base_s=_BASE_S, cap_s=_CAP_S, jitter=Jitter.EQUAL, rng=rng))


Decision: TypeAlias = Restart | End
