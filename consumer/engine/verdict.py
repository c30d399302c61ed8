"""What follows from how an event's handlers ended. Pure: no clock, no I/O; the dice are an argument."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, assert_never

from consumer.decide.failure import Failure, GiveUp, TryAgain, classify, decide, failure_of
from consumer.engine.attempt import Early, Handled, Known, Raised, Returned
from consumer.outcome import DeadCategory, DeadLetter, Drop, Retry, Snooze, Throttled
from consumer.registry import Handler
from consumer.store.ledger import Entry, State
from consumer.store.work import Reason

# Another process has it; nothing wakes us when it ends.
_RUNNING_ELSEWHERE_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """Nothing is left to do: *state* says done or skipped. *is_new*: it ran now."""

    handler: str
    state: State
    is_new: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Elsewhere:
    """A stored row has it: this delivery is a duplicate of one that waits, or that died."""

    handler: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """Again in *wait_s*, with *attempts* spent. *error* is what failed, if something did."""

    handler: str
    reason: Reason
    wait_s: float
    attempts: int
    what: BaseException | str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Buried:
    """No further attempt."""

    handler: str
    category: DeadCategory
    attempts: int
    what: BaseException | str


Fate: TypeAlias = Finished | Elsewhere | Pending | Buried


def fate_of(
    handler: Handler, result: Handled | Known | Early | Returned | Raised, *, elapsed_s: float, rng: random.Random
) -> Fate:
    """Return what follows from *result* for *handler*. *elapsed_s* is since the event's first attempt."""
    match result:
        case Handled():
            return Finished(handler=handler.name, state=State.DONE, is_new=True)
        case Known(state=state):
            return _of_known(handler, state)
        case Early():
            return _held(handler)
        case Returned(outcome=outcome, attempt=attempt):
            return _of_outcome(handler, outcome, attempt=attempt, elapsed_s=elapsed_s, rng=rng)
        case Raised(error=error, attempt=attempt):
            failure = classify(error)
            return _of_failure(handler, failure, error, attempt=attempt, elapsed_s=elapsed_s, rng=rng)
        case _:
            assert_never(result)


def entries_of(fates: Sequence[Fate]) -> list[Entry]:
    """What the ledger is to say of *fates* that it does not say yet."""
    entries = []
    for fate in fates:
        match fate:
            case Finished(state=State.SKIPPED, is_new=True):
                entries.append(Entry(handler=fate.handler, state=State.SKIPPED, attempts=1))
            case Pending(reason=Reason.RETRY):
                entries.append(Entry(handler=fate.handler, state=State.RETRY, attempts=fate.attempts))
            case Buried():
                entries.append(Entry(handler=fate.handler, state=State.DEAD, attempts=fate.attempts))
            case _:
                pass  # the ledger says so already, or nothing was tried
    return entries


def lets_key_pass(fates: Sequence[Fate], *, skips_dead: bool) -> bool:
    """Whether the events behind this one, with the same ordering key, need not wait for it."""
    return all(isinstance(fate, Finished) or (isinstance(fate, Buried) and skips_dead) for fate in fates)


def _of_known(handler: Handler, state: State) -> Fate:
    match state:
        case State.DONE | State.SKIPPED:
            return Finished(handler=handler.name, state=state, is_new=False)
        case State.RETRY | State.DEAD:
            return Elsewhere(handler=handler.name)
        case State.RUNNING:
            return _held(handler)
        case _:
            assert_never(state)


def _held(handler: Handler) -> Fate:
    return Pending(handler=handler.name, reason=Reason.HELD, wait_s=_RUNNING_ELSEWHERE_S, attempts=0, what=None)


def _of_outcome(
    handler: Handler,
    outcome: Retry | Snooze | Throttled | DeadLetter | Drop,
    *,
    attempt: int,
    elapsed_s: float,
    rng: random.Random,
) -> Fate:
    match outcome:
        case Drop():
            return Finished(handler=handler.name, state=State.SKIPPED, is_new=True)
        case Snooze(for_s=for_s):
            return Pending(handler=handler.name, reason=Reason.RETRY, wait_s=for_s, attempts=attempt - 1, what=None)
        case Retry(reason=reason) | Throttled(reason=reason) | DeadLetter(reason=reason):
            failure = failure_of(outcome)
            return _of_failure(handler, failure, reason, attempt=attempt, elapsed_s=elapsed_s, rng=rng)
        case _:
            assert_never(outcome)


def _of_failure(
    handler: Handler,
    failure: Failure,
    what: BaseException | str,
    *,
    attempt: int,
    elapsed_s: float,
    rng: random.Random,
) -> Fate:
    decision = decide(failure, attempt=attempt, elapsed_s=elapsed_s, policy=handler.policy, rng=rng)
    match decision:
        case TryAgain(wait_s=wait_s, is_charged=is_charged):
            spent = attempt if is_charged else attempt - 1
            return Pending(handler=handler.name, reason=Reason.RETRY, wait_s=wait_s, attempts=spent, what=what)
        case GiveUp(category=category):
            return Buried(handler=handler.name, category=category, attempts=attempt, what=what)
        case _:
            assert_never(decision)
