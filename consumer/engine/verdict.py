"""What follows from how an event's handlers ended. Pure: no clock, no I/O; the dice are an argument."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TypeAlias, assert_never

from consumer.decide.classify import classify, failure_of
from consumer.decide.failure import Failure, FailureCategory, GiveUp, TryAgain, decide
from consumer.decide.policy import Policy
from consumer.decide.rules import Pause, PauseHandler, PauseLane, first_match
from consumer.engine.attempt import Early, Fenced, Handled, Known, Raised, Returned
from consumer.outcome import DeadCategory, DeadLetter, Drop, Retry, Snooze, Throttled
from consumer.registry import Handler
from consumer.store.ledger import Entry, State
from consumer.store.work import Reason
from outbox.records import record

# Another process has it; nothing wakes us when it ends.
_RUNNING_ELSEWHERE_S = 5.0
# What waits until somebody resumes it is put off while it is paused, so this only keeps it from coming back at once.
_PAUSED_S = 5.0


@record
class Finished:
    """Nothing is left to do: *state* says done or skipped. *is_new*: it ran now. *why* it was dropped, if it was."""

    handler: str
    state: State
    is_new: bool
    why: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Elsewhere:
    """A stored row has it: this delivery is a duplicate of one that waits, or that died."""

    handler: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """Again in *wait_s*, with *attempts* spent. *what* is what failed, if something did.

    *is_failing*: the time that a policy allows runs from the first such attempt on. *pause* is what a rule wants to be
    paused meanwhile.
    """

    handler: str
    reason: Reason
    wait_s: float
    attempts: int
    what: BaseException | str | None
    is_failing: bool = False
    pause: Pause | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Buried:
    """No further attempt."""

    handler: str
    category: DeadCategory
    attempts: int
    what: BaseException | str


Fate: TypeAlias = Finished | Elsewhere | Pending | Buried


@dataclass(frozen=True, slots=True, kw_only=True)
class _Try:
    """One try of one handler that did not end well: what deciding about it needs."""

    handler: Handler
    attempt: int
    elapsed_s: float
    now: datetime | None
    rng: random.Random


def fate_of(
    handler: Handler,
    result: Handled | Known | Early | Returned | Raised | Fenced,
    *,
    elapsed_s: float,
    rng: random.Random,
    now: datetime | None = None,
) -> Fate:
    """Return what follows from *result* for *handler*. *elapsed_s* is since the event's first failure."""
    match result:
        case Handled():
            return Finished(handler=handler.name, state=State.DONE, is_new=True)
        case Known(state=state):
            return _of_known(handler.name, state)
        case Early() | Fenced():  # fenced: by now it is another's, who will be done with it or not
            return _held(handler.name)
        case Returned(attempt=attempt) | Raised(attempt=attempt):
            tried = _Try(handler=handler, attempt=attempt, elapsed_s=elapsed_s, now=now, rng=rng)
            if isinstance(result, Raised):
                return _of_error(tried, result.error)
            return _of_outcome(tried, result.outcome)
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


def overtaken(fate: Fate, state: State) -> Fate:
    """What becomes of *fate*, which could not be written as the ledger says *state* by now."""
    # A retry is a work row's, and that may be this event's own, which must not be removed.
    return _held(fate.handler) if state is State.RETRY else _of_known(fate.handler, state)


def _of_known(handler: str, state: State) -> Fate:
    match state:
        case State.DONE | State.SKIPPED:
            return Finished(handler=handler, state=state, is_new=False)
        case State.RETRY | State.DEAD:
            return Elsewhere(handler=handler)
        case State.RUNNING:
            return _held(handler)
        case _:
            assert_never(state)


def _held(handler: str) -> Fate:
    return Pending(handler=handler, reason=Reason.HELD, wait_s=_RUNNING_ELSEWHERE_S, attempts=0, what=None)


def _of_outcome(tried: _Try, outcome: Retry | Snooze | Throttled | DeadLetter | Drop) -> Fate:
    name = tried.handler.name
    match outcome:
        case Drop(reason=reason):
            return Finished(handler=name, state=State.SKIPPED, is_new=True, why=reason)
        case Snooze(for_s=for_s):
            return Pending(handler=name, reason=Reason.RETRY, wait_s=for_s, attempts=tried.attempt - 1, what=None)
        case Retry(reason=reason) | Throttled(reason=reason) | DeadLetter(reason=reason):
            return _of_failure(tried, failure_of(outcome), reason)
        case _:
            assert_never(outcome)


def _of_error(tried: _Try, error: BaseException) -> Fate:
    """What the first rule that matches says, else what errors like it mean."""
    rule = first_match(tried.handler.rules, error)
    known = classify(error, now=tried.now)
    match None if rule is None else rule.then:
        case None:
            return _of_failure(tried, known, error)
        case Policy() as policy:
            return _of_failure(tried, _to_be_retried(known), error, policy=policy)
        case Retry() | Throttled() as then:
            # However long a rule wants to wait, who said when to come back meant it.
            meant = failure_of(then)
            asked = max(meant.not_before_s, known.not_before_s)
            return _of_failure(tried, replace(meant, not_before_s=asked), error)
        case DeadLetter() as then:
            return _of_failure(tried, failure_of(then), error)
        case Drop() as then:
            return _of_outcome(tried, then)
        case PauseLane() | PauseHandler() as pause:
            return _of_pause(tried, pause, error)
        case unknown:
            assert_never(unknown)


def _to_be_retried(failure: Failure) -> Failure:
    if failure.category in {FailureCategory.PERMANENT, FailureCategory.SECURITY}:
        return replace(failure, category=FailureCategory.TRANSIENT)
    return failure


def _of_pause(tried: _Try, pause: Pause, error: BaseException) -> Fate:
    name = tried.handler.name
    if pause.for_s is not None and tried.elapsed_s + pause.for_s > tried.handler.policy.max_elapsed_s:
        return Buried(handler=name, category=DeadCategory.EXHAUSTED, attempts=tried.attempt, what=error)
    return Pending(
        handler=name,
        reason=Reason.RETRY,
        wait_s=_PAUSED_S if pause.for_s is None else pause.for_s,
        attempts=tried.attempt - 1,
        what=error,
        is_failing=pause.for_s is not None,
        pause=pause,
    )


def _of_failure(tried: _Try, failure: Failure, what: BaseException | str, *, policy: Policy | None = None) -> Fate:
    decision = decide(
        failure,
        attempt=tried.attempt,
        elapsed_s=tried.elapsed_s,
        policy=tried.handler.policy if policy is None else policy,
        rng=tried.rng,
    )
    name = tried.handler.name
    match decision:
        case TryAgain(wait_s=wait_s, is_charged=is_charged):
            spent = tried.attempt if is_charged else tried.attempt - 1
            return Pending(handler=name, reason=Reason.RETRY, wait_s=wait_s, attempts=spent, what=what, is_failing=True)
        case GiveUp(category=category):
            return Buried(handler=name, category=category, attempts=tried.attempt, what=what)
        case _:
            assert_never(decision)
